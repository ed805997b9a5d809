"""What is no fault of the configuration is tried again, then told as such; the node is looked at
around each launch."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import BadInput, CannotGoOn
from autotune.base.notify import Stage
from autotune.engines.command import Command
from autotune.engines.failure import FailureKind, Phase
from autotune.engines.installed import InstalledEngine
from autotune.servers import ShutdownTimeouts
from autotune.servers.ports import lease_port
from autotune.servers.preflight import Node
from autotune.tuner.backends.servers import ServerEvaluator, node_of
from autotune.tuner.study.results import launch_of, row_of
from autotune.tuner.trial import Launch, State, Trial
from tests.servers.settings import GpuFile, alive_with
from tests.tuner.backends.test_launched import LIBRARY, SPEC, trial

PROGRAM = Path(__file__).with_name("engine_in_front.py")
PORT = "OSError: [Errno 98] Address already in use"
NO_MODEL = "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"


class Waits:
    """Takes the place of the clock between tries, and of the one who is told."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.told: list[str] = []
        self.stages: list[str] = []

    def hear(self, message: str | Stage) -> None:
        if isinstance(message, Stage):
            self.stages.append(message.doing)
        else:
            self.told.append(message)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    return tmp_path / "cache"


def launched(tmp_path: Path, waits: Waits, **more: Any) -> ServerEvaluator:
    spec = SPEC.model_copy(update={"on": "process"})
    node = more.pop("node", Node(gpus=tuple))
    more |= {
        "shutdown": ShutdownTimeouts(2.0, 10.0),
        "pause": waits.seconds.append,
        "notify": waits.hear,
    }
    return ServerEvaluator(spec, LIBRARY, tmp_path, node=node, **more)


def failing(tmp_path: Path, times: int, words: str, number: int = 3) -> Trial:
    """A trial whose server fails so often before it runs."""
    base = trial("vllm")
    argv = (sys.executable, str(PROGRAM), str(tmp_path), str(times), words, *base.command.argv)
    return replace(base, number=number, command=Command(argv))


def starts(tmp_path: Path) -> int:
    path = tmp_path / "starts"
    return int(path.read_text()) if path.exists() else 0


def test_a_port_that_was_taken_is_tried_again(tmp_path: Path, waits: Waits) -> None:
    result = launched(tmp_path, waits)(failing(tmp_path, 2, PORT))
    assert (result.state, result.failure) == (State.COMPLETE, None)
    assert waits.seconds == [1.0, 10.0]
    assert "Errno 98" in waits.told[0]
    assert waits.told[0].endswith("(try 2 of 4 in 1 s)")
    again = ["starting", "stopping", "waiting for the next try"]
    assert waits.stages == [
        *again,
        *again,
        "starting",
        f"loaded with {SPEC.workloads[0]}",
        "stopping",
    ]
    log = (tmp_path / "trials" / "0003" / "server.log").read_text()
    assert log.count("Errno 98") == 2, "one log tells of every try"


def test_missing_kernels_are_a_remark_beside_a_result(tmp_path: Path, waits: Waits) -> None:
    words = "WARNING Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json"
    trial = failing(tmp_path, 0, words)
    result = launched(tmp_path, waits)(trial)
    assert "no tuned Triton kernels" in result.remarks[0]
    row = json.loads(json.dumps(row_of(Launch(trial, result))))
    assert launch_of(row).result.remarks == result.remarks


def test_what_stays_says_nothing_about_the_configuration(tmp_path: Path, waits: Waits) -> None:
    result = launched(tmp_path, waits)(failing(tmp_path, 9, PORT))
    assert result.state is State.INVALID
    assert result.failure is not None
    assert result.failure.kind is FailureKind.PORT
    assert (waits.seconds, starts(tmp_path)) == ([1.0, 10.0, 60.0], 4)


def test_a_first_launch_that_cannot_be_made_stops_the_study(tmp_path: Path, waits: Waits) -> None:
    with pytest.raises(
        CannotGoOn,
        match=r"the first launch failed, but not because of its configuration: .*Errno 98",
    ):
        launched(tmp_path, waits)(failing(tmp_path, 9, PORT, number=0))


@pytest.mark.parametrize("number", [0, 3])
def test_a_model_that_is_missing_is_not_waited_for(
    tmp_path: Path, waits: Waits, number: int
) -> None:
    asked = failing(tmp_path, 9, NO_MODEL, number)
    if number == 0:
        with pytest.raises(CannotGoOn, match="The model does not exist at the command"):
            launched(tmp_path, waits)(asked)
    else:
        assert launched(tmp_path, waits)(asked).state is State.INVALID
    assert (waits.seconds, starts(tmp_path)) == ([], 1)


def test_what_the_configuration_breaks_is_not_tried_again(tmp_path: Path, waits: Waits) -> None:
    words = (
        "INFO 11-21 15:36:51 [gpu_model_runner.py:5040] Starting to load model m...\n"
        "ERROR 11-21 15:36:59 [core.py:708] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    result = launched(tmp_path, waits)(failing(tmp_path, 9, words))
    assert result.state is State.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.failure.phase) == (FailureKind.OUT_OF_MEMORY, Phase.LOAD)
    assert "The weights do not fit" in result.failure.message
    assert starts(tmp_path) == 1


def test_ports_that_are_all_taken(tmp_path: Path, waits: Waits) -> None:
    with closing(lease_port()) as lease:
        result = launched(tmp_path, waits, ports=[lease.port])(failing(tmp_path, 0, ""))
    assert result.state is State.INVALID
    assert result.failure is not None
    assert result.failure.kind is FailureKind.PORT
    assert "end the servers that hold them" in result.failure.message
    assert (len(waits.seconds), starts(tmp_path)) == (3, 0)


def test_a_busy_gpu_keeps_servers_from_being_launched(tmp_path: Path, waits: Waits) -> None:
    node = Node(gpus=GpuFile(tmp_path / "gpus.json").write(71.2), count=1)
    with pytest.raises(CannotGoOn, match=r"GPU 0 \(H200\) is not idle: 71\.2 GB"):
        launched(tmp_path, waits, node=node)(failing(tmp_path, 0, ""))
    assert (len(waits.seconds), starts(tmp_path)) == (3, 0)


def test_memory_that_stays_taken_is_a_quarantine_and_the_measurement_counts(
    tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCH_TEST", str(tmp_path))
    node = Node(gpus=GpuFile(tmp_path / "gpus.json").write(0.6), count=1, settle_s=0.0)
    result = launched(tmp_path, waits, node=node)(failing(tmp_path, 0, ""))
    assert result.state is State.COMPLETE
    assert "random:64:8:16" in result.metrics
    assert result.quarantine.startswith("GPU 0 (H200) still holds 130.0 GB (0.6 GB before)")
    assert "nvidia-smi --gpu-reset -i 0" in result.quarantine
    assert alive_with(f"LAUNCH_TEST={tmp_path}") == []


def test_compiled_kernels_are_kept_by_engine_version_and_gpu(
    tmp_path: Path, waits: Waits, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_CACHE_PATH", "/mine")
    asked = failing(tmp_path, 9, NO_MODEL)
    asked = replace(
        asked, command=replace(asked.command, env={"TRITON_CACHE_DIR": "/the/command's"})
    )
    launched(tmp_path, waits)(asked)
    environment = json.loads((tmp_path / "environment.json").read_text())
    folder = caches / "autotune" / "jit" / "vllm" / asked.engine_version / "h200" / "vllm"
    assert environment["VLLM_CACHE_ROOT"] == str(folder)
    assert folder.is_dir()
    assert environment["CUDA_CACHE_PATH"] == "/mine"
    assert environment["TRITON_CACHE_DIR"] == "/the/command's"


def test_kernels_belong_to_the_version_that_is_installed(
    tmp_path: Path, waits: Waits, caches: Path
) -> None:
    evaluate = launched(tmp_path, waits)
    installed = {"vllm": InstalledEngine(program=("vllm",), version="0.33.1+cu129")}
    spec = evaluate.spec.model_copy(update={"installed": installed})
    replace(evaluate, spec=spec)(failing(tmp_path, 9, NO_MODEL))
    assert (caches / "autotune" / "jit" / "vllm" / "0.33.1+cu129" / "h200" / "vllm").is_dir()


def test_a_user_without_a_home_is_told_what_to_set(
    tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "~nobody-of-this-name")
    with pytest.raises(BadInput, match="has no home folder; set XDG_CACHE_HOME"):
        launched(tmp_path, waits)(failing(tmp_path, 0, ""))


def test_a_study_on_processors_needs_no_idle_gpu() -> None:
    spec = SPEC.model_copy(update={"on": "process", "gpus": 1})
    cpu = spec.model_copy(update={"hardware": spec.hardware.model_copy(update={"vendor": "cpu"})})
    assert replace(node_of(spec), caches={}) == Node(count=1)
    assert node_of(cpu).gpus() == ()


def test_a_cache_folder_that_cannot_be_made_is_bad_input(
    tmp_path: Path, waits: Waits, caches: Path
) -> None:
    caches.write_text("a file")
    with pytest.raises(
        BadInput, match=r"the cache folder .* cannot be created .*; set XDG_CACHE_HOME"
    ):
        launched(tmp_path, waits)(failing(tmp_path, 0, ""))
    assert starts(tmp_path) == 0


def test_a_server_that_dies_at_nine_tenths_of_a_load(
    tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """90 short answers and 10 long ones: when the short ones are there, it has 180 tokens behind
    it, and 2000 to go."""
    monkeypatch.setenv("AUTOTUNE_EMULATE_FAULT", "die-mid-load:1000")
    monkeypatch.setenv("LAUNCH_TEST", str(tmp_path))
    prompts = tmp_path / "load.jsonl"
    lengths = [2] * 90 + [200] * 10
    prompts.write_text(
        "".join(json.dumps({"prompt": "one two", "output_tokens": n}) + "\n" for n in lengths)
    )
    asked = replace(failing(tmp_path, 0, ""), workloads=(f"jsonl:{prompts}",))
    result = launched(tmp_path, waits)(asked)
    assert result.state is State.FAILED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.CRASHED
    assert "an illegal memory access was encountered" in result.failure.log_excerpt
    (kept,) = (tmp_path / "trials" / "0003").glob("jsonl*.json")
    assert json.loads(kept.read_text())["outcomes"] == {"ok": 90, "closed": 10}
    assert waits.seconds == []
    assert alive_with(f"LAUNCH_TEST={tmp_path}") == []
