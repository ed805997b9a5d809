"""Ctrl-C and two tuners on one study."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.study.home import Home

from .cli import autotune, new_home, rows
from .processes import Process, start

# A workload of many load points: each launch takes long enough for a signal to come in between.
QUESTION = [
    *("run", "--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", "--study", "s"),
    *("--launches", "3", "--workload", "offline"),
    *("--space", str(Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml")),
]


@contextmanager
def running_study(home: Path) -> Iterator[Process]:
    """A study of which the first launch has ended."""
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    with start(*QUESTION, environment=environment, err=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "1/3" in line:
                    break
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_everything_and_says_how_to_go_on(tmp_path: Path, sent: signal.Signals) -> None:
    home = new_home(tmp_path)
    with running_study(home) as process:
        process.send_signal(sent)
        assert process.stderr is not None
        rest = process.stderr.read()
        assert process.wait() == 130
    command = rest.splitlines()[-1]
    assert shlex.split(command) == ["autotune", "resume", "s", "--home", str(home)], "alone on its line"
    assert "Traceback" not in rest
    kept = rows(home, "s")
    assert len(kept) >= 1
    assert "UNFINISHED" in autotune("report", "s", home=home).out
    # In another folder, by a shell that does not know AUTOTUNE_HOME.
    done = autotune(*shlex.split(command)[1:], home=tmp_path / "another home")
    assert done.code == 0, done.err
    assert rows(home, "s")[: len(kept)] == kept


def test_an_interruption_while_an_object_is_finalised_is_not_lost() -> None:
    code = """
import signal, sys, threading
from autotune.cli.tuning import interrupt_again
sys.unraisablehook = interrupt_again

class Finalised:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

one = Finalised()
del one
try:
    threading.Event().wait(60)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_the_command_to_go_on_holds_in_any_folder_and_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Home(Path("mlruns")).resume_command("s") == f"autotune resume s --home {tmp_path}/mlruns"
    assert Home(Path("../my runs")).resume_command("s") == f"autotune resume s --home '{tmp_path.parent}/my runs'"


def test_a_second_tuner_is_refused(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    with running_study(home) as process:
        # Stopped, it neither ends nor lets go of its study.
        process.send_signal(signal.SIGSTOP)
        second = autotune("resume", "s", home=home)
        assert second.code == 2
        assert "another" in second.err
        assert "Traceback" not in second.err
        process.kill()
