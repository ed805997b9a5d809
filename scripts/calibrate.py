"""Fits the simulator's coefficients to measured rows and prints measured against predicted.

    python scripts/calibrate.py                       the error table of the packaged coefficients
    python scripts/calibrate.py --fit sglang          fit that engine's free coefficients, print them and the table
    python scripts/calibrate.py --fit sglang --write  and put them into search_spaces/simulation/sglang.yaml

The rows lie beside the repository, in ../shared/data; another folder is given by --data. Which coefficients are free,
and their bounds, is said in the YAML files by a comment ``# fit LOW..HIGH`` behind the value.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autotune.calibrate.readers import read_file
from autotune.calibrate.rows import MeasuredRow as Row
from autotune.calibrate.tables import layout
from autotune.simulate import Outcome, run_server
from autotune.simulate.coefficients import SpeedCard, coefficients_for
from autotune.simulate.server import Server
from autotune.space.library import spaces_root

_FREE = re.compile(r"^(?P<head>\s*(?P<name>\w+): )(?P<value>[-+.\de]+)(?P<tail>\s+# fit (?P<low>.+)\.\.(?P<high>.+))$")
_WEIGHTS = {"total_token_throughput": 1.0, "mean_ttft_ms": 0.15, "median_itl_ms": 0.15, "mean_tpot_ms": 0.1}
_SEED = 0
Floats = NDArray[np.float64]


class CardText:
    """An engine's YAML file with its free coefficients."""

    def __init__(self, engine: str) -> None:
        self.path = spaces_root() / "simulation" / f"{engine}.yaml"
        self.lines = self.path.read_text(encoding="utf-8").splitlines()
        self.free = [(i, m) for i, line in enumerate(self.lines) if (m := _FREE.match(line))]

    def values(self) -> Floats:
        return np.array([float(m["value"]) for _, m in self.free])

    def bounds(self) -> tuple[Floats, Floats]:
        low, high = (np.array([float(m[side]) for _, m in self.free]) for side in ("low", "high"))
        return low, high

    def text(self, values: Floats) -> str:
        lines = list(self.lines)
        for (number, match), value in zip(self.free, values, strict=True):
            lines[number] = f"{match['head']}{float(f'{value:.3g}'):g}{match['tail']}"
        return "\n".join(lines) + "\n"

    def card(self, values: Floats) -> SpeedCard:
        return SpeedCard.model_validate(yaml.safe_load(self.text(values)))


def predict(row: Row, card: SpeedCard) -> Outcome:
    """One measured row on the simulated node."""
    setup = row.understood.setup
    scope = {"model": setup.model, "hardware": setup.hardware, "gpus": setup.gpus}
    server = Server(setup, coefficients_for(card, setup.version, setup.knobs, scope))
    return run_server(server, row.workload, _SEED)


def residuals(rows: list[Row], card: SpeedCard) -> Iterator[float]:
    """Weighted logarithms of predicted over measured."""
    for row in rows:
        outcome = predict(row, card)
        for metric, weight in _WEIGHTS.items():
            measured = row.warm.get(metric)
            if measured:
                predicted = outcome.metrics.get(metric, 0.0) or measured * 10
                yield weight * math.sqrt(row.weight) * float(np.log(predicted / measured))


def fit(engine: str, rows: list[Row], rounds: int) -> CardText:
    """Least squares in the logarithms of the coefficients."""
    text = CardText(engine)
    low, high = (np.log(side) for side in text.bounds())
    start = np.clip(np.log(text.values()), low + 1e-3, high - 1e-3)
    mine = [row for row in rows if row.understood.card.engine == engine]

    def function(x: Floats) -> Floats:
        return np.array(list(residuals(mine, text.card(np.exp(x)))))

    found = least_squares(
        function, start, bounds=(low, high), loss="soft_l1", f_scale=0.2, diff_step=0.03, max_nfev=rounds
    )
    text.lines = text.text(np.exp(found.x)).splitlines()
    text.free = [(i, m) for i, line in enumerate(text.lines) if (m := _FREE.match(line))]
    for (_, match), value in zip(text.free, np.exp(found.x), strict=True):
        print(f"  {match['name']:24s} {value:10.3g}   [{match['low']}, {match['high']}]")
    return text


_HEADER = ("row", "model", "engine", "layout", "workload", "measured", "predicted", "ratio", "TTFT ratio", "ITL ratio")


def table(rows: list[Row], cards: dict[str, SpeedCard]) -> None:
    """Print the error table: total tok/s measured and predicted, and predicted/measured of three metrics."""
    print(f"| {' | '.join(_HEADER)} |\n|{'---|' * len(_HEADER)}")
    ratios = []
    for row in rows:
        understood, warm = row.understood, row.warm
        outcome = predict(row, cards[understood.card.engine])
        shown = {metric: outcome.metrics.get(metric, math.nan) / (warm.get(metric) or math.nan) for metric in _WEIGHTS}
        ratio = shown["total_token_throughput"]
        ratios.append(ratio)
        measured = warm["total_token_throughput"]
        cells = [row.label, understood.context.model.id.split("/")[-1], understood.card.engine]
        cells += [layout(understood), row.workload.name]
        cells += [f"{measured:.0f}", outcome.failure.kind if outcome.failure else f"{ratio * measured:.0f}"]
        cells += [f"{shown[metric]:.2f}" for metric in ("total_token_throughput", "mean_ttft_ms", "median_itl_ms")]
        print(f"| {' | '.join(cells)} |")
    errors = np.nan_to_num(np.abs(np.array(ratios) - 1), nan=1.0)  # a row that is predicted to fail is all wrong
    within = np.mean(errors <= 0.35)
    print(
        f"\nmedian |error| {np.median(errors):.1%}, mean {np.mean(errors):.1%}, {within:.0%} of {len(rows)} within 35 %"
    )


def main() -> None:
    """Parse, fit if asked, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[1].parent / "shared" / "data")
    parser.add_argument("--fit", action="append", default=[], metavar="ENGINE")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    files = ("seed_measurements.json", "dstack_r1_concurrency_sweep.csv")
    seeds, sweep = ([row for row in read_file(arguments.data / name).rows if row.failure is None] for name in files)
    cards = {name: CardText(name) for name in ("vllm", "sglang", "tensorrt_llm")}
    for engine in arguments.fit:
        print(f"{engine}:")
        cards[engine] = fit(engine, seeds + sweep, arguments.rounds)
        if arguments.write:
            cards[engine].path.write_text("\n".join(cards[engine].lines) + "\n", encoding="utf-8")
    shown = {name: text.card(text.values()) for name, text in cards.items()}
    table(seeds, shown)
    print()
    table(sweep, shown)


if __name__ == "__main__":
    main()
