"""How often a study decides rightly: ``python benchmarks/tuner/decisions.py [--only NAME] [--studies N]
[--jobs 2]``.

Every line is so many made-up studies with log-normal noise per launch, played by the shipped plan
and judged by the shipped verdict; nothing is launched. The true gain of every configuration is
known, so is what a study should say.

- ``equal``: all configurations are the same. Stated: `better` in at most 2.5 %. With two
  configurations, and with 36 that the shipped sampler chooses from.
- ``gain``: one configuration is better than the baseline by so much: how many studies say `better`.
  Of two (the budget is the baseline, the challenger and so many launches more), and of 24.
- ``small space``: 16 configurations, all of which 40 launches can try, equal or one of them truly
  better by 10 %: how many studies find it, and recommend it as `better`.
- ``spread``: 36 configurations whose true gains are spread about the baseline's by 5 %, or by 20 %
  in the sampler's own terms: how many of the 95 % intervals, of the finalist and of the winners
  called better, cover its true gain; and how much the recommended configuration falls short of the
  best (regret).
- ``drift``: equal configurations on a node that slows down, or gets faster, by so much over the
  whole budget: how many studies say so, or `better`.

Rates come with their 95 % intervals (Wilson). Two candidates need no sampler: there is one to try.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.library import Library
from autotune.tuner.search.acquisition import Suggestion
from autotune.tuner.search.decide.verdict import Judgement, judge
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels, one_thread
from autotune.tuner.search.history import History
from autotune.tuner.search.plan import Plan, Step
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.study.recommendation import Verdict
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Role

Truth = Callable[[np.random.Generator, CandidateSet], np.ndarray]
"""Draws the natural logarithm of every configuration's throughput, shape ``(candidates,)``; the
baseline is 0."""


@dataclass(frozen=True)
class Scenario:
    """What is played.

    Attributes:
        candidates: how many configurations.
        noise: standard deviation of the logarithm of one launch.
        drift: change of the logarithm of everything from the first to the last launch of the
            budget.
        studies: how many are played.
    """

    name: str
    candidates: int
    launches: int
    noise: float
    truth: Truth
    drift: float = 0.0
    studies: int = 400


@dataclass(frozen=True)
class Played:
    """One study's end: truths, verdict, launches made, those of the search that repeated a
    leader."""

    truth: np.ndarray
    judgement: Judgement
    launches: int
    repeats: int


def equal(_: np.random.Generator, candidates: CandidateSet) -> np.ndarray:
    """No configuration differs."""
    return np.zeros(len(candidates))


def one_better(gain: float) -> Truth:
    """One configuration beats the baseline; the rest equal it."""

    def draw(rng: np.random.Generator, candidates: CandidateSet) -> np.ndarray:
        truth = np.zeros(len(candidates))
        truth[rng.integers(1, len(candidates))] = math.log1p(gain)
        return truth

    return draw


def independent(sd: float) -> Truth:
    """True gains that have nothing to do with the knobs."""

    def draw(rng: np.random.Generator, candidates: CandidateSet) -> np.ndarray:
        truth = sd * rng.standard_normal(len(candidates))
        return truth - truth[candidates.baseline]

    return draw


def by_knobs(sd: float) -> Truth:
    """Every value of every knob adds something, and a fifth is interaction."""

    def draw(rng: np.random.Generator, candidates: CandidateSet) -> np.ndarray:
        codes = Encoding(candidates).codes
        truth = 0.2 * sd * rng.standard_normal(len(candidates))
        for column in codes.T:
            truth += sd / math.sqrt(codes.shape[1]) * rng.standard_normal(column.max() + 1)[column]
        return np.asarray(truth - truth[candidates.baseline])

    return draw


def space(count: int) -> CandidateSet:
    """Configurations of one engine: the first of a small grid of 36."""
    sizes, batches, layouts, kinds = (2048, 8192, 16384), (64, 256, 1024), (1, 8), ("auto", "fp8")
    knobs = ("max_batched_tokens", "max_running_requests", "data_parallel", "kv_cache_dtype")
    grid = [
        dict(zip(knobs, row, strict=True))
        for row in itertools.product(sizes, batches, layouts, kinds)
    ]
    return CandidateSet(
        tuple(Candidate(Configuration("vllm", row), "0.11") for row in grid[:count]), 0, (0,)
    )


@cache
def prepared(count: int, launches: int) -> tuple[CandidateSet, StudySpec, Kernels]:
    """What studies of one size share."""
    candidates = space(count)
    return candidates, study_spec(launches), Kernels(Encoding(candidates))


def study_spec(launches: int) -> StudySpec:
    """A study of so many launches; its model and node are not used."""
    library = Library()
    return StudySpec(
        study="decisions",
        model=library.model("deepseek-ai/DeepSeek-R1"),
        hardware=library.node("h200"),
        gpus=8,
        engines=(EngineChoice(name="vllm", version="0.11"),),
        workloads=("chat",),
        launches=launches,
    )


class OneChallenger(CandidateSampler):
    """Suggests the candidate beside the baseline, once."""

    def suggest(self, history: History) -> Suggestion | None:
        return None if history.spent(1) else Suggestion(1, None)


def play(index: int, seed: int) -> Played:
    """One study of a scenario from its first launch to its verdict."""
    scenario = scenarios()[index]
    candidates, spec, kernels = prepared(scenario.candidates, scenario.launches)
    rng = np.random.default_rng(seed)
    truth = scenario.truth(rng, candidates)

    sampler = (
        OneChallenger(kernels) if len(candidates) == 2 else CandidateSampler(kernels, seed=seed)
    )
    plan, history = (
        Plan(kernels, sampler),
        History(spec.model_copy(update={"seed": seed}), candidates, ()),
    )
    with one_thread():
        while isinstance(step := plan.next(history), Step):
            number = len(history)
            position = step.position
            score = truth[position] + scenario.drift * number / scenario.launches
            entry = Entry(
                number,
                step.role,
                position,
                float(score + scenario.noise * rng.standard_normal()),
                violations={},
            )
            history = replace(history, entries=(*history.entries, entry))
    repeats = sum(e.role is Role.SEARCH for e in history) - len(
        {e.position for e in history.of_role(Role.SEARCH)}
    )
    return Played(truth, judge(history), len(history), repeats)


def rate(hits: int, of: int) -> str:
    """A rate and its 95 % interval (Wilson, 1927)."""
    if not of:
        return "none"
    z = 1.96
    middle, scale = (hits + z**2 / 2) / (of + z**2), 1 / (of + z**2)
    half = z * scale * math.sqrt(hits * (of - hits) / of + z**2 / 4)
    return f"{100 * hits / of:5.1f} % of {of} ({100 * (middle - half):.1f} to {100 * (middle + half):.1f})"


def covered(played: Sequence[Played], better: bool) -> str:
    """Of the finalists' intervals, or of what is recommended as better, how many cover the
    truth."""
    rows = []
    for p in played:
        found = p.judgement
        gain, position = (
            (found.gain, found.winner) if better else (found.challenger_gain, found.challenger)
        )
        if (
            gain is not None
            and gain.interval is not None
            and (not better or found.verdict is Verdict.BETTER)
        ):
            rows.append((gain.interval, p.truth[position]))
    return rate(sum(interval[0] <= value <= interval[1] for interval, value in rows), len(rows))


def report(scenario: Scenario, played: Sequence[Played], seconds: float) -> None:
    """One block."""
    better = sum(p.judgement.verdict is Verdict.BETTER for p in played)
    regrets = np.array([p.truth.max() - p.truth[p.judgement.winner] for p in played])
    launches = np.array([p.launches for p in played])
    known = sum(p.judgement.change is not None for p in played)
    print(
        f"{scenario.name}: {scenario.candidates} candidates, budget {scenario.launches}, noise {scenario.noise:.0%}"
    )
    print(f"  better     {rate(better, len(played))}")
    best = [p.judgement.winner == p.truth.argmax() for p in played]
    found = sum(
        hit and p.judgement.verdict is Verdict.BETTER for hit, p in zip(best, played, strict=True)
    )
    print(f"  found      {rate(found, len(played))}")
    print(f"  covered    {covered(played, False)}; of better {covered(played, True)}")
    print(
        f"  regret     mean {100 * regrets.mean():.2f} %, 90th percentile {100 * np.quantile(regrets, 0.9):.2f} %"
    )
    print(f"  drift      {rate(known, len(played))}")
    repeats = np.mean([p.repeats for p in played])
    print(
        f"  launches   mean {launches.mean():.1f}, of them repeats in the search {repeats:.1f}; {seconds:.0f} s",
        flush=True,
    )


def scenarios() -> list[Scenario]:
    """All that is played."""
    found = []
    for noise in (0.03, 0.1):
        found += [Scenario("equal", n, 30, noise, equal) for n in (2, 36)]
    found += [
        Scenario("gain +5 %", 2, 22, 0.03, one_better(0.05)),
        Scenario("gain +10 %", 2, 10, 0.03, one_better(0.10)),
        Scenario("gain +5 %", 24, 30, 0.03, one_better(0.05)),
        Scenario("gain +10 %", 24, 30, 0.03, one_better(0.10)),
    ]
    for noise in (0.03, 0.05, 0.1):
        found.append(Scenario("true +5 %", 2, 30, noise, one_better(0.05)))
        found.append(Scenario("true +11 %", 2, 30, noise, one_better(0.11)))
    for noise, launches in ((0.03, 30), (0.05, 30), (0.1, 30), (0.03, 12)):
        found.append(Scenario("spread 5 %", 36, launches, noise, independent(0.05), studies=1000))
        found.append(Scenario("spread 20 %, by knobs", 36, launches, noise, by_knobs(0.2)))
    found += [
        Scenario(f"drift {d:+.0%}", n, 30, 0.03, equal, d)
        for n, d in ((2, -0.1), (2, -0.3), (2, 0.1), (2, 0.3))
    ]
    found.append(Scenario("small space, +10 %", 16, 40, 0.03, one_better(0.10), studies=100))
    found += [Scenario("small space, equal", 16, 40, noise, equal) for noise in (0.03, 0.1)]
    return found


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, help="of each scenario; else 400, 1000 for coverage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="scenarios whose name begins so")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for index, scenario in enumerate(scenarios()):
            if not scenario.name.startswith(chosen.only):
                continue
            count = chosen.studies or scenario.studies
            seeds = [
                int(s.generate_state(1)[0])
                for s in np.random.SeedSequence([chosen.seed, index]).spawn(count)
            ]
            begin = time.perf_counter()
            played = list(pool.map(play, [index] * count, seeds, chunksize=5))
            report(scenario, played, time.perf_counter() - begin)


if __name__ == "__main__":
    main()
