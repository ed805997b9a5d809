"""Compare the search's priors with what they predict: ``python benchmarks/tuner/priors.py [--sample N]
[--measured FILE …] [--wrong [NAME …]]``.

Two questions, each of the simulator's fast prediction (`autotune.node.steady`) and of the
roofline, and with ``--wrong`` a third:

- against the full simulation, on a random sample of each engine's candidates: rank correlation
  (Spearman), median error of total throughput, of the mean TPOT and, where all prompts are sent at
  once, of the mean TTFT; how many of the best ten are among the best ten predicted; processor
  seconds for all candidates of the study, and per one computed;
- against measured rows (files that ``autotune calibrate`` reads), each with the engine's version,
  node and load of its row: rank correlation among the rows of one model on one node under one load,
  and the median error. The shipped figures are fitted to such rows, so this is no proof of
  foresight; the roofline is fitted to nothing;
- against landscapes whose launches contradict the priors (`landscapes_altered`): of each study of
  40 launches at 3 % noise the launches to 98 % of the best, the number of launches in the worse
  half of the candidates (below the median, or with the slow attention kernel), and the recommended
  candidate's share of the best.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import numpy as np
from landscape import Landscape, Sources
from landscapes import build
from landscapes_altered import hidden
from roofline import roofline
from scipy.stats import spearmanr
from search_figures import launches_to
from search_loops import play

from autotune.base.arrays import Bools, Floats
from autotune.load.workloads import load_workload
from autotune.node.calibration import ServerSetup
from autotune.node.fit.reading import MeasuredPoint, points_of, read_file
from autotune.node.simulate import simulate
from autotune.node.steady import SteadyNode
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions

_HEADLINE = "total_token_throughput"
_CASES = (
    ("deepseek-ai/DeepSeek-V3.2", "h200", "sharegpt"),
    ("deepseek-ai/DeepSeek-R1", "h200", "sharegpt"),
    ("deepseek-ai/DeepSeek-R1", "mi300x", "sharegpt"),
    ("deepseek-ai/DeepSeek-V3.2", "h200", "long"),
    ("deepseek-ai/DeepSeek-V3.2", "h200", "generation"),
)
_WRONG = (
    "hidden:calibrated:v32",
    "hidden:calibrated:kernels-r1",
    "hidden:calibrated:kernels-v32",
    "contradicted",
)
_LAUNCHES = 40
_SLOW = "TRITON_ATTN"


def _rank(one: Floats, other: Floats) -> float:
    return (
        float(spearmanr(one, other)[0])
        if len(one) > 2 and np.ptp(one) > 0 and np.ptp(other) > 0
        else float("nan")
    )


def _error(predicted: Floats, true: Floats) -> float:
    """Median of |ln(predicted / true)|, percent."""
    return float(np.median(np.abs(np.log(predicted / true)))) * 100 if len(true) else float("nan")


def _against_the_simulation(model: str, hardware: str, name: str, sample: int) -> None:
    spec = build_spec(RunOptions(model=model, hardware=hardware, on="simulator", workloads=(name,)))
    prepared, workload = prepare(spec, library_of(spec)), load_workload(name)
    items = prepared.candidates.items
    begin = process_time()
    node = SteadyNode(spec.model, spec.hardware, spec.gpus, workload)
    fast = [
        node.predict(c.configuration.engine, c.engine_version, c.configuration.knobs) for c in items
    ]
    seconds = process_time() - begin
    crude = np.exp(
        roofline([c.configuration for c in items], spec.model, spec.hardware, spec.gpus, workload)
    )
    computed = len(
        {id(one.metrics) for one in fast}
    )  # candidates that agree in what is read share a result
    each = f"{1e3 * seconds / len(items):.2f} ms each, {1e3 * seconds / computed:.1f} ms per computed one"
    print(f"\n{model} on {hardware}, {name}: {len(items)} candidates in {seconds:.1f} s ({each})")
    generator = np.random.default_rng(0)
    for engine in prepared.spaces:
        mine = [i for i, c in enumerate(items) if c.configuration.engine == engine]
        full, ran, broke, spent = [], [], [], 0.0
        for i in generator.choice(mine, min(sample, len(mine)), replace=False).tolist():
            c = items[i]
            knobs, begin = c.configuration.knobs, process_time()
            outcome = simulate(
                ServerSetup(engine, c.engine_version, knobs, spec.model, spec.hardware, spec.gpus),
                workload,
                0,
            )
            spent += process_time() - begin
            (broke if outcome.failure else ran).append(i)
            full += [] if outcome.failure else [outcome.metrics]
        figures = {
            n: np.array([m[n] for m in full]) for n in (_HEADLINE, "mean_tpot_ms", "mean_ttft_ms")
        }
        predicted = {n: np.array([fast[i].metrics.get(n, np.nan) for i in ran]) for n in figures}
        best = set(np.argsort(-figures[_HEADLINE])[:10]) & set(
            np.argsort(-predicted[_HEADLINE])[:10]
        )
        latencies = ", ".join(
            f"{n} {_rank(predicted[n], figures[n]):.2f}" for n in ("mean_tpot_ms", "mean_ttft_ms")
        )
        odds = f"odds of the {len(broke)} that do not start {max((fast[i].starts for i in broke), default=0):.2f} at most"
        print(
            f"  {engine:13s} fast {_rank(predicted[_HEADLINE], figures[_HEADLINE]):.3f} ({latencies}), error "
            f"{_error(predicted[_HEADLINE], figures[_HEADLINE]):.1f} %, {len(best)} of the best 10; roofline "
            f"{_rank(crude[ran], figures[_HEADLINE]):.3f}, error {_error(crude[ran], figures[_HEADLINE]):.0f} %; "
            f"{odds}; simulated in {1e3 * spent / max(1, len(ran) + len(broke)):.0f} ms",
            flush=True,
        )


def _against_measurements(files: Sequence[Path]) -> None:
    found = [row for file in files for row in read_file(file).rows]
    groups: dict[tuple[str, str, str], list[MeasuredPoint]] = {}
    for point in points_of(found):
        if point.failure is None:
            groups.setdefault((point.model.id, point.gpu, point.workload.name), []).append(point)
    print(
        "\nagainst measured rows: points, Spearman of the fast prediction, of the roofline; median errors in %"
    )
    every: list[Floats] = []
    for name, points in groups.items():
        true = np.array([point.metrics[_HEADLINE] for point in points])
        predicted = np.array([_predictions(point) for point in points])
        every.append(np.column_stack([true, predicted]))
        if len(points) > 3:
            print(
                f"  {' '.join(name):60s} {len(points):3d}  {_rank(predicted[:, 0], true):.2f}  {_rank(predicted[:, 1], true):.2f}"
            )
    table = np.vstack(every)
    print(
        f"  all {len(table)} points: {_error(table[:, 1], table[:, 0]):.1f}, {_error(table[:, 2], table[:, 0]):.0f}"
    )


def _predictions(point: MeasuredPoint) -> tuple[float, float]:
    """Return the total token throughput of a measured point by the fast prediction and the roofline."""
    setup, workload = point.resolved.setup, point.workload
    node = SteadyNode(setup.model, setup.hardware, setup.gpus, workload)
    fast = node.predict(setup.engine, setup.version, setup.knobs).metrics[_HEADLINE]
    configurations = [point.resolved.effective.configuration]
    return fast, float(
        np.exp(roofline(configurations, setup.model, setup.hardware, setup.gpus, workload)[0])
    )


def _worse_half(landscape: Landscape) -> Bools:
    """Return the candidates with the slow attention kernel, where there is one, else those below
    the median."""
    items = landscape.candidates.items
    slow = np.array([i.configuration.knobs.get("attention_backend") == _SLOW for i in items])
    return slow if slow.any() else landscape.truth < np.nanmedian(landscape.truth)


def _against_launches(asked: argparse.Namespace) -> None:
    sources = Sources(asked.cache, tuple(asked.kernel_tables))
    reached, studies = 0, 0
    for name in asked.wrong or _WRONG:
        kind, _, base = name.partition(":")
        rows = []
        for seed in range(*asked.seeds):
            # Each seed has a hidden node of its own.
            landscape = (
                hidden(build(base, sources), seed) if kind == "hidden" else build(name, sources)
            )
            worse = _worse_half(landscape)
            run = play("ours", landscape, seed, (_LAUNCHES,))
            if run is None:
                raise SystemExit(f"--wrong {name}: it has no prior")
            qualities = [landscape.quality(place) for place in run.visited]
            served = run.recommended[_LAUNCHES]
            share = 0.0 if served is None else landscape.quality(served)
            rows.append((launches_to(0.98, qualities), int(worse[run.visited].sum()), share))
            print(f"  {name} {seed}: {rows[-1]}", flush=True)
        to, spent, shares = zip(*rows, strict=True)
        reached, studies = reached + sum(one is not None for one in to), studies + len(to)
        print(
            f"{name}: 98 % after {' '.join('-' if one is None else str(one) for one in to)}; on the"
            f" worse half {' '.join(map(str, spent))}, mean {np.mean(spent):.1f}; recommended"
            f" {np.mean(shares):.1%} of the best, least {min(shares):.1%}",
            flush=True,
        )
    print(f"98 % by {_LAUNCHES} launches: {reached} of {studies}")


def main() -> None:
    """Print the comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sample", type=int, default=60, help="candidates per engine that are simulated in full"
    )
    parser.add_argument(
        "--measured", type=Path, nargs="*", default=[], help="files of measured rows"
    )
    parser.add_argument("--wrong", nargs="*", metavar="NAME", help=f"default: {', '.join(_WRONG)}")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 8), metavar=("FROM", "TO"))
    parser.add_argument("--kernel-tables", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "autotune-search-benchmark"
    )
    asked = parser.parse_args()
    if asked.wrong is not None:
        _against_launches(asked)
        return
    for case in _CASES if asked.sample else ():
        _against_the_simulation(*case, asked.sample)
    if asked.measured:
        _against_measurements(asked.measured)


if __name__ == "__main__":
    main()
