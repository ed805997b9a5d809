"""Hypothesis explores at random on a developer's machine; in CI it draws the same examples every time."""

from __future__ import annotations

import os

from hypothesis import settings

# These machines are noisy: no example fails for being slow.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
