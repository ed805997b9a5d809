"""Whether a study gives up limits that nothing keeps, and only those: ``python benchmarks/tuner/limits.py
[--seeds 3]``.

Of each problem some candidates are simulated without noise. What the best of them reach in one
limited metric, or in both at once, is where limits are set: `LEVELS` times that, so that one
candidate of the sample or few keep them, or that none comes near. Each study is played, 3 % noise a
launch, until a launch keeps its limits, the study stops, or its budget is used. Told are studies
that stopped although a candidate keeps the limits (false stops), the launches of those whose limits
are out of reach.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from autotune.load.metrics.formulas import Slo
from autotune.tuner.backends.simulator import SimulatedEvaluator
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.search.history import History
from autotune.tuner.search.priors import priors_of
from autotune.tuner.search.study import Study
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, Trial

PROBLEMS = (
    ("deepseek-ai/DeepSeek-V3.2", "8xh200"),
    ("deepseek-ai/DeepSeek-V3.2", "8xmi300x"),
    ("Qwen/Qwen3-32B", "4xh100"),
    ("meta-llama/Llama-3.3-70B-Instruct", "8xh200"),
)
TTFT, TPOT = "p99_ttft_ms", "p99_tpot_ms"
LEVELS = {"reachable": (1.02, 1.2), "out of reach": (0.1, 0.3)}
"""Limits as factors of what the best of the sample reach."""
SAMPLE = 150


def _spec(
    model: str, hardware: str, seed: int, limits: dict[str, float], launches: int
) -> StudySpec:
    options = RunOptions(
        model=model, hardware=hardware, on="simulator", study="limits", seed=seed, launches=launches
    )
    spec = build_spec(options)
    slos = tuple(Slo(metric=name, sense="<=", limit=limit) for name, limit in limits.items())
    return spec.model_copy(update={"slos": slos})


def sampled(prepared: Prepared, spec: StudySpec, count: int) -> list[dict[str, Any]]:
    """The metrics of candidates without noise, of those that start."""
    evaluate = SimulatedEvaluator(spec.model_copy(update={"noise": 0.0}), prepared.library)
    items = prepared.candidates.items
    drawn = (
        np.random.default_rng(0).choice(len(items), min(count, len(items)), replace=False).tolist()
    )
    found = []
    for position in {prepared.candidates.baseline, *drawn}:
        one = items[position]
        command = prepared.command_of(one)
        result = evaluate(
            Trial(0, Role.SEARCH, one.configuration, one.engine_version, command, spec.workloads)
        )
        if not result.failure:
            found.append(dict(result.metrics[spec.workloads[0]]))
    return found


def limits_of(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, float]]]:
    """Reachable or not, and the limits: of either metric, and of both."""
    found = []
    balanced = min(rows, key=lambda row: row[TTFT] * row[TPOT])
    goals = [{name: min(row[name] for row in rows)} for name in (TTFT, TPOT)]
    goals += [{name: balanced[name] for name in (TTFT, TPOT)}]
    for kind, levels in LEVELS.items():
        found += [
            (kind, {name: value * level for name, value in goal.items()})
            for level in levels
            for goal in goals
        ]
    # Each is kept by some candidate, and both by none: what people ask of a burst.
    apart = {name: 1.2 * min(row[name] for row in rows) for name in (TTFT, TPOT)}
    nearest = min(max(row[name] / apart[name] for name in apart) for row in rows)
    return [*found, ("out of reach", apart)] if nearest > 2 else found


def play(prepared: Prepared, spec: StudySpec) -> dict[str, Any]:
    """One study until a launch keeps the limits: its launches, and how it ended."""
    evaluate, candidates, kept = (
        SimulatedEvaluator(spec, prepared.library),
        prepared.candidates,
        False,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(
            Study(Path(folder), spec, candidates, prepared.command_of, priors_of(prepared))
        ) as study,
    ):
        while not kept and (trial := study.ask()) is not None:
            study.tell(Launch(trial, evaluate(trial)))
            history = History.from_launches(spec, candidates, study.launches)
            kept = any(history.feasible(p) for p in history.by_position)
        return {"launches": len(study.launches), "kept": kept, "stop": study.stop_reason}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--launches", type=int, default=30)
    parser.add_argument(
        "--only", default="", help="problems whose model and node have this in their words"
    )
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    told = list[dict[str, Any]]()
    for model, hardware in PROBLEMS:
        if asked.only not in f"{model} {hardware}":
            continue
        spec = _spec(model, hardware, 0, {}, asked.launches)
        prepared = prepare(spec, library_of(spec), anywhere=True)
        rows = sampled(prepared, spec, asked.sample)
        for kind, limits in limits_of(rows):
            share = fmean(all(row[name] <= limit for name, limit in limits.items()) for row in rows)
            for seed in range(asked.seeds):
                asked_spec = _spec(model, hardware, seed, limits, asked.launches)
                found = play(replace(prepared, spec=asked_spec), asked_spec)
                told.append(
                    {
                        "model": model,
                        "hardware": hardware,
                        "kind": kind,
                        "limits": limits,
                        "seed": seed,
                    }
                    | found
                )
                said = " ".join(f"{name}<={limit:.4g}" for name, limit in limits.items())
                ended = "kept" if found["kept"] else found["stop"]
                about = f"{model} {hardware} {said} ({kind}, {share:.1%} of the sample)"
                print(f"{about}, seed {seed}: {found['launches']} launches, {ended}", flush=True)
                if asked.json:
                    asked.json.write_text(json.dumps(told))
    stopped = [
        row for row in told if row["kind"] == "reachable" and row["stop"].startswith("the limits")
    ]
    out = [row["launches"] for row in told if row["kind"] == "out of reach"]
    print(f"false stops: {len(stopped)} of {sum(row['kind'] == 'reachable' for row in told)}")
    if out:
        print(
            f"limits out of reach: {fmean(out):.1f} launches in the mean, {max(out)} at most, {len(out)} studies"
        )


if __name__ == "__main__":
    main()
