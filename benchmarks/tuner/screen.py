"""Node-hours of the main job with launches that have random weights, and without: ``python
benchmarks/tuner/screen.py``.

Whole studies by the product's own path (`Study`) on the simulated node. A launch's throughput is
that of one noise-free simulation of its command times a log-normal factor (3 %); what random
weights change is what the simulated node says (`autotune.node.server`), and a factor of
its own for each engine and layout, drawn anew for each seed with ``--spread`` in all. Weights are
read at ``--gb-s``. Regret is that of what is recommended, against the best command that any of the
studies launched, noise-free.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from autotune.tuner.backends.simulator import SimulatedEvaluator
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.history import History
from autotune.tuner.search.priors.__init__ import priors_of
from autotune.tuner.search.study import Study
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, Trial, TrialResult

JOBS = {
    "h200": ("deepseek-ai/DeepSeek-V3.2", "h200"),
    "mi300x": ("deepseek-ai/DeepSeek-R1-0528", "mi300x"),
}
NOISE, OF_THE_NODE, GB_S = 0.03, 0.03, 2.0
"""Sigma of a launch; spread that the simulated node's random weights have; its rate of reading
weights."""


class Node:
    """Evaluates with random numbers of this benchmark, on simulations that are made once."""

    def __init__(self, prepared: Prepared, spec: StudySpec) -> None:
        self.simulated = SimulatedEvaluator(
            spec.model_copy(update={"noise": 0.0, "seed": 0}), prepared.library
        )
        self.results: dict[str, TrialResult] = {}

    def result(self, trial: Trial) -> TrialResult:
        """The noise-free result of a trial."""
        key = f"{trial.configuration.fingerprint} {(trial.role is Role.RANDOM_WEIGHTS)}"
        if key not in self.results:
            self.results[key] = self.simulated(replace(trial, launch_index=0))
        return self.results[key]

    def truth(self, trial: Trial, spec: StudySpec) -> float:
        """The objective of a command with its weights, without noise; 0 where it does not start."""
        row = self.result(replace(trial, role=Role.SEARCH)).metrics
        return float(row[spec.workloads[0]][spec.objective] or 0.0) if row else 0.0

    def play(self, trial: Trial, seed: int, gb_s: float, spread: float) -> TrialResult:
        found = self.result(trial)
        full = self.result(replace(trial, role=Role.SEARCH))
        times_s = dict(found.times_s)
        if trial.role is not Role.RANDOM_WEIGHTS:
            # What is neither the weights nor the load: as long as of the same launch without its
            # weights.
            beside = BESIDE_S[trial.configuration.engine]
            times_s["ready"] = beside + (full.times_s["ready"] - beside) * GB_S / gb_s
        if found.failure is not None:
            return replace(found, times_s=times_s)
        own = np.random.default_rng([seed, int(trial.configuration.fingerprint, 16), trial.number])
        factor = math.exp(NOISE * own.standard_normal())
        if trial.role is Role.RANDOM_WEIGHTS:
            layout = np.random.default_rng([seed, *repr(trial.configuration.layout).encode()])
            factor *= math.exp(
                math.sqrt(max(0.0, spread**2 - OF_THE_NODE**2)) * layout.standard_normal()
            )
        metrics = {
            name: {m: v * factor if m.endswith("throughput") and v else v for m, v in row.items()}
            for name, row in found.metrics.items()
        }
        # As `autotune.tuner.backends.ValidatedEvaluator` sets them apart.
        apart = (
            {"metrics": {}, "ranking": metrics}
            if trial.role is Role.RANDOM_WEIGHTS
            else {"metrics": metrics}
        )
        return replace(found, times_s=times_s, **apart)


BESIDE_S = {"vllm": 120.0, "sglang": 120.0, "tensorrt_llm": 180.0}
"""Start without loading weights, ``start_s`` of search_spaces/*/simulator.yaml."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--job", choices=list(JOBS), default="h200")
    add("--seeds", type=int, nargs="+", default=list(range(5)))
    add("--screen", nargs="+", default=["off", "auto"], choices=["off", "auto"])
    add("--gb-s", type=float, nargs="+", default=[2.0])
    add("--spread", type=float, nargs="+", default=[0.03])
    add("--json", type=Path, metavar="FILE", help="a line for each study")
    asked = parser.parse_args()
    model, hardware = JOBS[asked.job]
    question = build_spec(
        RunOptions(model=model, hardware=hardware, study="screen", on="simulator", screen="auto")
    )
    prepared = prepare(question, library_of(question), anywhere=True)
    priors = priors_of(prepared, ())
    node = Node(prepared, question)
    rows: list[dict[str, Any]] = []
    best = 0.0
    for seed, gb_s, spread, screen in product(asked.seeds, asked.gb_s, asked.spread, asked.screen):
        screened = question.screened if screen == "auto" else ()
        spec = question.model_copy(update={"seed": seed, "screened": screened})
        with tempfile.TemporaryDirectory() as folder:
            study = Study(Path(folder), spec, prepared.candidates, prepared.command_of, priors)
            while (trial := study.ask()) is not None:
                study.tell(Launch(trial, node.play(trial, seed, gb_s, spread)))
            launches = study.launches
            history = History.from_launches(spec, prepared.candidates, launches)
            winner, why = judge(history).winner, study.stop_reason
            study.close()

        truths = {
            launch.trial.configuration.fingerprint: node.truth(launch.trial, spec)
            for launch in launches
        }
        ineligible = {
            prepared.candidates.items[p].fingerprint for p in prepared.candidates.given_up
        }
        best = max(best, *(value for name, value in truths.items() if name not in ineligible))
        value = truths[prepared.candidates.items[winner].fingerprint] if winner is not None else 0.0
        cheap = (
            sum(x.result.seconds for x in launches if x.trial.role is Role.RANDOM_WEIGHTS) / 3600
        )
        hours = {
            "full": sum(x.result.seconds for x in launches) / 3600 - cheap,
            "random_weights": cheap,
        }
        row = {
            "seed": seed,
            "gb_s": gb_s,
            "spread": spread,
            "screen": screen,
            "value": value,
            "hours": hours,
        }
        row |= {
            "launches": len(launches),
            "cheap": len(history.screened),
            "over": history.screening.result.over,
            "end": why,
        }
        clock, goal = 0.0, list[tuple[float, float]]()
        for launch in launches:
            clock += launch.result.seconds / 3600
            goal.append((clock, truths[launch.trial.configuration.fingerprint]))
        row["path"] = goal
        rows.append(row)
        print({k: v for k, v in row.items() if k != "path"}, flush=True)
        if asked.json:
            asked.json.write_text("".join(json.dumps(one) + "\n" for one in rows))
    print(f"{asked.job}: best launched {best:,.0f} tok/s")
    for gb_s, spread, screen in product(asked.gb_s, asked.spread, asked.screen):
        own = [r for r in rows if (r["gb_s"], r["spread"], r["screen"]) == (gb_s, spread, screen)]
        regret = [100 * (1 - r["value"] / best) for r in own]
        hours = [sum(r["hours"].values()) for r in own]
        to98 = [next((h for h, v in r["path"] if v >= 0.98 * best), math.inf) for r in own]
        print(
            f"{gb_s:g} GB/s, spread {100 * spread:.0f} %, {screen}: {statistics.mean(hours):.2f} node-hours "
            f"({statistics.mean(r['hours']['random_weights'] for r in own):.2f} with random weights), to 98 % in the "
            f"median {statistics.median_high(to98):.2f}; regret {statistics.mean(regret):.1f} % "
            f"({', '.join(f'{one:.1f}' for one in regret)})"
        )


if __name__ == "__main__":
    main()
