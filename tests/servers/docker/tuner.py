"""A tuner that launches one container and then waits for its end, as `tests.servers.tuner` does;
tests kill it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.servers.docker.settings import launch
from tests.servers.tuner import tune

if __name__ == "__main__":
    tune(launch)
