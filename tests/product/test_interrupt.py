"""Ctrl-C and two tuners on one study."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.servers.processes import descendants, process_table
from autotune.tuner.study.home import Home
from tests.processes import until
from tests.product.cli import autotune, finished_rows, kill_after, new_home, rows
from tests.product.processes import Process, start
from tests.product.test_real_path import nothing_is_left

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


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_keeps_everything_and_says_how_to_go_on(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    home = new_home(tmp_path)
    with running_study(home) as process:
        process.send_signal(sent)
        assert process.stderr is not None
        rest = process.stderr.read()
        assert process.wait() == code
    command = rest.splitlines()[-1]
    assert shlex.split(command) == ["autotune", "resume", "s", "--home", str(home)], (
        "alone on its line"
    )
    assert "Traceback" not in rest
    kept = rows(home, "s")
    assert len(kept) >= 1
    assert "UNFINISHED" in autotune("report", "s", home=home).out
    # In another folder, by a shell that does not know AUTOTUNE_HOME.
    done = autotune(*shlex.split(command)[1:], home=tmp_path / "another home")
    assert done.code == 0, done.err
    assert rows(home, "s")[: len(kept)] == kept


def test_two_interruptions_at_once_say_how_to_go_on(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    with running_study(home) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        rest = process.stderr.read()
        assert process.wait() == 130
    assert "Traceback" not in rest
    assert shlex.split(rest.splitlines()[-1]) == ["autotune", "resume", "s", "--home", str(home)]


SIDE_BY_SIDE = [
    *(
        "run",
        "--model",
        "openai/gpt-oss-120b",
        "--hw",
        "h200",
        "--gpus",
        "4",
        "--on",
        "emulator",
        "--engine",
        "vllm",
    ),
    *("--workload", "random:64:200:4", "--launches", "12", "--study", "s"),
]


def at_its_first_line(process: Process) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def while_children_start(process: Process) -> str:
    """A process for each half of the GPUs is there, and has not yet been told what to do."""
    assert until(lambda: len(descendants(process_table(), [process.pid])) >= 2)
    return ""


@pytest.mark.parametrize("moment", [at_its_first_line, while_children_start])
@pytest.mark.parametrize("begun", [False, True], ids=["run", "resume"])
def test_sigterm_at_the_start_is_one_line_and_143(
    tmp_path: Path, begun: bool, moment: Callable[[Process], str]
) -> None:
    home = new_home(tmp_path)
    if begun:
        assert kill_after(SIDE_BY_SIDE, home, 0.0, lambda: len(finished_rows(home, "s")) >= 1)
    before = finished_rows(home, "s")
    words = ["resume", "s"] if begun else SIDE_BY_SIDE
    with start(
        *words, environment={**os.environ, "AUTOTUNE_HOME": str(home)}, err=subprocess.PIPE
    ) as process:
        said = moment(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said += process.stderr.read()
        assert process.wait() == 143
    assert "Traceback" not in said
    last = said.rstrip().splitlines()
    if (home / "studies" / "s" / "study.yaml").exists():
        assert shlex.split(last[-1]) == ["autotune", "resume", "s", "--home", str(home)]
        assert last[-2].startswith(("autotune: interrupted; continue with:", "autotune: stopped, "))
    else:
        assert last[-1].startswith("autotune: interrupted")
    assert nothing_is_left(home, 5.0) == []
    assert finished_rows(home, "s")[: len(before)] == before


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


def test_ctrl_z_stops_it_also_while_a_process_of_its_own_starts() -> None:
    """Otherwise the terminal hangs: a study starts its servers in sessions of their own."""
    code = """
import contextlib, subprocess
from autotune.cli.tuning import suspend_with
suspend_with(contextlib.nullcontext)
print(flush=True)
while True:
    subprocess.Popen(["true"], start_new_session=True).wait()
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as starting:

        def changed(how: int) -> bool:
            options = os.WNOHANG | how
            return until(lambda: os.waitid(os.P_PID, starting.pid, options) is not None)

        try:
            assert starting.stdout is not None
            starting.stdout.readline()
            for _ in range(100):
                os.killpg(starting.pid, signal.SIGTSTP)
                assert changed(os.WSTOPPED)
                os.killpg(starting.pid, signal.SIGCONT)
                assert changed(os.WCONTINUED)
        finally:
            os.killpg(starting.pid, signal.SIGKILL)


def test_the_command_to_go_on_holds_in_any_folder_and_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Home(Path("mlruns")).resume_command("s") == f"autotune resume s --home {tmp_path}/mlruns"
    assert (
        Home(Path("../my runs")).resume_command("s")
        == f"autotune resume s --home '{tmp_path.parent}/my runs'"
    )


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
