"""How often a study on several nodes decides rightly: ``python benchmarks/tuner/decisions_nodes.py
[--only NAME]``.

As `decisions.py`, whose figures and words these are, with four nodes that make launches at the same
time, each of a random duration, and end them in any order. They are alike, or one is slower by a
fifth. Beside the verdicts stands how often a node is said to be off that is not, and how often the
slow one is.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from decisions import OneChallenger, Played, Scenario, equal, one_better, prepared, rate, report

from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import one_thread
from autotune.tuner.search.history import History
from autotune.tuner.search.plan import Plan, Step
from autotune.tuner.search.sampler import CandidateSampler

NODES = ("a", "b", "c", "d")
SLOW: Mapping[str, Mapping[str, float]] = {"alike": {}, "one 20 % slower": {"d": math.log(0.8)}}
"""What a launch has more on a node, score units."""


@dataclass(frozen=True)
class Outcome:
    """A study's end, the nodes that are said to be off, and how long it took in mean launches."""

    played: Played
    off: frozenset[str]
    rounds: float


def play(index: int, seed: int) -> Outcome:
    """One study of a scenario from its first launch to its verdict, on four nodes."""
    scenario, nodes = scenarios()[index]
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
    free, running, now = list(NODES), list[tuple[float, int, str]](), 0.0
    with one_thread():
        while True:
            while free and isinstance(step := plan.next(history, free), Step):
                node = step.node if step.node in free else free[0]
                free.remove(node)
                running.append((now + math.exp(0.2 * rng.standard_normal()), len(history), node))
                position = step.position
                entry = Entry(len(history), step.role, position, pending=True, node=step.node)
                history = replace(history, entries=(*history.entries, entry))
            if not running:
                break
            now, number, node = min(running)
            running.remove((now, number, node))
            free.append(node)
            score = truth[history.entries[number].position] + SLOW[nodes].get(node, 0.0)
            done = replace(
                history.entries[number],
                score=float(score + scenario.noise * rng.standard_normal()),
                pending=False,
                node=node,
                violations={},
            )
            entries = history.entries
            history = replace(history, entries=(*entries[:number], done, *entries[number + 1 :]))
    return Outcome(Played(truth, judge(history), len(history), 0), history.off_nodes, now)


def scenarios() -> list[tuple[Scenario, str]]:
    """All that is played, with what the nodes are like."""
    kinds = [
        Scenario("equal", 2, 30, 0.03, equal),
        Scenario("gain +5 %", 2, 30, 0.03, one_better(0.05)),
        Scenario("equal, noisy", 2, 30, 0.1, equal),
        Scenario("equal of 24", 24, 40, 0.03, equal, studies=100),
    ]
    return [
        (replace(kind, name=f"{kind.name}, {nodes}"), nodes) for kind in kinds for nodes in SLOW
    ]


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--studies", type=int, help="of each scenario; else 400, 100 of those with a sampler"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="scenarios whose name begins so")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for index, (scenario, nodes) in enumerate(scenarios()):
            if not scenario.name.startswith(chosen.only):
                continue
            count = chosen.studies or scenario.studies
            seeds = [
                int(s.generate_state(1)[0])
                for s in np.random.SeedSequence([chosen.seed, index]).spawn(count)
            ]
            begin = time.perf_counter()
            found = list(pool.map(play, [index] * count, seeds, chunksize=5))
            report(scenario, [one.played for one in found], time.perf_counter() - begin)
            others = sum(bool(one.off - SLOW[nodes].keys()) for one in found)
            print(
                f"  said off   the slow one {rate(sum('d' in one.off for one in found), count)}; others {others}"
            )
            print(f"  rounds     mean {np.mean([one.rounds for one in found]):.1f}", flush=True)


if __name__ == "__main__":
    main()
