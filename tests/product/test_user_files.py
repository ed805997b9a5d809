"""What is the user's stays the user's, however a study ends: byte for byte, with its mode and under
its inode.

Studies run on the emulator with a user's weights, caches, temporary files and logs around them,
some held open and mapped by the servers (`user_files`), and a model that is copied into
``/dev/shm`` while a launch loads. They end at random moments, in every way. Shown by `-m slow -s
tests/product/test_user_files.py`: 100 ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from uuid import uuid4

import pytest

from autotune.servers.processes import Process as Line
from autotune.servers.processes import descendants, process_table
from tests.processes import until
from tests.product.cli import finished_rows, new_home
from tests.product.processes import Started, warm
from tests.product.test_real_path import launched_processes, nothing_is_left
from tests.product.user_files.sitecustomize import HELD

QUESTION = [
    *(
        "run",
        "--model",
        "openai/gpt-oss-120b",
        "--hw",
        "h200",
        "--on",
        "emulator",
        "--engine",
        "vllm",
    ),
    *("--workload", "random:64:50:4", "--launches", "12", "--study", "s"),
]
SHARES = (["--gpus", "4"], ["--gpus", "8"])
"""Two launches at a time, or one."""
ENDS = [20, pytest.param(100, marks=pytest.mark.slow)]
LATEST_S = 1.5
"""Seconds after a server's start within which it ends."""
HOOK = Path(__file__).with_name("user_files")


@dataclass
class Files:
    """The user's files, and what they were when he wrote them."""

    written: dict[Path, tuple[bytes, int, int]] = field(default_factory=dict)
    compared: int = 0

    def write(self, path: Path, mode: int, content: bytes | None = None) -> None:
        content = os.urandom(8192) if content is None else content
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            # In pieces, as a copy: whoever looks meanwhile finds a part of it.
            for begin in range(0, len(content), 1024):
                file.write(content[begin : begin + 1024])
                file.flush()
        path.chmod(mode)
        self.written[path] = (content, mode, path.stat().st_ino)

    def changed(self) -> list[str]:
        """What is not as it was written."""
        self.compared += len(self.written)
        return [
            f"{path}: {why}" for path, was in self.written.items() if (why := difference(path, was))
        ]


def difference(path: Path, was: tuple[bytes, int, int]) -> str:
    content, mode, inode = was
    try:
        status = path.lstat()
        if (status.st_mode & 0o777, status.st_ino) != (mode, inode):
            return "another mode or inode"
        return "" if path.read_bytes() == content else "other bytes"
    except FileNotFoundError:
        return "gone"


@dataclass
class World:
    """A user's folders, with his files in them."""

    shm: Path
    temporary: Path
    cache: Path
    folder: Path
    files: Files = field(default_factory=Files)

    def fill(self) -> None:
        """Write the files that are there before any launch: both modes, in each place, held by
        servers or not."""
        places = {
            self.shm / "model": ("model-00001-of-00002.safetensors", "config.json"),
            self.shm.parent: (
                f"{self.shm.name}.gguf",
                f"psm_{uuid4().hex[:8]}",
                f"nccl-{uuid4().hex[:6]}",
            ),
            self.temporary: ("notes.txt", "autotune-0123456789ab/keep.bin"),
            self.cache: ("huggingface/hub/models--a--b/blobs/0f", "autotune/jit/vllm/mine.so"),
            self.folder: ("server.log", "report.md", "serve.sh", "studies/mine/report.md"),
        }
        for folder, names in places.items():
            for number, name in enumerate(names):
                self.files.write(folder / name, (0o600, 0o644)[number % 2])
                # A twin of the other mode, which no server holds.
                self.files.write(folder / f"{name}.idle", (0o644, 0o600)[number % 2])

    @property
    def held(self) -> str:
        named = [str(path) for path in self.files.written if not path.name.endswith(".idle")]
        return ":".join([*named, f"{self.shm}/*.safetensors", f"{self.shm}.copied-*"])

    def environment(self, home: Path) -> dict[str, str]:
        own = {
            "AUTOTUNE_HOME": str(home),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.cache),
        }
        return {**os.environ, **own, HELD: self.held, "PYTHONPATH": str(HOOK)}

    @contextmanager
    def copying(self, number: int) -> Iterator[None]:
        """A model is copied into ``/dev/shm`` meanwhile: to a folder of the user's, and beside
        it."""

        def copy() -> None:
            for place in (
                self.shm / f"copied-{number}.safetensors",
                self.shm.with_name(f"{self.shm.name}.copied-{number}"),
            ):
                self.files.write(place, (0o600, 0o644)[number % 2], os.urandom(1 << 18))

        thread = threading.Thread(target=copy)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def remove(self) -> None:
        for path in self.files.written:
            path.unlink(missing_ok=True)
        rmtree(self.shm, ignore_errors=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    # Short, as a server's folder for sockets is made in it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="u") as temporary:
        made = World(
            Path(f"/dev/shm/user-{uuid4().hex[:12]}"),
            Path(temporary),
            tmp_path / "cache",
            tmp_path / "work",
        )
        try:
            made.fill()
            yield made
        finally:
            made.remove()


@dataclass
class Tuner:
    """A study's tuner; begun anew, or resumed, when it has ended."""

    world: World
    folder: Path
    homes: int = 0
    home: Path = Path()
    process: Started | None = None

    def running(self) -> Started:
        """Return the tuner with a server that lives, started if there is none."""
        process = self._process()
        while not self._serves(process):
            process = self._process()
        return process

    def _serves(self, process: Started) -> bool:
        """Wait until a server lives; False if the tuner has ended before."""
        assert until(lambda: process.poll() is not None or bool(self.servers()), 240.0)
        return process.poll() is None

    def _process(self) -> Started:
        if self.process is not None and self.process.poll() is None:
            return self.process
        if self.home == Path() or (self.home / "studies" / "s" / "recommendation.json").exists():
            self.homes += 1
            place = self.folder / str(self.homes)
            place.mkdir(parents=True)
            self.home = new_home(place)
            self.world.files.write(self.home / "notes.md", 0o644)
        begun = (self.home / "studies" / "s" / "study.yaml").exists()
        words = ["resume", "s"] if begun else [*QUESTION, *SHARES[self.homes % 2]]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        self.world.folder.mkdir(exist_ok=True)
        self.process = warm().start(
            words, self.world.environment(self.home), self.world.folder, nowhere, os.dup(nowhere)
        )
        return self.process

    def servers(self) -> list[Line]:
        return [line for line in self._launched() if "emulate" in command_of(line.pid)]

    def watchdogs(self) -> list[Line]:
        return [
            line for line in self._launched() if "autotune.servers.watchdog" in command_of(line.pid)
        ]

    def _launched(self) -> list[Line]:
        table = process_table()
        return [table[pid] for pid in descendants(table, [self.process.pid if self.process else 0])]


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def gone(lines: list[Line]) -> bool:
    table = process_table()
    return not any(line.pid in table and table[line.pid].alive for line in lines)


def signalled(*numbers: signal.Signals) -> Callable[[Tuner], None]:
    def end(tuner: Tuner) -> None:
        process = tuner.running()
        for number in numbers:
            process.send_signal(number)
        process.wait()
        assert nothing_is_left(tuner.home, 30.0) == []

    return end


def killed(which: Callable[[Tuner], list[Line]]) -> Callable[[Tuner], None]:
    """Kill all watchdogs or servers that there are; the tuner lives on."""

    def end(tuner: Tuner) -> None:
        servers = tuner.servers()
        for line in which(tuner):
            with suppress(ProcessLookupError):
                os.kill(line.pid, signal.SIGKILL)
        assert until(lambda: gone(servers), 60.0), servers

    return end


def stopped_by_itself(tuner: Tuner) -> None:
    """A launch that is measured and ends as it should."""
    before = len(finished_rows(tuner.home, "s"))
    assert until(
        lambda: len(finished_rows(tuner.home, "s")) > before or tuner.running().poll() is not None,
        120.0,
    )


WAYS: dict[str, Callable[[Tuner], None]] = {
    "ordinary stop": stopped_by_itself,
    "kill -9 of the tuner": signalled(signal.SIGKILL),
    "kill -9 of the server": killed(Tuner.servers),
    "kill -9 of the watchdog": killed(Tuner.watchdogs),
    "Ctrl-C": signalled(signal.SIGINT),
    "Ctrl-C twice": signalled(signal.SIGINT, signal.SIGINT),
    "SIGTERM": signalled(signal.SIGTERM),
}


@pytest.mark.parametrize("ends", ENDS)
def test_nothing_of_the_users_changes_however_a_study_ends(
    tmp_path: Path, world: World, ends: int
) -> None:
    draw = random.Random(53)
    ways = [list(WAYS)[number % len(WAYS)] for number in range(ends)]
    draw.shuffle(ways)
    tuner = Tuner(world, tmp_path / "homes")
    met: Counter[str] = Counter()
    try:
        for number, way in enumerate(ways):
            process = tuner.running()
            with world.copying(number), suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0.0, LATEST_S))
            tuner.running()
            WAYS[way](tuner)
            met[way] += 1
            assert world.files.changed() == [], (number, way)
    finally:
        if tuner.process is not None:
            tuner.process.kill()
            tuner.process.wait()
        assert nothing_is_left(tuner.home, 60.0) == []
    assert world.files.changed() == []
    logs = [path.read_text(errors="replace") for path in (tmp_path / "homes").rglob("server.log")]
    naming = sum("[autotune: left in /dev/shm: " in log for log in logs)
    print(f"\n{ends} ends, nothing of the user's changed: {dict(met)}")
    print(
        f"{len(world.files.written)} files, {world.files.compared} comparisons, {tuner.homes} studies, ",
        end="",
    )
    print(f"{len(logs)} servers' logs, {naming} of them name what stays")
    assert naming > 0, "servers had the files open"
    assert launched_processes(tuner.home) == []
