"""What Ray reads from the environment when it is imported."""

from __future__ import annotations

import os

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


def quiet_ray() -> None:
    """Set it; to be called before ray is imported. What a user has set stays, where it does no harm."""
    os.environ.update(_ALWAYS)
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)
