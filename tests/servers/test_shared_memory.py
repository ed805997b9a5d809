"""A file in ``/dev/shm`` is removed only when it is proven to be the launch's; whatever else a
server maps stays."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.engines.command import Command
from autotune.engines.library import Library, shared_files
from autotune.engines.serving import SharedMemoryName
from autotune.servers.process import ProcessLauncher
from autotune.servers.shared_memory import LeftMemory, SharedFile, kept_line, open_files
from tests.servers.settings import CARD, GRACE, PATIENT, launch, memory_of, stand_in

SHM = Path("/dev/shm")
NAMES = ["autotune-test-[0-9a-f]{32}"]
HOLD = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
HOLD += "sys.argv[2] == 'open' or f.close(); print(flush=True); sys.stdin.read()"


@pytest.fixture
def own() -> Iterator[Path]:
    """A name of the kind that the stand-in's card lists; whatever lies there is removed in the
    end."""
    path = SHM / f"autotune-test-{uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the user's in ``/dev/shm``."""
    path = SHM / f"autotune-user-{uuid4().hex}"
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def written(path: Path, mode: int = 0o600) -> Path:
    path.touch(mode)
    path.chmod(mode)
    path.write_bytes(b"w" * mmap.PAGESIZE)
    return path


@contextmanager
def holding(path: Path, how: str = "mapped") -> Iterator[int]:
    """A process that has a file mapped, or open as well."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


def removed(
    path: Path,
    argv: tuple[str, ...] = ("engine",),
    environment: dict[str, str] | None = None,
    before: Callable[[], object] = lambda: None,
    between: Callable[[], object] = lambda: None,
) -> dict[str, list[str]]:
    """The proofs for a file that a launch's process maps and leaves; `before` happens before it,
    `between` after."""
    before()
    memory = LeftMemory(NAMES, argv, environment or {})
    if not path.exists():
        written(path)
    with holding(path) as pid:
        memory.look(lambda: [pid])
    between()
    return memory.remove()


def test_what_only_the_launch_used_goes(own: Path) -> None:
    assert removed(own) == {}
    assert not own.exists()


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("name", ["y.safetensors", f"autotune-test-{'0' * 32}"])
def test_a_model_in_a_folder_stays_that_was_there_before(
    folder: Path, name: str, mode: int
) -> None:
    """As on a real H200: weights in a folder of /dev/shm, mode 0600 as safetensors writes them."""
    weights = written(folder / name, mode)
    assert removed(weights) == {"there before the launch": [f"{folder.name}/{name}"]}
    assert weights.exists()


@pytest.mark.parametrize("name", ["y.safetensors", f"autotune-test-{'0' * 32}"])
def test_a_model_that_is_copied_there_during_the_launch_stays(folder: Path, name: str) -> None:
    kept = removed(folder / name)
    assert kept == {"not a name of the engine's shared memory": [f"{folder.name}/{name}"]}
    assert (folder / name).exists()


def test_a_name_that_no_card_lists_stays(own: Path) -> None:
    other = own.with_name(f"{own.name}.safetensors")
    try:
        assert list(removed(other)) == ["not a name of the engine's shared memory"]
        assert other.exists()
    finally:
        other.unlink()


def test_a_file_moved_there_after_the_launch_began_is_known_by_its_inode(
    folder: Path, own: Path
) -> None:
    weights = written(folder / "y.safetensors")
    memory = LeftMemory(NAMES, ["engine"], {})
    weights.rename(own)
    with holding(own) as pid:
        memory.look(lambda: [pid])
    assert memory.remove() == {"there before the launch": [own.name]}
    assert own.exists()


def test_a_file_that_somebody_else_had_open_once_stays(own: Path) -> None:
    memory = LeftMemory(NAMES, ["engine"], {})
    written(own)
    with holding(own) as ours, holding(own, "open"):
        memory.look(lambda: [ours])
    assert memory.remove() == {"open in another process": [own.name]}
    assert own.exists()


def test_a_file_that_somebody_else_has_open_in_the_end_stays(own: Path) -> None:
    memory = LeftMemory(NAMES, ["engine"], {})
    written(own)
    with holding(own) as ours:
        memory.look(lambda: [ours])
    with holding(own):
        assert memory.remove() == {"open in another process": [own.name]}
    assert own.exists()


def test_a_name_that_somebody_else_uses_anew_is_his(own: Path) -> None:
    """The server removes its file as it should, and another program takes the name."""
    another = own.with_name(f"{own.name}.new")

    def taken_over() -> None:
        # Written first, so that the two have different inodes.
        written(another).rename(own)

    assert removed(own, between=taken_over) == {}
    assert own.exists()


def test_a_file_with_a_second_name_stays(own: Path, folder: Path) -> None:
    second = folder / "linked"
    assert removed(own, between=lambda: os.link(own, second)) == {"shared with others": [own.name]}
    assert second.exists()
    assert own.exists()


def test_a_file_that_others_may_use_stays(own: Path) -> None:
    assert removed(own, between=lambda: own.chmod(0o644)) == {"shared with others": [own.name]}
    assert own.exists()


@pytest.mark.parametrize(
    ("argument", "variable"),
    [
        ("--shm {name}", ""),
        ("--model={path}", ""),
        ('{{"kv": {{"file": "{path}"}}}}', ""),
        ("--model={link}", ""),
        ("{linked}", ""),
        ("/dev/shm", ""),
        ("--model=/dev/../dev/shm/", ""),
        ("", "{path}"),
        ("", "/nowhere:{link}"),
        ("", "/dev/shm"),
    ],
)
def test_what_the_command_names_stays(
    own: Path, tmp_path: Path, argument: str, variable: str
) -> None:
    link, model = tmp_path / "weights", tmp_path / "model"
    model.mkdir()
    link.symlink_to(own)
    (model / "deep").mkdir()
    (model / "deep" / "y.safetensors").symlink_to(own)
    names = {"name": own.name, "path": str(own), "link": str(link), "linked": str(model)}
    kept = removed(
        own, ("engine", argument.format(**names)), {"VARIABLE": variable.format(**names)}
    )
    assert kept == {"named by the command": [own.name]}
    assert own.exists()


REASONS = ("before", "deep", "another name", "foreign", "named", "for others", "linked")


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sets(st.sampled_from(REASONS)))
def test_it_goes_only_if_nothing_speaks_against_it(folder: Path, reasons: set[str]) -> None:
    name = f"autotune-test-{uuid4().hex}{'.bin' * ('another name' in reasons)}"
    path, second = (folder if "deep" in reasons else SHM) / name, folder / "second"
    argv = ["engine", str(path) * ("named" in reasons)]
    before = LeftMemory(NAMES, argv, {})
    written(path, 0o644 if "for others" in reasons else 0o600)
    memory = LeftMemory(NAMES, argv, {}) if "before" in reasons else before
    if "linked" in reasons:
        os.link(path, second)
    with path.open("rb") as file:
        other = subprocess.Popen(["sleep", "60"], stdin=file) if "foreign" in reasons else None
        memory.look(lambda: [os.getpid()])
        if other is not None:
            other.kill()
            other.wait()
    kept = memory.remove()
    assert path.exists() == bool(reasons) == bool(kept)
    second.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def test_nothing_is_looked_at_for_a_program_without_names(own: Path) -> None:
    memory = LeftMemory([], [], {})
    written(own)
    with holding(own) as pid:
        memory.look(lambda: [pid])
    assert memory.remove() == {}
    assert own.exists()


def test_open_and_mapped_files_are_seen(own: Path) -> None:
    status = written(own).stat()
    expected = {SharedFile(str(own), (status.st_dev, status.st_ino))}
    for how in ("mapped", "open"):
        with holding(own, how) as pid:
            assert open_files([pid]) == expected


def test_a_line_names_what_stays() -> None:
    assert kept_line({}) == ""
    shards = [f"m/{i}" for i in range(7)]
    assert kept_line({"there before the launch": shards, "shared with others": ["a"]}) == (
        "[autotune: left in /dev/shm: m/0, m/1, m/2, m/3, m/4 and 2 more (there before the launch); "
        "a (shared with others)]"
    )


def test_a_launch_names_in_its_log_what_it_leaves(tmp_path: Path, folder: Path) -> None:
    weights = written(folder / "y.safetensors")
    with launch(tmp_path / "trial", "--map", str(weights), "--ignore-term") as server:
        assert server.wait_ready(PATIENT) is None
    assert weights.read_bytes() == b"w" * mmap.PAGESIZE
    last = server.log.read_text().splitlines()[-1]
    assert (
        last
        == f"[autotune: left in /dev/shm: {folder.name}/y.safetensors (there before the launch)]"
    )


def test_another_launch_of_ours_keeps_its_memory(tmp_path: Path) -> None:
    with launch(tmp_path / "0", "--share-memory") as first:
        assert first.wait_ready(PATIENT) is None
        with launch(tmp_path / "1", "--share-memory", "--ignore-term") as second:
            assert second.wait_ready(PATIENT) is None
        assert not memory_of(second).exists()
        assert memory_of(first).exists()
    assert not memory_of(first).exists()


def test_a_launch_again_begins_with_a_line_that_says_so(tmp_path: Path) -> None:
    with ProcessLauncher(GRACE).launch(Command(stand_in().argv), tmp_path, CARD) as first:
        assert first.wait_ready(PATIENT) is None
    assert "launched again" not in first.log.read_text()
    with first.log.open("ab") as log:
        log.write(b"half a li")
    before = first.log.stat().st_size
    with ProcessLauncher(GRACE).launch(Command(stand_in().argv), tmp_path, CARD) as second:
        assert second.wait_ready(PATIENT) is None
    said = second.log.read_bytes()[before:].decode().splitlines()
    assert said[0] == ""
    assert said[1].startswith("[autotune: launched again at 20")
    assert said[1].endswith(" UTC; what stands above is of an earlier launch of this trial]")


KNOWN = {
    "vllm": [
        "psm_0a1b2c3d",
        "nccl-vzIpS6",
        "torch_17_42_0",
        "vllm_offload_e-1.mmap",
        "vllm_mm_AAAAAAAAAAAAAAAAAAAAA_",
    ],
    "sglang": [
        "sglang_loads_tmpx1_00c0ffee.shm",
        "sgl_shm_mq_17_0a1b2c3d",
        "multi_tokenizer_args_17",
        "sem.mp-ab_c1234",
    ],
    "tensorrt_llm": ["vader_segment.node-1.8a3f0001.2", "psm_0a1b2c3d", "cuda.shm.0.1a2.3"],
}


@pytest.mark.parametrize("engine", KNOWN)
def test_each_engine_knows_the_names_that_it_leaves(engine: str) -> None:
    patterns = [*Library().engines[engine].serving.shared_memory, *shared_files().shared_memory]
    assert all(one.reason and one.source for one in patterns)
    memory = LeftMemory([one.pattern for one in patterns], [], {})
    assert [
        name
        for name in KNOWN[engine]
        if not memory.is_engines(SharedFile(f"/dev/shm/{name}", (0, 0)))
    ] == []


@given(
    st.from_regex(r"[A-Za-z0-9_.-]{1,40}", fullmatch=True),
    st.sampled_from([".safetensors", ".bin", ".gguf", ".json", ".pt", ".log", ".tar"]),
)
def test_no_name_of_a_users_file_is_an_engines(stem: str, suffix: str) -> None:
    own = [one for card in Library().engines.values() for one in card.serving.shared_memory]
    memory = LeftMemory([one.pattern for one in (*own, *shared_files().shared_memory)], [], {})
    assert not memory.is_engines(SharedFile(f"/dev/shm/{stem}{suffix}", (0, 0)))


@pytest.mark.parametrize("pattern", [".*", r"\S+", r"[\w.-]+"])
def test_a_pattern_that_a_model_would_match_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="would match a file of a model"):
        SharedMemoryName(pattern=pattern, reason="", source="")
