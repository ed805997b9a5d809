"""Runs the real command line as a user does: a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from click.testing import CliRunner

from autotune.base.errors import AutotuneError
from autotune.cli.main import cli
from tests.product.processes import PROGRAM, start, warm

SHARED = Path(__file__).resolve().parents[3] / "shared"


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def unbroken(self) -> str:
        """What was printed, with each command that is broken over several lines in one."""
        return re.sub(r" \\\n +", " ", self.out)

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def autotune(
    *arguments: str, home: Path, cwd: Path | None = None, fresh: bool = False, **variables: str
) -> Finished:
    """Run a command line to its end, in a process of its own.

    Args:
        fresh: start Python for it, as a person's shell does; else its modules are loaded before,
            which saves seconds.
        variables: for its environment, besides this process's.
    """
    environment, folder = (
        {**os.environ, "AUTOTUNE_HOME": str(home), **variables},
        cwd or home.parent,
    )
    if not fresh and warm().fits(environment):
        # Not pipes: what it leaves running would hold them open.
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            code = warm().start(arguments, environment, folder, out.fileno(), err.fileno()).wait()
            return Finished(code, *(file.seek(0) or file.read() for file in (out, err)))
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def here(*arguments: str, home: Path) -> Finished:
    """Run a command line to its end in this process, which has read the packaged files before."""
    done = CliRunner().invoke(cli, arguments, env={"AUTOTUNE_HOME": str(home)})
    if isinstance(done.exception, AutotuneError):
        return Finished(
            done.exception.exit_code, done.stdout, f"{done.stderr}autotune: {done.exception}\n"
        )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Finished(done.exit_code, done.stdout, done.stderr)


def new_home(folder: Path) -> Path:
    """A home folder whose MLflow database is made, and empty: each one costs seconds."""
    home = folder / "home"
    home.mkdir()
    shutil.copy(warm().database(), home / "mlflow.db")
    return home


def kill_after(
    arguments: list[str], home: Path, delay_s: float, moment: Callable[[], bool] | None = None
) -> bool:
    """Run until the moment comes, and so many seconds more, then `kill -9`; False when it had ended
    before."""
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    with start(
        *arguments, environment=environment, out=subprocess.DEVNULL, err=subprocess.DEVNULL
    ) as process:
        while moment is not None and not moment() and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        try:
            process.wait(timeout=delay_s)
        except subprocess.TimeoutExpired:
            process.kill()
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
