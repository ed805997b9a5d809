"""A home on a network file system: without locks it is refused, with locks of one machine no launch
is doubled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.product.cli import Finished, autotune, finished_rows, new_home, rows
from tests.product.processes import PROGRAM

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to take the locks away"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="libraries are preloaded in another way there"
    ),
]
SPACE = Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml"
QUESTION = [
    "--model",
    "openai/gpt-oss-120b",
    "--hw",
    "h200",
    "--engine",
    "vllm",
    "--on",
    "simulator",
]
QUESTION += [
    "--workload",
    "random:64:8:16",
    "--launches",
    "4",
    "--space",
    str(SPACE),
    "--allow",
    "shorter-context",
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "file_locks.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", path, Path(__file__).with_name("file_locks.c")], check=True
    )
    return path


def on_network(library: Path, home: Path, *arguments: str) -> Finished:
    return autotune(*arguments, home=home, fresh=True, LD_PRELOAD=str(library), FILE_LOCKS="none")


def test_a_study_that_cannot_be_locked_is_refused(tmp_path: Path, library: Path) -> None:
    home = new_home(tmp_path)
    done = on_network(library, home, "run", *QUESTION, "--study", "s")
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert (
        f"the file system of {home / 'studies' / 's'} has no locks (No locks available)" in done.err
    )
    assert "choose a --home on a local disk" in done.err
    assert autotune("list", "--json", home=home).json == [], "what was refused is no study"


def test_what_was_finished_elsewhere_can_be_read_without_locks(
    tmp_path: Path, library: Path
) -> None:
    home = new_home(tmp_path)
    assert autotune("run", *QUESTION, "--study", "s", home=home).code == 0
    kept = (home / "studies" / "s" / "results.jsonl").read_bytes()
    listed = on_network(library, home, "list", "--json")
    assert [(row["study"], row["state"]) for row in listed.json] == [("s", "finished")], listed.err
    again = on_network(library, home, "resume", "s")
    assert again.code == 0, again.err
    assert "MLflow was not updated: the file system" in again.err
    assert (home / "studies" / "s" / "results.jsonl").read_bytes() == kept


def test_tuners_that_do_not_see_each_other_s_locks_double_no_launch(
    tmp_path: Path, library: Path
) -> None:
    """As those of two machines: the first stops as soon as it would add a launch behind the
    second's."""
    home = new_home(tmp_path)
    environment = {
        **os.environ,
        "AUTOTUNE_HOME": str(home),
        "LD_PRELOAD": str(library),
        "FILE_LOCKS": "local",
    }
    command = [*PROGRAM, "run", *QUESTION, "--study", "s", "--workload", "offline"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        try:
            assert any("1/4" in line for line in first.stderr)
            first.send_signal(signal.SIGSTOP)
            begun = len(finished_rows(home, "s"))
            second = autotune("resume", "s", home=home)
            first.send_signal(signal.SIGCONT)
            rest = first.stderr.read()
            first.wait()
        finally:
            first.kill()
    assert second.code == 0, second.err
    assert first.returncode == 130, rest
    assert "another process has written to " in rest
    assert "look for a second tuner of this study on other machines" in rest
    numbers = [row["number"] for row in rows(home, "s")]
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(numbers) > begun
