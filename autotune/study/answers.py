"""The outcome of the check of answers, as it stands in ``recommendation.json``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class AccuracyComparison(BaseModel):
    """Outcome of the check of answers.

    Attributes:
        kind: ``builtin``, ``tasks`` or ``command``.
        baseline, recommended: scores, in percent or as the command printed them, with their 95 % intervals; None where
            that one was not checked. Of ``builtin`` the share of tokens that are not wrong beside the baseline's first
            launch: the baseline's is that of a further launch.
        threshold: below it the recommended one would have failed.
        passed: None where it was not compared, for want of launches of the baseline or of its own.
        note: what the check could not see.
        seconds: that it added to the study.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: str
    baseline: float | None
    baseline_ci95: tuple[float, float] | None
    recommended: float | None
    recommended_ci95: tuple[float, float] | None
    threshold: float | None
    passed: bool | None
    note: str = ""
    seconds: float = 0.0
