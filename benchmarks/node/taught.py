"""What launches teach of the others: ``python benchmarks/node/taught.py TABLE …``.

Tables are those that ``autotune calibrate --data`` reads. Each row is predicted by the fast
prediction (`autotune.node.steady`) with figures that have not seen its model's family: one
Gauss-Newton step from the shipped ones. Of a group of rows one, two and three configurations (or
loads, in the last table) are launched at random; printed is the error of the others,
|predicted / measured - 1|: the median, the mean over groups of their medians, and the 90th
percentile of all. Differences are percent of the mean error of a group, with their 90 % interval
over groups.

- nothing: as predicted before;
- one factor: all are off as the launches are in the mean;
- by figure: an ensemble Kalman update, of draws of the figures and a common level, to what the
  launches measured: throughput alone, with TPOT, and with TTFT, where it is foreseen;
- search: the posterior of the search's own model (`autotune.tuner.search.gp`), without and with
  draws of the figures. It believes in no prior as well, so it is more careful.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from foresight import calibrations

from autotune.base.arrays import Floats
from autotune.engines import Candidate, CandidateSet, Configuration
from autotune.load.metrics.table import HEADLINE
from autotune.node.calibration import Calibration, drawn_factors, groups_of, packaged_calibration
from autotune.node.fit.reading import MeasuredPoint, points_of, read_file
from autotune.node.steady import SteadyNode
from autotune.tuner.search.gp.kernels import Encoding, Kernels, Prior, one_thread
from autotune.tuner.search.gp.posterior import Posterior

OWN = {HEADLINE: 0.1, "mean_tpot_ms": 0.4, "mean_ttft_ms": 1.0}
"""Standard deviation of ln(measured / predicted) of a launch's metric that no figure explains: near
what is best for each on these rows."""
LEVEL, DRAWS, LAUNCHES = 0.2, 256, (1, 2, 3)
LEAST = 4
"""Fewest configurations, or loads, of a group."""


@dataclass(frozen=True)
class Told:
    """A measured point: ln of its metrics as measured, as predicted, and with each draw."""

    point: MeasuredPoint
    measured: dict[str, float]
    predicted: dict[str, float]
    drawn: dict[str, Floats]

    @property
    def load(self) -> str:
        arrival = self.point.workload.points[-1].arrival
        return f"{self.point.workload.name} {arrival.concurrency} {arrival.request_rate}"

    @property
    def place(self) -> tuple[str, str]:
        return self.point.model.id, self.point.gpu

    @property
    def configuration(self) -> tuple[Hashable, ...]:
        resolved = self.point.resolved
        own = resolved.effective.fingerprint
        return own, resolved.context.version, resolved.context.gpus

    def off(self, metric: str) -> float:
        """ln(measured / predicted); NaN without either."""
        return self.measured.get(metric, math.nan) - self.predicted.get(metric, math.nan)


def told(points: Sequence[MeasuredPoint], fits: Sequence[Calibration]) -> list[Told]:
    """Predict each point with the draws of its fit, the same draws of a factor for all engines."""
    found = []
    members = [groups_of(point.resolved.setup) for point in points]
    engines = list({tuple(sorted(one.items())): one for one in members}.values())
    offsets = {id(fit): drawn_factors(fit, engines, DRAWS, 20) for fit in fits}
    for point, fit in zip(points, fits, strict=True):
        setup = point.resolved.setup
        node = SteadyNode(
            setup.model, setup.hardware, setup.gpus, point.workload, fit, offsets[id(fit)]
        )
        fast = node.predict(setup.engine, setup.version, setup.knobs)
        logs = [
            {name: math.log(its[name]) for name in OWN if its.get(name, 0.0) > 0}
            for its in (point.metrics, fast.metrics)
        ]
        if HEADLINE in logs[1]:
            found.append(Told(point, *logs, dict(fast.drawn)))
    return found


Teach = Callable[[Sequence[Told], Sequence[Told]], Floats]
"""Launched points and others to the others' ln(throughput)."""


def _before(others: Sequence[Told]) -> Floats:
    return np.array([one.predicted[HEADLINE] for one in others])


def one_factor(launched: Sequence[Told], others: Sequence[Told]) -> Floats:
    """Move all by what the launches are off in the mean."""
    mean: Floats = _before(others) + np.mean([one.off(HEADLINE) for one in launched])
    return mean


def by_figure(*metrics: str) -> Teach:
    """Make the Kalman update to these metrics of the launches."""

    def teach(launched: Sequence[Told], others: Sequence[Told]) -> Floats:
        rows = [
            (one, name)
            for one in launched
            for name in metrics
            if name in one.drawn and math.isfinite(one.off(name))
        ]
        signs = np.array([1.0 if name == HEADLINE else -1.0 for _, name in rows])
        moved = np.array([one.drawn[name] - one.drawn[name].mean() for one, name in rows])
        theirs = np.array([one.drawn[HEADLINE] - one.drawn[HEADLINE].mean() for one in others])
        covariance = moved @ moved.T / DRAWS + LEVEL**2 * np.outer(signs, signs)
        covariance += np.diag([OWN[name] ** 2 for _, name in rows])
        cross = theirs @ moved.T / DRAWS + LEVEL**2 * signs
        off = np.array([one.off(name) for one, name in rows])
        mean: Floats = _before(others) + cross @ np.linalg.solve(covariance, off)
        return mean

    return teach


def search(figures: bool) -> Teach:
    """Make the prediction by the search's model; without figures it learns a common level."""

    def teach(launched: Sequence[Told], others: Sequence[Told]) -> Floats:
        both = [*launched, *others]
        items = [
            Candidate(
                Configuration(
                    one.point.engine,
                    {**one.point.resolved.setup.knobs, "x_gpus": one.point.resolved.context.gpus},
                ),
                one.point.resolved.context.version,
            )
            for one in both
        ]
        draws = np.array([one.drawn[HEADLINE] for one in both]).T[:32]
        prior = Prior("simulator", _before(both), draws=draws if figures else None)
        kernels = Kernels(Encoding(CandidateSet(items, 0)), [prior])
        scores = [one.measured[HEADLINE] for one in launched]
        with one_thread():
            model = Posterior(kernels, range(len(launched)), scores)
            return model.mean(np.arange(len(launched), len(both)))

    return teach


TAUGHT: dict[str, Teach] = {
    "nothing": lambda _, others: _before(others),
    "one factor": one_factor,
    "by figure: throughput": by_figure(HEADLINE),
    "by figure: and TPOT": by_figure(HEADLINE, "mean_tpot_ms"),
    "by figure: and TTFT": by_figure(*OWN),
}
SEARCH = {"search, one level": search(figures=False), "search, by figure": search(figures=True)}


def errors(
    groups: Sequence[Sequence[Told]],
    apart: Callable[[Told], Hashable],
    ways: dict[str, Teach],
    seeds: int,
) -> dict[tuple[str, int], list[Floats]]:
    """Return of each way and number of launches the errors of each group's other points."""
    found: dict[tuple[str, int], list[Floats]] = defaultdict(list)
    for number, group in enumerate(groups):
        parts: dict[tuple[str, int], list[Floats]] = defaultdict(list)
        for seed in range(seeds):
            order = np.random.default_rng([number, seed]).permutation(len(group))
            first = {apart(group[place]): group[place] for place in order[::-1]}
            launched = list(first.values())[::-1][: max(LAUNCHES)]
            kinds = {apart(one) for one in launched}
            others = [one for one in group if apart(one) not in kinds]
            measured = np.array([one.measured[HEADLINE] for one in others])
            for count in LAUNCHES:
                for name, way in ways.items():
                    off = way(launched[:count], others) - measured
                    parts[name, count].append(np.abs(np.expm1(off)))
        for key, several in parts.items():
            found[key].append(np.concatenate(several))
    return found


def table(
    title: str, rows: Sequence[Told], by: Callable[[Told], Hashable],
    apart: Callable[[Told], Hashable], seeds: int, searched: bool = False, engines: int = 1,
) -> None:  # fmt: skip
    """Print the errors of one kind of groups."""
    named: dict[Hashable, list[Told]] = defaultdict(list)
    for row in rows:
        named[by(row)].append(row)
    groups = [
        group
        for group in named.values()
        if len({apart(one) for one in group}) >= LEAST
        and len({one.point.engine for one in group}) >= engines
    ]
    if not groups:
        return
    found = errors(groups, apart, TAUGHT | SEARCH if searched else TAUGHT, seeds)
    others = sum(map(len, found["nothing", 1])) // seeds
    print(f"\n{title}: {len(groups)} groups, {others} other points a draw, {seeds} draws")
    print(f"{'taught':24s} | after 1: median, groups, p90 | after 2 | after 3 | against one factor")
    for name in dict.fromkeys(name for name, _ in found):
        cells = []
        for count in LAUNCHES:
            own = found[name, count]
            every = np.concatenate(own)
            groupwise = np.mean([np.median(one) for one in own])
            cells.append(f"{np.median(every):4.0%} {groupwise:4.0%} {np.quantile(every, 0.9):4.0%}")
        against = "search, one level" if name.startswith("search") else "one factor"
        changes = []
        for count in LAUNCHES:
            pairs = zip(found[name, count], found[against, count], strict=True)
            gains = np.array([100 * (own.mean() - other.mean()) for own, other in pairs])
            dice = np.random.default_rng(0)
            means = dice.choice(gains, (2000, len(gains))).mean(axis=1)
            low, high = np.quantile(means, [0.05, 0.95])
            changes.append(f"{gains.mean():+.1f} [{low:+.1f}, {high:+.1f}]")
        print(f"{name:24s} | {' | '.join(cells)} | {'  '.join(changes)}")


def main() -> None:
    """Predict, teach and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=6, help="draws of launches, of each group")
    asked = parser.parse_args()
    rows = [row for path in asked.tables for row in read_file(path).rows]
    points = [point for point in points_of(rows) if point.failure is None]
    found = told(points, calibrations(points, packaged_calibration(), "model"))

    def configuration(one: Told) -> Hashable:
        return one.configuration

    def engine(one: Told) -> Hashable:
        return one.place, one.point.engine

    def load(one: Told) -> Hashable:
        return one.place, one.point.engine, one.load

    table("Other configurations, same load", found, load, configuration, asked.seeds, True)
    table(
        "Other configurations and engines, same load", found,
        lambda one: (one.place, one.load), configuration, asked.seeds, True, 2,
    )  # fmt: skip
    table("Other configurations, any load", found, engine, configuration, asked.seeds)
    table(
        "Other loads of one configuration", found,
        lambda one: (one.place, one.configuration), lambda one: one.load, asked.seeds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
