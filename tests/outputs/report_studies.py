"""Studies whose reports are looked at: every kind of picture, one launch, none that ran, 300,
hostile names."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from autotune.engines.command import Command, Configuration
from autotune.engines.failure import Failure, FailureKind
from autotune.load.metrics.table import Metrics
from autotune.outputs.report import StudyRecord
from autotune.tuner.study.recommendation import MatrixCell, MatrixRow, StudyCost, Verdict
from autotune.tuner.trial import Launch, Role
from tests import small_study
from tests.small_study import BASELINE, WINNER, choice, metrics

HOSTILE = "</title>'\"<script>alert(1)</script>&$x_$ ]]>\x00\x1b[31m\ud800\u202e{}%s"
ALL_PICTURES = {"tried", "speed", "finals", "contributions", "curves"}


def everything(folder: Path) -> StudyRecord:
    """The small study with percentiles, curves over load and finalists on two workloads: every
    picture."""
    launches = [
        _with_curve(launch) if launch.trial.role is Role.FINAL else launch
        for launch in small_study.launches()
    ]
    outcome = small_study.giving_up()
    rows = {
        name: row.model_copy(
            update={
                "baseline": _percentiles(row.baseline),
                "recommended": _percentiles(row.recommended),
            }
        )
        for name, row in outcome.workloads.items()
    }
    cost = StudyCost(node_hours=1.17, gpu_hours=9.36, gpu_hour_price=None, cost=None)
    outcome = outcome.model_copy(
        update={"workloads": rows, "matrix": _matrix(), "study_cost": cost}
    )
    return StudyRecord(small_study.spec(), launches, outcome, folder)


def _percentiles(row: Metrics | None) -> Metrics | None:
    """Metrics with three percentiles more."""
    if row is None:
        return None
    means = {name: row[f"mean_{name}_ms"] for name in ("ttft", "tpot")}
    shares = {"median": 0.9, "p90": 1.6, "p95": 1.8}
    return {
        **row,
        **{
            f"{p}_{name}_ms": share * mean
            for name, mean in means.items()
            for p, share in shares.items()
        },
    }


def _with_curve(launch: Launch) -> Launch:
    whole = launch.result.metrics["sharegpt"]
    curve = [
        {
            **metrics(whole["total_token_throughput"] * n / (n + 40), 100.0 * n, 5.0 + n),
            "concurrency": n,
        }
        for n in (4, 16, 64, 256)
    ]
    result = dataclasses.replace(launch.result, metrics={"sharegpt": {**whole, "curve": curve}})
    return dataclasses.replace(launch, result=result)


def _matrix() -> list[MatrixRow]:
    def row(role: str, configuration: Configuration, *gains: float | None) -> MatrixRow:
        cells = {
            name: MatrixCell(
                value=6000 * (1 + (gain or 0) / 100),
                gain_percent=gain,
                ci95=None if gain is None else (gain - 3, gain + 3),
                repeats=2,
                best=False,
            )
            for name, gain in zip(("sharegpt", "random:4000:200:500"), gains, strict=True)
        }
        return MatrixRow(**choice(configuration, 6000.0).model_dump(), role=role, workloads=cells)

    return [
        row("baseline", BASELINE, None, None),
        row("recommended", WINNER, 51.7, -1.2),
        row("finalist", small_study.DEFAULT, 17.0, 22.0),
    ]


def one_launch(folder: Path) -> StudyRecord:
    """Only the baseline ran."""
    own = small_study.choice(BASELINE, 6000.0)
    outcome = small_study.recommendation(
        verdict=Verdict.INDISTINGUISHABLE,
        recommended=own,
        baseline=own,
        contributions=[],
        launches=1,
        failures={},
    )
    return StudyRecord(small_study.spec(), small_study.launches()[:1], outcome, folder)


def none_ran(folder: Path) -> StudyRecord:
    """Every launch failed."""
    kinds = (FailureKind.OUT_OF_MEMORY, FailureKind.CRASHED, FailureKind.TIMEOUT)
    launches = [
        small_study.launch(
            number,
            Role.SEARCH,
            WINNER,
            Failure(kinds[number % 3], "It does not fit.", "OOM: 3 GiB"),
        )
        for number in range(7)
    ]
    return StudyRecord(small_study.spec(), launches, small_study.infeasible(), folder)


def many(folder: Path, count: int = 300) -> StudyRecord:
    """So many launches, each of another configuration, one in ten of which failed."""
    launches = list(small_study.launches())
    for number in range(len(launches), count):
        made = (WINNER, BASELINE)[number % 2].with_knobs(max_batched_tokens=512 * number)
        command = Command(
            (*small_study.COMMANDS[WINNER].argv, "--max-batched-tokens", str(512 * number))
        )
        figures = {"sharegpt": metrics(5000.0 + (number * 7919) % 4000, tpot=50.0 + number % 97)}
        failed = Failure(FailureKind.OUT_OF_MEMORY, "The weights do not fit.", "CUDA out of memory")
        outcome = failed if number % 10 == 0 else figures
        launches.append(small_study.launch(number, Role.SEARCH, made, outcome, command=command))
    return StudyRecord(
        small_study.spec(launches=count),
        launches,
        small_study.recommendation(launches=count),
        folder,
    )


def hostile(folder: Path) -> StudyRecord:
    """Every name that somebody else may choose is an attack."""
    study = everything(folder)
    odd = Configuration("vllm", {**BASELINE.knobs, HOSTILE: HOSTILE})
    failure = Failure(FailureKind.CRASHED, HOSTILE, HOSTILE)
    command = Command(("vllm", "serve", HOSTILE))
    launches = [
        *study.launches,
        small_study.launch(9, Role.SEARCH, odd, failure, command=command),
        small_study.launch(10, Role.SEARCH, odd, {"sharegpt": metrics(6500.0)}, command=command),
    ]
    outcome = study.recommendation
    named = [
        row.model_copy(update={"knob": HOSTILE, "to": HOSTILE}) for row in outcome.contributions
    ]
    rows = {**outcome.workloads, HOSTILE: outcome.workloads["sharegpt"]}
    update = {"contributions": named, "workloads": rows, "stop_reason": HOSTILE, "model": HOSTILE}
    return StudyRecord(study.spec, launches, outcome.model_copy(update=update), folder)
