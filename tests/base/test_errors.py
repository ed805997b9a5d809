"""Errors are the same wherever they are raised."""

from __future__ import annotations

import pickle

import pytest

from autotune.base.errors import (
    AutotuneError,
    Interrupted,
    MalformedFile,
    RefusedCommand,
    UnknownName,
)

RAISED = [
    UnknownName("workload", "chta", ["chat", "sharegpt"], "Describe your own in a file."),
    MalformedFile("space.yaml", "no such knob", 3),
    RefusedCommand("vllm 0.32.0", "unrecognized arguments: --x"),
    Interrupted("stopped"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_of_a_worker_process_reaches_the_user_as_it_is(error: AutotuneError) -> None:
    """A process pool pickles it; one that cannot be read back breaks the pool, and its message is
    lost."""
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
    assert arrived.exit_code == error.exit_code
