"""Which launches are asked for answers, and what a finalist that answered worse says of other candidates.

The baseline's answers are wanted first: what its launches differ by themselves is what a finalist may differ. A
finalist is asked once. One that fails is laid to its settings: to a value that is marked as lossy before all others, to
none that a launch with right answers had. Candidates that share the cause are put to the test after all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.search.history import History
from autotune.study.spec import StudySpec
from autotune.trial import Launch, Role, Scalar, Trial

BUILTIN = "builtin"
_LOSSY, _OTHER, _CHANCE = 1.0, 0.1, 0.1
"""Odds of a cause before anything is known: a value marked as lossy, any other, and what is no setting's fault."""
_SUSPECT = 0.5

_Setting = tuple[str, str, Scalar]


def baselines_wanted(spec: StudySpec) -> int:
    """Launches of the baseline whose answers are wanted: agreement takes two, a score one."""
    return 0 if spec.accuracy is None else 2 if spec.accuracy == BUILTIN else 1


def wants_answers(spec: StudySpec, trial: Trial, baseline: str, launches: Sequence[Launch]) -> bool:
    """Whether a launch is asked for answers.

    Args:
        baseline: its fingerprint.
        launches: finished before.
    """
    fingerprint = trial.configuration.fingerprint
    checks = (one.result.accuracy for one in launches if one.trial.configuration.fingerprint == fingerprint)
    done = [check for check in checks if check is not None]
    if fingerprint == baseline:
        roles = (Role.BASELINE, Role.CONTROL, Role.FINAL)
        return trial.role in roles and len(done) < baselines_wanted(spec)
    return spec.accuracy is not None and trial.role is Role.FINAL and all(check.passed is None for check in done)


def lacks_baseline(history: History) -> bool:
    """Whether the baseline's answers are too few to compare a finalist's with."""
    asked = [e for e in history.at(history.candidates.baseline) if e.answered or e.pending]
    return len(asked) < baselines_wanted(history.spec)


def suspected(history: History, position: int) -> bool:
    """Whether a candidate more likely than not shares what made a finalist answer worse."""
    right = {history.candidates.baseline, *(e.position for e in history if e.right)}
    cleared = {setting for other in right for setting in _settings(history, other)}
    mine, odds = _settings(history, position), 1.0
    for failed in dict.fromkeys(e.position for e in history if e.right is False):
        lossy = {one.knob for one in history.given_up(failed) if one.kind == "lossy"}
        causes = {s: _LOSSY if s[1] in lossy else _OTHER for s in _settings(history, failed) - cleared}
        shared = sum(weight for setting, weight in causes.items() if setting in mine)
        odds *= 1 - shared / (sum(causes.values()) + _CHANCE)
    return odds < _SUSPECT


def _settings(history: History, position: int) -> set[_Setting]:
    configuration = history.candidates.items[position].configuration
    return {(configuration.engine, name, value) for name, value in configuration.knobs.items()}
