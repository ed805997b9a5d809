"""Runs the real command line as a user does: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "autotune"]
SHARED = Path(__file__).resolve().parents[3] / "shared"


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def autotune(*arguments: str, home: Path, cwd: Path | None = None) -> Finished:
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd or home.parent,
        env={**os.environ, "AUTOTUNE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def kill_after(arguments: list[str], home: Path, delay_s: float, moment: Callable[[], bool] | None = None) -> bool:
    """Run until the moment comes, and so many seconds more, then `kill -9`; False when it had ended before."""
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    with subprocess.Popen(
        [*PROGRAM, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while moment is not None and not moment() and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        try:
            process.wait(timeout=delay_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        return False


def finished_rows(home: Path, study: str) -> list[str]:
    """The whole lines of results.jsonl: launches that were finished."""
    path = home / "studies" / study / "results.jsonl"
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def rows(home: Path, study: str) -> list[dict[str, Any]]:
    text = (home / "studies" / study / "results.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
