"""What Ray reads from the environment when it is imported."""

from __future__ import annotations

import os
import secrets
import tempfile

_ALWAYS = {
    # Nothing is sent home.
    "RAY_USAGE_STATS_ENABLED": "0",
    # What Ray says of a lost node goes to stdout, which is ours; the executor says it in a line.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
_UNLESS_SET = {
    # No files beside those that we write, and no state to restore a tuner from: the study is that state.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    # As many trials may wait for their node as are handed out.
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",
    "TUNE_WARN_THRESHOLD_S": "1000000",
    # Interruptions are the tuner's.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Ray would hide a node's GPUs from tasks that ask for none in a coming version; it warns of that.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


_LONG = 40
"""Characters of a folder below which the paths of Ray's sockets, 107 at most, still fit."""
_STAND_INS = ("simulator", "emulator", "replay")


def joined(address: str) -> str:
    """The address of the cluster to be joined, as it was asked for or as ``RAY_ADDRESS`` has it; empty: none."""
    given = address or os.environ.get("RAY_ADDRESS", "")
    return "" if given in ("auto", "local") else given


def stands_alone(address: str, on: str) -> bool:
    """Whether trials get a Ray cluster of this machine alone, which is started for them.

    Args:
        address: that was asked for; empty: none.
        on: where trials run, as of `StudySpec`.
    """
    return not joined(address) and on.partition(":")[0] in _STAND_INS


def prepare(alone: bool) -> None:
    """Set it; to be called before ray is imported. What a user has set stays, where it does no harm.

    Args:
        alone: as of `stands_alone`. Such a cluster has a token that nobody else has; Ray would leave one in the user's
            home, which changes how clusters that are started later behave. Source:
            https://docs.ray.io/en/latest/ray-security/token-auth.html.
    """
    os.environ.update(_ALWAYS)
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)
    if alone and len(tempfile.gettempdir()) > _LONG:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    if alone and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
