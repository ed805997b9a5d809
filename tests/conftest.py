"""Hypothesis explores at random on a developer's machine; in CI it draws the same examples every time.

A shell starts what it runs in the background with Ctrl-C ignored, and every process inherits that: those that tests
interrupt must not.
"""

from __future__ import annotations

import os
import signal
import threading

from hypothesis import settings

# These machines are noisy: no example fails for being slow.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

# A developer's own MLflow server is no place for the studies of tests.
os.environ.pop("MLFLOW_TRACKING_URI", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
