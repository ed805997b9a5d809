"""In a study: keeps the answers of each launch, and fails a finalist that answers worse than the baseline.

Answers lie in the study's folder, ``accuracy/0007.json`` of launch 7, for its owner's eyes alone: the prompts of a task
file may be private. A launch's row has what the check came to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.accuracy.check import Check, CheckEvidence, check_of, read_evidence
from autotune.errors import BadInput
from autotune.study.home import write_atomically
from autotune.study.spec import StudySpec
from autotune.trial import Failure, FailureKind, Launch, State

FOLDER = "accuracy"


def check_of_study(spec: StudySpec) -> Check | None:
    """The check that a study asks for, None for none; raises `BadInput` where its task file has changed."""
    if spec.accuracy is None:
        return None
    check = check_of(spec.accuracy)
    if check.sha256 != spec.accuracy_sha256:
        raise BadInput(f"--accuracy {spec.accuracy}: the task file has changed since the study began")
    return check


@dataclass(frozen=True, slots=True)
class Gate:
    """Judges the launches of one study.

    Attributes:
        folder: the study's.
        baseline: fingerprint of its configuration.
    """

    spec: StudySpec
    folder: Path
    baseline: str

    def judged(self, launch: Launch, launches: Sequence[Launch]) -> Launch:
        """The launch with what the check came to, and as failed where its answers are worse than the baseline's.

        Args:
            launches: finished before.
        """
        result = launch.result
        # What is replayed was judged when it was recorded.
        check = check_of_study(self.spec) if result.answers else None
        if check is None:
            return launch
        evidence = dict(result.answers)
        path = self._path(launch)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, json.dumps(evidence), mode=0o600)
        references = [] if self._is_baseline(launch) else self._references(launches)
        if len(references) < check.baselines:
            # The baseline itself, or one that cannot be compared with it: it did not run.
            return replace(launch, result=replace(result, answers={}, accuracy=check.alone(evidence)))
        try:
            came = check.judge(references, evidence)
        except BadInput as error:  # the baseline's answers are none to compare with
            came = replace(check.alone(evidence), note=str(error))
        result = replace(result, answers={}, accuracy=came)
        if came.passed is False:
            failure = Failure(FailureKind.ACCURACY, f"It answers worse than the baseline: {'; '.join(came.reasons)}.")
            result = replace(result, state=State.FAILED, failure=failure, metrics={})
        return replace(launch, result=result)

    def _is_baseline(self, launch: Launch) -> bool:
        return launch.trial.configuration.fingerprint == self.baseline

    def _path(self, launch: Launch) -> Path:
        return self.folder / FOLDER / f"{launch.trial.number:04d}.json"

    def _references(self, launches: Sequence[Launch]) -> list[CheckEvidence]:
        """The baseline's answers, launch by launch, but for those whose file is gone or spoilt."""
        references = []
        for launch in launches:
            check = launch.result.accuracy
            if self._is_baseline(launch) and check is not None:
                with suppress(BadInput):
                    references.append(read_evidence(self._path(launch), check.kind))
        return references
