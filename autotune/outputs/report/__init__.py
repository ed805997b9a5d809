"""What a person reads after a study: `render` in one of `FORMATS`, one file per format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UnknownName
from autotune.study.recommendation import Recommendation
from autotune.study.spec import StudySpec
from autotune.trial import Launch

FORMATS = ("md", "html")


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A finished study, all that a report needs.

    Attributes:
        launches: every launch, in the order of its number.
        folder: the study's folder, ``<home>/studies/<name>``.
    """

    spec: StudySpec
    launches: Sequence[Launch]
    recommendation: Recommendation
    folder: Path


def render(study: StudyRecord, format: str) -> str:
    """The study's report as Markdown (``md``) or as one self-contained page (``html``).

    Raises `UnknownName` for another format. Secrets are masked.
    """
    from autotune.outputs.report import html, markdown

    if format == "md":
        return markdown.render(study)
    if format == "html":
        return html.render(markdown.render(study))
    raise UnknownName("report format", format, FORMATS)


def conclusion(recommendation: Recommendation) -> str:
    """What the study found, in plain words for a terminal; the command is not part of it."""
    from autotune.outputs.report import words

    return words.conclusion(recommendation)
