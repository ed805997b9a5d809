"""Silence of a start: what a server repeats is no progress, and a lock that nobody holds is not
waited for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from autotune.engines.failure import FailureKind
from autotune.engines.library import Library, shared_files
from autotune.servers import ShutdownTimeouts, StartupTimeouts
from autotune.servers.logs import Progress, heartbeats_of
from tests.processes import until
from tests.servers.settings import PATIENT, launch

LOGS = yaml.safe_load(Path(__file__).with_name("start_logs.yaml").read_text())
SHORT = StartupTimeouts(total_s=60.0, silence_s=1.0)
KILLED = ShutdownTimeouts(terminate_s=0.2, kill_s=10.0)
ENGINES = ["vllm", "sglang", "tensorrt_llm"]


def counted(path: Path, engine: str, lines: list[str], end: str = "\n") -> list[bool]:
    """Whether each line, printed after the ones before it, is progress."""
    path.write_bytes(b"")
    progress = Progress(path, 0, ["/health"], heartbeats_of(Library().engine(engine)))
    before = progress()
    found = []
    for line in lines:
        with path.open("a") as stream:
            stream.write(line + end)
        found.append(progress() > before)
        before = progress()
    return found


@pytest.mark.parametrize("end", ["\n", "\r"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_line_of_a_real_start_is_progress(tmp_path: Path, engine: str, end: str) -> None:
    lines = [line for log in LOGS["news"] for line in log["lines"]]
    found = counted(tmp_path / "log", engine, lines, end)
    assert [line for line, news in zip(lines, found, strict=True) if not news] == []


@pytest.mark.parametrize("log", LOGS["waits"], ids=lambda log: log["source"][:40])
def test_no_line_of_a_real_wait_is_progress(tmp_path: Path, log: dict[str, list[str]]) -> None:
    found = counted(tmp_path / "log", str(log["engine"]), log["lines"])
    assert [line for line, news in zip(log["lines"], found, strict=True) if news] == []


@pytest.mark.parametrize("log", LOGS["news"], ids=lambda log: log["source"][:40])
def test_a_line_that_comes_again_later_is_no_progress(
    tmp_path: Path, log: dict[str, list[str]]
) -> None:
    """With another time and another speed, as a bar is drawn again."""
    again = [line.replace("00:0", "07:1").replace("it/s", "0it/s") for line in log["lines"]]
    found = counted(tmp_path / "log", "vllm", [*log["lines"], *again])
    assert found[len(again) :] == [False] * len(again)


def test_a_line_in_two_pieces_is_one(tmp_path: Path) -> None:
    line = (
        "12:00:00 [shm_broadcast.py:681] No available shared memory broadcast block found in 60 s"
    )
    pieces = [line[:40], f"{line[40:]}\n", line[:40], f"{line[40:]}\n"]
    assert counted(tmp_path / "log", "vllm", pieces, "") == [True, False, False, False]


@pytest.mark.parametrize(
    "line",
    [
        "INFO {clock} [core.py:12] nothing yet",
        "{clock} still waiting, {count} s",
        "{clock} pid={count}: try again",
    ],
)
def test_a_start_that_repeats_itself_is_silent(tmp_path: Path, line: str) -> None:
    with launch(tmp_path, "--repeat", line) as server:
        failure = server.wait_ready(SHORT)
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    assert "nothing for 1 s that was new" in failure.message
    assert "Its last line: " in failure.message


def lock_in(folder: Path) -> Path:
    """A lock's path, which the stand-in's card lists."""
    (folder / "jit").mkdir()
    return folder.resolve() / "jit" / "lock_module_x"


def test_a_lock_that_nobody_holds_is_not_waited_for(tmp_path: Path) -> None:
    lock = lock_in(tmp_path)
    lock.touch()
    with launch(tmp_path / "trial", "--say", f"waits for {lock}", "--silent") as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert failure.lasting
    assert f"{lock}, which no process holds" in failure.message
    # It was there before: somebody else's.
    assert lock.exists()
    assert f"locks left behind: {lock} (there before the launch)" in log_of(tmp_path)


def test_a_lock_that_is_held_is_waited_for(tmp_path: Path) -> None:
    lock = lock_in(tmp_path)
    with launch(
        tmp_path / "trial", "--lock", str(lock), "--say", f"waits for {lock}", "--silent"
    ) as server:
        failure = server.wait_ready(StartupTimeouts(total_s=60.0, silence_s=1.5))
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT


def test_the_lock_of_a_killed_server_goes_with_it(tmp_path: Path) -> None:
    lock = lock_in(tmp_path)
    options = ["--lock", str(lock), "--silent", "--ignore-term"]
    with launch(tmp_path / "trial", *options, timeouts=KILLED):
        assert until(lock.exists)
    assert not lock.exists()
    assert "left behind" not in log_of(tmp_path)


def test_locks_that_may_be_another_ones_stay(tmp_path: Path) -> None:
    """Held by this process; reached by a link; too long; of another name; there before."""
    folder = lock_in(tmp_path).parent
    link = tmp_path.resolve() / "link"
    link.symlink_to(folder)
    told = [
        folder / "lock_held",
        link / "jit" / "lock_x",
        folder / "lock_long",
        folder / "mine.txt",
    ]
    said = "\n".join(f"wants {path}" for path in told)
    with launch(tmp_path / "trial", "--say", said, "--silent", timeouts=KILLED):
        assert until(lambda: "mine.txt" in log_of(tmp_path))
        (folder / "jit").mkdir()
        held = os.open(told[0], os.O_CREAT | os.O_WRONLY)
        (folder / "jit" / "lock_x").touch()
        told[2].write_text("x" * 5000)
        told[3].touch()
    os.close(held)
    assert all(path.exists() for path in told)
    log = log_of(tmp_path)
    assert f"{told[0]} (open in another process)" in log
    assert f"{told[1]} (no file of its own)" in log
    assert f"{told[2]} (too long for a lock)" in log
    assert "mine.txt (" not in log


PATHS = {
    "/sgl-workspace/aiter/aiter/jit/build/lock_module_rmsnorm": True,
    "/usr/local/lib/python3.12/dist-packages/aiter/jit/build/lock_mha_fwd_bf16": True,
    "/root/.aiter/jit/build/module_moe_sorting/build/lock": True,
    "/tmp/aiter_configs/tuned_fmoe.csv.lock": True,
    "/root/.cache/torch_extensions/py312_cu128/my-extension/lock": True,
    "/root/.aiter/jit/build/module_rmsnorm/module_rmsnorm.so": False,
    "/home/me/build/lock_module_rmsnorm": False,
    "/home/me/aiter/notes/lock_1": False,
    "/tmp/aiter_configs/tuned_fmoe.csv": False,
    "/models/aiter/jit/build/model-00001-of-00002.safetensors": False,
    "/home/me/.cache/huggingface/hub/.locks/model.lock": False,
}


@pytest.mark.parametrize(("path", "listed"), PATHS.items())
def test_the_paths_of_locks(path: str, listed: bool) -> None:
    found = [lock.pattern for lock in shared_files().locks if re.fullmatch(lock.pattern, path)]
    assert (len(found) > 0) is listed


def log_of(folder: Path) -> str:
    return (folder / "trial" / "server.log").read_text()
