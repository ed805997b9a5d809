"""What it is worth to choose launches by the minute: ``python benchmarks/tuner/minutes.py [--seeds N]
[--spread S]``.

The landscape is physics with every figure drawn away from the packaged ones
(`landscapes_simulated.drawn_away`), by the fast prediction, over some candidates of the main job;
the prior is physics with nothing fitted. A launch takes the predicted seconds, times a log-normal
factor of its engine and one of its engine's layout, of which the search knows nothing; one that
fails takes a third of that. The sampler alone, in virtual time: minutes and launches until one is
made that truly is 98 % of the best, without `--hours` and with it. Each seed draws its own truth
and times. What was measured, also of minutes that are learned, stands in docs/search.md, "By the
minute".
"""

from __future__ import annotations

import argparse
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context

import numpy as np
from landscape import layout_of
from landscapes_simulated import SIMULATED, _prepared, drawn_away

from autotune.engines.enumeration import CandidateSet
from autotune.load.metrics.table import HEADLINE
from autotune.load.workloads import load_workload
from autotune.node.steady import SteadyNode
from autotune.tuner.prepare.candidates import Prepared
from autotune.tuner.search.acquisition import suggest
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels
from autotune.tuner.search.history import History
from autotune.tuner.search.priors import priors_of
from autotune.tuner.search.priors.simulated import _launch_s, _predicted
from autotune.tuner.trial import Role

CANDIDATES, MOST, NOISE = 400, 40, 0.03
ARMS = (None, 1000.0)
"""Hours: none, and a budget that is never used up, so that the number of launches is the same."""


@cache
def case(name: str) -> Prepared:
    """The candidates of a study, once for all seeds."""
    return _prepared(SIMULATED[name])


def thinned(prepared: Prepared, seed: int) -> Prepared:
    """The baseline, the defaults and starts, and some others by lot."""
    whole = prepared.candidates
    kept = {whole.baseline, *whole.defaults, *whole.starts}
    kept |= set(np.random.default_rng(seed).choice(len(whole), CANDIDATES, replace=False).tolist())
    order = sorted(kept)
    place = {position: i for i, position in enumerate(order)}
    named = (tuple(place[p] for p in some) for some in (whole.defaults, whole.starts))
    items = tuple(whole.items[p] for p in order)
    return replace(
        prepared,
        candidates=CandidateSet(items, place[whole.baseline], *named, whole.monotone_memory),
    )


def factors(prepared: Prepared, seed: int, spread: float) -> np.ndarray:
    """How many times as long as predicted each candidate's launch takes, shape
    ``(candidates,)``."""
    generator, drawn = np.random.default_rng([seed, 1]), dict[object, float]()
    found = []
    for item in prepared.candidates.items:
        layout = layout_of(item.configuration)
        for group in (item.configuration.engine, layout):
            if group not in drawn:
                drawn[group] = math.exp(spread * float(generator.standard_normal()))
        found.append(drawn[item.configuration.engine] * drawn[layout])
    return np.array(found)


def play(name: str, seed: int, spread: float) -> list[tuple[float, float]]:
    """Minutes and launches to 98 % of the best, without hours and with them; infinite where it was
    not found."""
    prepared = thinned(case(name), seed)
    spec = prepared.spec.model_copy(update={"seed": seed})
    load = load_workload(spec.workloads[0], prepared.library)
    node = SteadyNode(spec.model, spec.hardware, spec.gpus, load, drawn_away(100 + seed))
    rows = [_predicted(node, item) for item in prepared.candidates.items]
    truth = np.array(
        [math.log(row.metrics.get(HEADLINE, 0.0) or 1e-9) if row else -20.0 for row in rows]
    )
    starts = np.array([row is not None and row.starts >= 0.5 for row in rows]) & (truth > 0)
    best = float(truth[starts].max())
    usual = np.array([_launch_s([row]) for row in rows])
    usual = np.where(np.isfinite(usual), usual, float(np.nanmedian(usual)))
    seconds = usual * factors(prepared, seed, spread) * np.where(starts, 1.0, 0.33)
    kernels = Kernels(Encoding(prepared.candidates), priors_of(prepared))
    results = []
    for hours in ARMS:
        history = History(spec.model_copy(update={"hours": hours}), prepared.candidates, ())
        reached, spent_s = (math.inf, math.inf), 0.0
        for number in range(MOST):
            chosen = suggest(kernels, history, number) if number else None
            position = chosen.position if chosen else prepared.candidates.baseline
            took_s = float(
                seconds[position]
                * math.exp(0.05 * np.random.default_rng([seed, number]).standard_normal())
            )
            spent_s += took_s
            if starts[position] and truth[position] >= best + math.log(0.98):
                reached = spent_s / 60, number + 1
                break
            noise = NOISE * float(np.random.default_rng([seed, position]).standard_normal())
            score = float(truth[position]) + noise if starts[position] else None
            entry = Entry(
                number,
                Role.SEARCH,
                position,
                score,
                violations={},
                broke=score is None,
                seconds=took_s,
            )
            history = replace(history, entries=(*history.entries, entry))
        results.append(reached)
    return results


def main() -> None:
    """Play and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--landscape", nargs="+", default=["v32", "r1"], choices=sorted(SIMULATED))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--spread",
        type=float,
        default=0.4,
        help="of ln(seconds / predicted), of engine and of layout",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    asked = parser.parse_args()
    print(
        "| landscape | chosen | minutes to 98 %, ascending | median | launches, median |\n|---|---|---|---|---|"
    )
    for name in asked.landscape:
        case(name)
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("fork")) as pool:
        for name in asked.landscape:
            tasks = [(name, seed, asked.spread) for seed in range(asked.seeds)]
            runs = list(pool.map(play, *zip(*tasks, strict=True)))
            for arm, words in enumerate(("by the launch", "by the minute")):
                minutes = sorted(run[arm][0] for run in runs)
                launches = statistics.median_high(run[arm][1] for run in runs)
                told = " ".join(f"{value:.0f}" for value in minutes)
                print(
                    f"| `{name}` | {words} | {told} | {statistics.median_high(minutes):.0f} | {launches:.0f} |"
                )
            wins = sum(by_minute[0] < by_launch[0] for by_launch, by_minute in runs)
            losses = sum(by_minute[0] > by_launch[0] for by_launch, by_minute in runs)
            print(
                f"`{name}`: by the minute is sooner in {wins} of {len(runs)} and later in {losses}",
                flush=True,
            )


if __name__ == "__main__":
    main()
