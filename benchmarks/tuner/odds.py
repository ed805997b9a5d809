"""Whether odds are frequencies, and intervals hold what they say: ``python benchmarks/tuner/odds.py``.

**Settings.** Small studies are played by the shipped plan and judged by the shipped verdict;
nothing is launched. The truth of each is drawn from the model's own prior (``own``), or is a sum
over knobs with some interaction (``knobs``). Of each setting of the recommended command the report
states the odds that it adds more than 0.5 %, and a 95 % interval. By bins of the odds: how many
settings truly add so much, with the 95 % interval of that rate (Wilson).

**Nodes.** The gain of a command over another one, by simulated launches, has a 90 % interval on a
real node. The nodes are drawn from the spread of the calibrated figures, and the launches from the
usual noise.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context

import numpy as np
from decisions import by_knobs, rate, study_spec

from autotune.base.arrays import Floats
from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.load.metrics.table import HEADLINE
from autotune.load.workloads import load_workload
from autotune.node.calibration import ServerSetup, drawn_factors, groups_of, packaged_calibration
from autotune.node.prediction_intervals import gain_interval90
from autotune.node.steady import SteadyNode
from autotune.tuner.search.acquisition import model_of
from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.explain import contributions
from autotune.tuner.search.gp.kernels import Encoding, Kernels, one_thread
from autotune.tuner.search.gp.posterior import THOROUGH, HyperPrior, _Tables
from autotune.tuner.search.history import History
from autotune.tuner.search.plan import Plan, Step
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.search.spread import Effect, Spread, mean

BINS = {0.6: (0.5, 0.675), 0.75: (0.675, 0.825), 0.9: (0.825, 0.925), 0.95: (0.925, 0.985)}
"""Odds about which settings are counted together."""
LEAST = 0.005
BUDGETS = (6, 8, 12, 20)
KNOBS = {
    "max_batched_tokens": (2048, 8192, 16384),
    "max_running_requests": (64, 256, 1024),
    "data_parallel": (1, 8),
    "kv_cache_dtype": ("auto", "fp8"),
    "chunked_prefill": (0, 1),
    "torch_compile": (0, 1),
}


@dataclass(frozen=True)
class Stated:
    """What a study says of one setting, in percent, and what it truly adds, a logarithm."""

    odds: float
    ci95: tuple[float, float]
    truth: float


@cache
def prepared() -> tuple[CandidateSet, Kernels]:
    """144 configurations of one engine; the first is the baseline and the default."""
    rows = (dict(zip(KNOBS, row, strict=True)) for row in itertools.product(*KNOBS.values()))
    candidates = CandidateSet(
        tuple(Candidate(Configuration("vllm", row), "0.11") for row in rows), 0, (0,)
    )
    return candidates, Kernels(Encoding(candidates))


def drawn(generator: np.random.Generator) -> tuple[Floats, float]:
    """Draw all true scores, and the noise of a launch, from the model's prior."""
    candidates, kernels = prepared()
    prior = HyperPrior(len(kernels.factors), None, kernels.odds)
    hyper = prior.hyper(generator.standard_normal((1, prior.size)), np.zeros(1, dtype=np.int64))
    rows = np.arange(len(candidates))
    # A common level changes no setting's effect.
    level_sds = np.zeros_like(kernels.level_sds)
    parts = (*kernels.between(rows, rows), kernels.physics(rows, rows), level_sds)
    covariance = _Tables(*parts).covariance(hyper)[0]
    root = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(rows)))
    return root @ generator.standard_normal(len(rows)), float(hyper.noise[0])


def play(task: tuple[str, float, int, int]) -> list[Stated]:
    """One study: what it says of the settings of its recommended command."""
    kind, noise, budget, seed = task
    candidates, kernels = prepared()
    generator = np.random.default_rng([seed, budget])
    if kind == "own":
        truth, noise = drawn(generator)
    else:
        truth = by_knobs(0.2)(generator, candidates)
    history = History(study_spec(budget).model_copy(update={"seed": seed}), candidates, ())
    with one_thread():
        plan = Plan(kernels, CandidateSampler(kernels, seed=seed))
        while isinstance(step := plan.next(history), Step):
            score = float(truth[step.position] + noise * generator.standard_normal())
            entry = Entry(len(history), step.role, step.position, score, violations={})
            history = replace(history, entries=(*history.entries, entry))
        judgement = judge(history)
        if judgement.winner is None:
            return []
        rows = contributions(
            history, model_of(kernels, history, THOROUGH), judgement.winner, judgement.spread
        )
    mine, found = candidates.items[judgement.winner].configuration, []
    for row in rows:
        names = row.knob.split("+")
        default = candidates.items[0].configuration.knobs
        other = candidates.position(
            mine.with_knobs(**{name: default[name] for name in names}).fingerprint
        )
        assert row.odds is not None
        assert row.ci95 is not None
        found.append(Stated(row.odds, row.ci95, float(truth[judgement.winner] - truth[other])))
    return found


def counted(stated: Sequence[Stated]) -> list[str]:
    """One line for each bin, and one of the intervals."""
    lines = [f"{'odds':>6} {'stated, mean':>13}   truly add more than 0.5 %"]
    for at, (low, high) in BINS.items():
        rows = [one for one in stated if low <= one.odds < high]
        said = f"{100 * np.mean([one.odds for one in rows]):.1f} %" if rows else "–"
        lines.append(
            f"{at:6.2f} {said:>13}   {rate(sum(one.truth > LEAST for one in rows), len(rows))}"
        )
    held = sum(
        one.ci95[0] - 1e-6 <= 100 * math.expm1(one.truth) <= one.ci95[1] + 1e-6 for one in stated
    )
    return [*lines, f"95 % intervals that hold the truth: {rate(held, len(stated))}"]


PAIRS = (
    ({"tensor_parallel": 8}, {"tensor_parallel": 8, "max_running_requests": 1024}),
    ({"tensor_parallel": 8}, {"data_parallel": 8, "tensor_parallel": 1, "expert_parallel": True}),
    ({"tensor_parallel": 8}, {"tensor_parallel": 8, "max_batched_tokens": 16384}),
    ({"tensor_parallel": 4}, {"tensor_parallel": 8}),
)
LAUNCHES = 3
"""Launches of either command behind a gain."""


def on_nodes(nodes: int, noise: float, seed: int) -> tuple[int, int, int]:
    """Return how many intervals on a node hold its gain, how many are narrower than the launches'
    own, and all."""
    spec, generator = study_spec(10), np.random.default_rng(seed)
    workload, calibration = load_workload("sharegpt"), packaged_calibration()
    setup = ServerSetup("vllm", "0.13", {}, spec.model, spec.hardware, spec.gpus)
    groups = groups_of(setup)
    moved = drawn_factors(calibration, [groups], nodes, seed)
    node = SteadyNode(spec.model, spec.hardware, spec.gpus, workload, calibration, moved)
    held = narrower = count = 0
    for pair in PAIRS:
        sides = [node.predict("vllm", "0.13", knobs) for knobs in pair]
        setups = [
            (
                ServerSetup("vllm", "0.13", knobs, spec.model, spec.hardware, spec.gpus, None),
                one.metrics,
            )
            for knobs, one in zip(pair, sides, strict=True)
        ]
        simulated = math.log(sides[1].metrics[HEADLINE] / sides[0].metrics[HEADLINE])
        for true in sides[1].drawn[HEADLINE] - sides[0].drawn[HEADLINE]:
            scores = [
                [end + noise * x for x in generator.standard_normal(LAUNCHES)]
                for end in (0.0, simulated)
            ]
            gain = mean(scores[1]) - mean(scores[0])
            low, high = Effect.of_launches(gain, LAUNCHES / 2, Spread.pooled(scores)).interval
            lowest, highest = gain_interval90(
                math.exp(gain), setups[1], setups[0], workload, launches=(gain - low, high - gain)
            )
            count += 1
            held += lowest <= 100 * math.expm1(float(true)) <= highest
            narrower += (
                lowest > 100 * math.expm1(low) + 1e-9 or highest < 100 * math.expm1(high) - 1e-9
            )
    return held, narrower, count


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--truth", choices=("own", "knobs"), default="own")
    parser.add_argument(
        "--noise", type=float, default=0.03, help="of a launch, for `knobs`; `own` draws it"
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--studies", type=int, default=340, help="of each budget")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--nodes", type=int, default=500, help="for each of the pairs of commands")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.studies)
    tasks = [(asked.truth, asked.noise, budget, seed) for budget in asked.budgets for seed in seeds]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("fork")) as pool:
        stated = [one for rows in pool.map(play, tasks, chunksize=10) for one in rows]
    budgets = ", ".join(map(str, asked.budgets))
    print(
        f"{asked.truth}: {len(tasks)} studies of {budgets} launches, seeds {seeds[0]} to {seeds[-1]}"
    )
    print(*counted(stated), sep="\n", flush=True)
    held, narrower, count = on_nodes(asked.nodes, asked.noise, asked.first)
    print(
        f"90 % intervals on a node that hold its gain: {rate(held, count)}; narrower than the launches': {narrower}"
    )


if __name__ == "__main__":
    main()
