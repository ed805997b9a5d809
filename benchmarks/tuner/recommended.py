"""How far the recommendations of simulated studies are below the best.

    python benchmarks/tuner/recommended.py HOME/studies/NAME …

The studies are of one question. Every candidate that keeps the promises is predicted (`SteadyNode`,
the calibration of the studies' own node), the best ``--simulate`` of them are simulated without
noise, and each recommendation is compared with the best of these. Counted as well are the launches,
the baseline as the first, until one that gives up nothing truly is within 2 % of that best.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

from autotune.engines.enumeration import Candidate
from autotune.load.workloads import load_workload
from autotune.node.calibration import calibration_of
from autotune.node.steady import SteadyNode
from autotune.tuner.backends.simulator import SimulatedEvaluator
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.home import Home, library_of
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Role, Trial


def trial_of(prepared: Prepared, spec: StudySpec, candidate: Candidate) -> Trial:
    """A candidate as the launch of a search."""
    return Trial(
        number=0,
        role=Role.SEARCH,
        configuration=candidate.configuration,
        engine_version=candidate.engine_version,
        command=prepared.command_of(candidate),
        workloads=spec.workloads,
    )


def truth(prepared: Prepared, spec: StudySpec, candidate: Candidate) -> float:
    """The objective of a candidate without noise; 0 where it does not start."""
    evaluator = SimulatedEvaluator(spec.model_copy(update={"noise": 0.0}), prepared.library)
    result = evaluator(trial_of(prepared, spec, candidate))
    return (
        0.0 if result.failure else float(result.metrics[spec.workloads[0]][spec.objective] or 0.0)
    )


def front(prepared: Prepared, spec: StudySpec, simulated: int) -> list[Candidate]:
    """The candidates that give up nothing and that the fast prediction has in front."""
    given_up = prepared.candidates.given_up
    kept = [one for i, one in enumerate(prepared.candidates.items) if i not in given_up]
    load = load_workload(spec.workloads[0], prepared.library)
    node = SteadyNode(spec.model, spec.hardware, spec.gpus, load, calibration_of(prepared.library))
    predicted = []
    for one in kept:
        found = node.predict(one.configuration.engine, one.engine_version, one.configuration.knobs)
        predicted.append((found.metrics.get(spec.objective, 0.0), one.fingerprint, one))
    best = sorted(predicted, key=lambda row: row[:2], reverse=True)[:simulated]
    print(
        f"{len(prepared.candidates)} candidates, {len(kept)} of them give up nothing; {len(best)} simulated"
    )
    return [one for _, _, one in best]


def best_known(prepared: Prepared, spec: StudySpec, simulated: int) -> float:
    """The objective of the best of the `front` without noise."""
    return max(truth(prepared, spec, one) for one in front(prepared, spec, simulated))


def launches_to_best(prepared: Prepared, spec: StudySpec, study: Path, level: float) -> int | None:
    """The number of the first launch, from 1, of a command that keeps the promises and truly is
    that good."""
    candidates, seen = prepared.candidates, dict[str, float]()
    rows = sorted(
        map(json.loads, (study / "results.jsonl").read_text().splitlines()),
        key=lambda row: row["number"],
    )
    for row in rows:
        name = row["fingerprint"]
        if name not in candidates or candidates.position(name) in candidates.given_up:
            continue
        if name not in seen:
            seen[name] = truth(prepared, spec, candidates.items[candidates.position(name)])
        if seen[name] >= level:
            return int(row["number"]) + 1
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument(
        "--simulate", type=int, default=150, help="candidates, the best by the fast prediction"
    )
    asked = parser.parse_args()
    shortfalls, counts, best, prepared = list[float](), list[float](), 0.0, None
    for path in asked.studies:
        spec = Home(path.parent.parent).spec(path.name)
        if prepared is None:
            prepared = prepare(spec, library_of(spec), anywhere=True)
            # One seed for all: what differs between seeds is the prompts' lengths.
            common = spec.model_copy(update={"seed": 0})
            best = best_known(prepared, common, asked.simulate)
        found = json.loads((path / "recommendation.json").read_text())
        items = prepared.candidates
        value = truth(prepared, common, items.items[items.position(found["fingerprint"])])
        best = max(best, value)
        shortfalls.append(100 * (1 - value / best))
        reached = launches_to_best(prepared, common, path, 0.98 * best)
        counts.append(math.inf if reached is None else reached)
        print(
            f"{path}: {value:,.0f}, {shortfalls[-1]:.1f} % below, {found['launches']} launches, 98 % after {reached}"
        )
    close, middle = sum(shortfall <= 2 for shortfall in shortfalls), statistics.median(shortfalls)
    print(
        f"best known {best:,.0f}; within 2 %: {close} of {len(shortfalls)}; median {middle:.1f} %"
    )
    print(
        f"launches to 98 %: median {statistics.median_high(counts):g}; {' '.join(f'{n:g}' for n in sorted(counts))}"
    )


if __name__ == "__main__":
    main()
