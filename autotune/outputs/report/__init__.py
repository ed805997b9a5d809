"""Report of a study: `render.render` makes the report, `words.conclusion` the lines for a
terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """The input of a report: a study, its launches by number, and its folder
    ``<home>/studies/<name>``."""

    spec: StudySpec
    launches: Sequence[Launch]
    recommendation: Recommendation
    folder: Path
