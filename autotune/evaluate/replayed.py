"""Answers trials from a file of recorded launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.evaluate.noise import noise_factor, scaled
from autotune.replay import Row, table_of
from autotune.space.library import Library
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Metrics, State, Trial, TrialResult

_PHASES = ("launch", "ready", "warmup", "load", "stop")


@dataclass(frozen=True, slots=True)
class Replayed:
    """Answers from the table that `StudySpec.on` names.

    The launches of a configuration take its rows in turn: launch ``k`` gets row ``k`` modulo their number. A workload
    that this row lacks is taken from the next row that has it. Raises `BadInput` where the file has changed.
    """

    spec: StudySpec
    library: Library
    evidence: Evidence = Evidence.REPLAYED

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        table = table_of(self.spec.on, self.spec.table_sha256, self.library)
        repeats = table.repeats[table.key(trial.configuration)]
        first = trial.launch_index % len(repeats)
        turn = [*repeats[first:], *repeats[:first]]
        row = turn[0]
        metrics: dict[str, Metrics] = {}
        factor = noise_factor(self.spec.noise, self.spec.seed, trial)
        for name in trial.workloads:
            key = table.answers_for(name, objective=name == self.spec.workloads[0])
            source = _with_figures(turn, key) if row.failure is None and key is not None else None
            if source is not None and key is not None:
                metrics[name] = scaled(source.metrics[key], factor) if self.spec.noise else dict(source.metrics[key])
        return TrialResult(
            state=State.COMPLETE if row.failure is None else State.FAILED,
            evidence=self.evidence,
            failure=row.failure,
            metrics=metrics,
            times_s=dict.fromkeys(_PHASES, 0.0) | dict(row.times_s),
            gpus=self.spec.gpus,
            node=f"replayed-{self.spec.hardware.name}",
            started_at=started_at,
        )


def _with_figures(turn: Sequence[Row], workload: str) -> Row | None:
    return next((row for row in turn if workload in row.metrics), None)
