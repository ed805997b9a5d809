"""How often what a study says is true: ``python benchmarks/tuner/sentences.py [--landscape NAME …]
[--noise 0.03 …]``.

Whole studies are played by the shipped plan and judged by the shipped verdict; nothing is launched.
Every study has a part of a landscape (`landscapes.py`) of its own: candidates drawn by lot, and as
the baseline the one below which the best is nearest to 3, 6, 11, 25, 60, 120 or 250 % better, in
turn. The truth is known, so these are counted:

- ``regret``: how often something is better than what is recommended by more than is stated with
  odds of 0.9.
- ``gain``: how many of the 95 % intervals hold the true gain: of finalists, and of what is
  recommended as `better`.
- ``false``: how many `better` are of something that truly is no better than the baseline.

Rates come with their 95 % intervals (Wilson). Landscapes whose name ends in ``-bare`` are searched
without a prior.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from decisions import rate
from landscape import Landscape, Sources
from landscapes import build

from autotune.engines.enumeration import CandidateSet
from autotune.tuner.search.acquisition import model_of
from autotune.tuner.search.decide.verdict import Gain, judge
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.explain import regret
from autotune.tuner.search.gp.kernels import Encoding, Kernels, Prior, one_thread
from autotune.tuner.search.history import History
from autotune.tuner.search.plan import Plan, Step
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.study.recommendation import Verdict
from autotune.tuner.trial import Role

GAINS = (0.03, 0.06, 0.11, 0.25, 0.6, 1.2, 2.5)
"""Of the best over the baseline, study by study."""

_landscapes: dict[str, Landscape] = {}
"""What the forked processes inherit."""


@dataclass(frozen=True)
class Told:
    """What one study says, and the truth; gains and regrets are logarithms, intervals pairs of
    them.

    Attributes:
        stated: the regret with odds of 0.9; None where none is learned.
        short: what the recommended one truly falls short of the best.
        finalist, recommended: interval and true gain of the finalist, and of what is recommended as
            `better`.
        finals: launches made in the finals.
    """

    landscape: str
    noise: float
    seed: int
    verdict: str
    launches: int
    finals: int
    stated: float | None
    short: float
    finalist: tuple[float, float, float] | None
    recommended: tuple[float, float, float] | None


def part_of(landscape: Landscape, size: int, seed: int) -> Landscape:
    """Some of a landscape's candidates, with a baseline that runs; both drawn by the seed."""
    generator = np.random.default_rng([seed, 17])
    rows = np.sort(generator.permutation(len(landscape.candidates))[:size])
    truth = landscape.truth[rows]
    short = np.log(np.nanmax(truth) / truth) - math.log1p(GAINS[seed % len(GAINS)])
    baseline = int(np.nanargmin(np.abs(short)))
    items = tuple(landscape.candidates.items[row] for row in rows)
    candidates = CandidateSet(items, baseline, monotone_memory=landscape.candidates.monotone_memory)
    priors = tuple(_part_of_prior(prior, rows) for prior in landscape.priors)
    return replace(landscape, candidates=candidates, truth=truth, priors=priors, failures=None)


def _part_of_prior(prior: Prior, rows: np.ndarray) -> Prior:
    changes: dict[str, Any] = {}
    for one in fields(Prior):
        value = getattr(prior, one.name)
        if isinstance(value, np.ndarray):
            changes[one.name] = value[..., rows]
        elif one.name == "doubts" and value is not None:
            changes[one.name] = tuple(value[row] for row in rows)
    return replace(prior, **changes)


def play(task: tuple[str, float, int, int, int]) -> Told:
    """One study, from its first launch to what it says."""
    name, noise, seed, launches, size = task
    landscape = part_of(_landscapes[name], size, seed)
    truth, candidates = np.log(landscape.truth), landscape.candidates
    spec = landscape.spec.model_copy(update={"launches": launches, "seed": seed, "noise": noise})
    generator = np.random.default_rng([seed, 18])
    with one_thread():
        kernels = Kernels(Encoding(candidates), landscape.priors)
        plan, history = (
            Plan(kernels, CandidateSampler(kernels, seed=seed)),
            History(spec, candidates, ()),
        )
        while isinstance(step := plan.next(history), Step):
            score = float(truth[step.position] + noise * generator.standard_normal())
            runs = math.isfinite(score)
            cause = "" if runs else f"crashed: {step.position % 7}"
            entry = Entry(
                len(history),
                step.role,
                step.position,
                score if runs else None,
                None,
                {},
                not runs,
                cause=cause,
            )
            history = replace(history, entries=(*history.entries, entry))
        judgement = judge(history)
        winner = candidates.baseline if judgement.winner is None else judgement.winner
        stated = regret(history, model_of(kernels, history), kernels, winner)
    base = candidates.baseline
    better = judgement.verdict is Verdict.BETTER
    return Told(
        name,
        noise,
        seed,
        judgement.verdict.value,
        len(history),
        len(history.of_role(Role.FINAL)),
        None if stated is None else math.log1p(stated.percent / 100),
        float(np.nanmax(truth) - truth[winner]),
        _beside_truth(judgement.challenger_gain, truth, judgement.challenger, base),
        _beside_truth(judgement.gain, truth, judgement.winner, base) if better else None,
    )


def _beside_truth(
    gain: Gain | None, truth: np.ndarray, position: int | None, base: int
) -> tuple[float, float, float] | None:
    if gain is None or gain.interval is None or position is None:
        return None
    return (*gain.interval, float(truth[position] - truth[base]))


def _counted(found: Sequence[Told]) -> Iterator[str]:
    """Lines of one block."""
    stated = [one for one in found if one.stated is not None]
    above = sum(one.short > float(one.stated or 0) + 1e-9 for one in stated)
    medians = [
        100 * math.expm1(float(np.median(v or [math.nan])))
        for v in ([s.stated or 0 for s in stated], [s.short for s in found])
    ]
    yield f"  regret exceeded {rate(above, len(stated))}; median stated {medians[0]:.1f} %, true {medians[1]:.1f} %"
    for words, rows in (
        ("finalists", [one.finalist for one in found if one.finalist]),
        ("of better", [one.recommended for one in found if one.recommended]),
    ):
        held = sum(low - 1e-9 <= gain <= high + 1e-9 for low, high, gain in rows)
        below = sum(gain < low - 1e-9 for low, _, gain in rows)
        yield f"  gain held, {words} {rate(held, len(rows))}; {below} below"
    better = [one for one in found if one.recommended]
    false = sum(one.recommended is not None and one.recommended[2] <= 1e-9 for one in better)
    yield f"  better {rate(len(better), len(found))}, false {rate(false, len(found))}"
    launches, finals = (
        np.mean([getattr(one, name) for one in found]) for name in ("launches", "finals")
    )
    yield f"  launches {launches:.1f}, of the finals {finals:.1f}; recommended {medians[1]:.1f} % short"


def main() -> None:
    """Play, print, and keep what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--landscape",
        nargs="+",
        default=["needle", "toy"],
        metavar="NAME",
        help="also with -bare behind the name",
    )
    add(
        "--noise",
        nargs="+",
        type=float,
        default=[0.03, 0.05, 0.1],
        help="standard deviations of a launch",
    )
    add("--seeds", type=int, default=10, help="of each landscape and noise")
    add("--first", type=int, default=0, help="the first seed")
    add("--launches", type=int, default=40)
    add("--size", type=int, default=600, help="candidates of a study")
    add("--jobs", type=int, default=1, help="processes")
    add("--kernel-tables", type=Path, nargs="+", default=[], metavar="FILE")
    add("--tuning-tables", type=Path, metavar="FOLDER", help="for landscapes such as tuning:gemm")
    add("--cache", type=Path, default=Path(tempfile.gettempdir()) / "autotune-search-benchmark")
    add("--json", type=Path, metavar="FILE", help="every study")
    asked = parser.parse_args()
    sources = Sources(
        asked.cache, tuple(asked.kernel_tables), None, asked.jobs, asked.tuning_tables
    )
    for name in asked.landscape:
        found = build(name.removesuffix("-bare"), sources)
        _landscapes[name] = found.without_prior() if name.endswith("-bare") else found
    seeds = range(asked.first, asked.first + asked.seeds)
    told: list[Told] = []
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("fork")) as pool:
        for name in asked.landscape:
            for noise in asked.noise:
                began = time.perf_counter()
                tasks = [(name, noise, seed, asked.launches, asked.size) for seed in seeds]
                own = list(pool.map(play, tasks))
                told += own
                print(
                    f"{name}, noise {noise:.0%}, {time.perf_counter() - began:.0f} s",
                    *_counted(own),
                    sep="\n",
                    flush=True,
                )
    print("all", *_counted(told), sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in told], indent=1) + "\n")


if __name__ == "__main__":
    main()
