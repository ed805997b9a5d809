"""Whether launches that share a node slow each other, by the baseline: alone on a share, then on all shares at once.

The control is decided once, by the first launches of the baseline. They are compared as two means with the usual noise
of a launch (`LAUNCH_NOISE`, 3 %): where those beside others are slower by more than `LIMIT` standard errors of that
difference, the study goes on one launch at a time. So a node on which nothing interferes is taken for one on which
something does in 5 % of studies, and then nothing is lost but time; on nodes that are noisier than usual more often.
A slowdown below the limit (6 % on two shares) may stay unseen; it is in all launches alike, and finalist and baseline
are compared on one share.

What was launched beside others on a node that slows it counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from scipy.special import ndtri

from autotune.search.decide.estimate import LAUNCH_NOISE, mean, percent
from autotune.study.places import is_alone, is_beside

ERROR_RATE = 0.05
"""False alarms: share of studies without interference that are said to have it, at the usual launch noise."""
LIMIT = float(-ndtri(ERROR_RATE))
_BESIDE = 0.5
"""The share of its time that a launch must have run beside others to tell what they do to it."""


class ControlRun(Protocol):
    """A launch of the baseline that was its first on a place; attributes as of `history.Entry`."""

    @property
    def node(self) -> str: ...
    @property
    def score(self) -> float | None: ...
    @property
    def broke(self) -> bool: ...
    @property
    def pending(self) -> bool: ...
    @property
    def began_s(self) -> float: ...
    @property
    def seconds(self) -> float: ...


def one_at_a_time(control: Sequence[ControlRun]) -> str:
    """Why launches may not run side by side; empty where they may, where that is not decided, or where none is alone.

    Args:
        control: the baseline's first launches on every place.
    """
    together = [run for run in control if is_beside(run.node)]
    before = next((run.score for run in control if is_alone(run.node) and run.score is not None), None)
    if before is None or len(together) < 2 or any(run.pending for run in control):
        return ""
    if any(run.broke for run in together):
        return "the baseline runs alone on its share of the GPUs and fails beside others: one at a time from here on"
    beside = [run.score for run in together if run.score is not None and _ran_beside(run, together)]
    if len(beside) < 2:
        return "what launches side by side do to each other could not be measured: one at a time from here on"
    slower, error = before - mean(beside), LAUNCH_NOISE * math.sqrt(1 + 1 / len(beside))
    if slower <= LIMIT * error:
        return ""
    return f"launches side by side slow each other by {-percent(-slower):.0f} %: one at a time from here on"


def _ran_beside(run: ControlRun, others: Iterable[ControlRun]) -> bool:
    """Whether another one of these launches ran for most of a launch."""
    ends = run.began_s + run.seconds
    both_s = [min(ends, one.began_s + one.seconds) - max(run.began_s, one.began_s) for one in others if one is not run]
    return max(both_s, default=0.0) >= _BESIDE * run.seconds


def open_places(control: Sequence[ControlRun], decided: str, places: Sequence[str]) -> Sequence[str]:
    """Those of an executor's free places on which to launch next, in the order of the control; none: wait.

    Args:
        decided: what `one_at_a_time` says.
        places: where none is alone, they are nodes of their own, and all of them are open.
    """
    if not any(map(is_alone, (*places, *(run.node for run in control)))):
        return places
    if decided or not any(is_alone(run.node) and run.score is not None for run in control):
        return [place for place in places if is_alone(place)]
    shares = [place for place in places if is_beside(place)]
    new = [place for place in shares if all(run.node != place for run in control)]
    return new or ([] if any(run.pending for run in control) else shares)
