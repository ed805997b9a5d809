"""Settings that add nothing leave the command before it is put to the test."""

from __future__ import annotations

from autotune.search.history import History
from autotune.search.process import Process


def next_check(history: History, model: Process, leader: int, allowed: int) -> int | None:  # noqa: ARG001
    """A shorter command that is worth a launch, or None.

    Args:
        model: of the launches so far.
        leader: position of the best candidate.
        allowed: launches that may still be used for this.
    """
    return None


def shortened(history: History, model: Process, leader: int) -> int:  # noqa: ARG001
    """The command to put to the test in the leader's place: the leader where every setting adds something."""
    return leader
