"""What several nodes are worth: ``python benchmarks/tuner/parallel.py [--landscape NAME …] [--nodes 1 2
4] [--seeds N]``.

Studies of one and the same landscape (`landscapes.py`) on one node, on two and on four, a launch at
a time on each, in virtual time: a launch takes 300 s on the median, log-normal with a sigma of 0.2.
The product's own path, `Study` and `recommend`; the nodes differ by nothing but noise unless
``--slow`` makes the last one slower.

Told are, as median and quartiles over the seeds: launches until one is made that truly is 98 % of
the best, and the rounds (virtual time over 300 s) until it has ended; launches and rounds of the
whole study; the share of that time in which nodes were busy; and what the recommended configuration
falls short of the best.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from landscape import Landscape, Sources, command_of
from landscapes import build

from autotune.tuner.recommend import recommend
from autotune.tuner.search.study import Study
from autotune.tuner.trial import Launch, Trial

TYPICAL_S, SIGMA = 300.0, 0.2

_landscapes: dict[str, Landscape] = {}
"""What the forked processes inherit."""


@dataclass(frozen=True)
class Played:
    """One study: each launch's quality and end (s), the time it took (s), the share of it that
    nodes were busy."""

    qualities: list[float]
    ends: list[float]
    seconds: float
    busy: float
    short: float

    def reached(self, quality: float) -> tuple[float, float]:
        """Launches and rounds until one of this quality; infinite where there was none."""
        found = [
            (i + 1, end)
            for i, (q, end) in enumerate(zip(self.qualities, self.ends, strict=True))
            if q >= quality
        ]
        return (
            (found[0][0], min(end for _, end in found) / TYPICAL_S)
            if found
            else (math.inf, math.inf)
        )


def play(name: str, nodes: int, seed: int, launches: int, slow: float) -> Played:
    """One study."""
    landscape = _landscapes[name]
    spec = landscape.spec.model_copy(
        update={"launches": launches, "seed": seed, "noise": landscape.noise}
    )
    with (
        tempfile.TemporaryDirectory(prefix="autotune-parallel-") as folder,
        closing(
            Study(Path(folder), spec, landscape.candidates, command_of, landscape.priors)
        ) as study,
    ):
        ends, used, now = _run(study, landscape, seed, nodes, slow)
        found = recommend(
            spec, landscape.candidates, study.launches, (), study.stop_reason
        ).recommended
        tried = [row.trial.configuration.fingerprint for row in study.launches]
        qualities = [
            landscape.quality(landscape.candidates.position(fingerprint)) for fingerprint in tried
        ]
    served = (
        0.0
        if found is None
        else landscape.quality(landscape.candidates.position(found.fingerprint))
    )
    return Played(qualities, [ends[n] for n in sorted(ends)], now, used / (nodes * now), 1 - served)


def _run(
    study: Study, landscape: Landscape, seed: int, nodes: int, slow: float
) -> tuple[dict[int, float], float, float]:
    """The study in virtual time: when each launch ended, all launches' seconds, and when the last
    one ended."""
    free = [f"node{i}" for i in range(nodes)]
    running: list[tuple[float, int, str, Trial]] = []
    ends, used, now = dict[int, float](), 0.0, 0.0
    while True:
        while free and (trial := study.ask(free if nodes > 1 else ())) is not None:
            node = trial.node if trial.node in free else free[0]
            free.remove(node)
            took = TYPICAL_S * math.exp(
                SIGMA * np.random.default_rng([seed, trial.number]).standard_normal()
            )
            used += took
            heapq.heappush(running, (now + took, trial.number, node, trial))
        if not running:
            return ends, used, now
        now, number, node, trial = heapq.heappop(running)
        ends[number] = now
        free.append(node)
        study.tell(
            _on(
                landscape.launch(trial, seed),
                node,
                slow if node == f"node{nodes - 1}" and nodes > 1 else 0.0,
            )
        )


def _on(launch: Launch, node: str, slow: float) -> Launch:
    """The launch as this node makes it."""
    metrics = {
        workload: {
            name: value * (1 - slow) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for workload, row in launch.result.metrics.items()
    }
    return Launch(launch.trial, replace(launch.result, node=node, metrics=metrics))


def _told(values: Sequence[float], digits: int = 0) -> str:
    """Median and quartiles; of two neighbours the higher one counts."""
    chosen = sorted(values)
    places = [
        chosen[min(len(chosen) - 1, math.ceil(q * (len(chosen) - 1)))] for q in (0.5, 0.25, 0.75)
    ]
    middle, low, high = ("never" if math.isinf(p) else f"{p:.{digits}f}" for p in places)
    return f"{middle} ({low}–{high})"


def main() -> None:
    """Play and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--landscape", nargs="+", default=["calibrated:v32", "v32", "misplaced"], metavar="NAME"
    )
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--launches", type=int, default=40)
    parser.add_argument(
        "--slow", type=float, default=0.0, help="of the last of several nodes, e.g. 0.2"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "autotune-search-benchmark"
    )
    asked = parser.parse_args()
    sources = Sources(asked.cache, jobs=asked.jobs)
    _landscapes.update({name: build(name, sources) for name in asked.landscape})
    print(
        "| landscape | nodes | launches to 98 % | rounds to 98 % | launches | rounds | busy, % | falls short, % |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("fork")) as pool:
        for name in asked.landscape:
            for nodes in asked.nodes:
                tasks = [
                    (name, nodes, seed, asked.launches, asked.slow) for seed in range(asked.seeds)
                ]
                _row(name, nodes, list(pool.map(play, *zip(*tasks, strict=True))))


def _row(name: str, nodes: int, played: Sequence[Played]) -> None:
    reached = [p.reached(0.98) for p in played]
    cells = [
        _told([launches for launches, _ in reached]),
        _told([rounds for _, rounds in reached], 1),
        _told([len(p.qualities) for p in played]),
        _told([p.seconds / TYPICAL_S for p in played], 1),
        f"{100 * statistics.fmean(p.busy for p in played):.0f}",
        _told([100 * p.short for p in played], 1),
    ]
    print(f"| `{name}` | {nodes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
