"""A tuner that launches one container and then waits for its end, as `tests.serving.tuner` does;
tests kill it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.docker.settings import launch
from tests.serving.tuner import tune

if __name__ == "__main__":
    tune(launch)
