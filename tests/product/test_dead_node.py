"""A node on which nothing starts: the study stops after few launches, says why, and can be
resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engines.stand_ins import executable, python_with
from tests.product.cli import Finished, autotune, new_home, rows
from tests.product.test_real_path import nothing_is_left
from tests.weight_files import cache

ROOT = Path(__file__).resolve().parents[2]
MODEL = "deepseek-ai/DeepSeek-V3.2"

EMULATED = [
    ("sglang", "gpus-not-ready", "Error 802: system not yet initialized", "nvidia-fabricmanager"),
    ("vllm", "hub-unreachable", "We couldn't connect to 'https://huggingface.co'", "the download"),
    (
        "sglang",
        "model-unknown",
        f"{MODEL} is not a local folder and is not a valid model identifier",
        "id or path",
    ),
    (
        "vllm",
        "shard-truncated",
        "SafetensorError: Error while deserializing header",
        "download it again",
    ),
    (
        "tensorrt_llm",
        "mpi-slots-missing",
        "There are not enough slots available in the system",
        "MPI",
    ),
    (
        "tensorrt_llm",
        "gpus-missing",
        "Only 4 GPUs are available, but 8 are required",
        "CUDA_VISIBLE_DEVICES",
    ),
]
"""Engine, fault of the emulated node, and what the message says: the log's telling words, and the
way out."""
LAST_WORDS = {
    "vllm": "Engine core initialization failed",
    "sglang": "Received sigquit from a child process",
    "tensorrt_llm": "Executor worker returned error",
}
"""Each start that fails prints them once."""
NOT_READY = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
"""One of `EMULATED` said by a process; of the others tests/servers/test_failure_texts.py has the
words."""


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> tuple[Finished, Path, int]:
    """Run a study whose engine prints some words and ends; return what came of it, its home, and
    its starts."""
    starts = tmp_path / "starts"
    fails = (
        f"#!{python_with(tmp_path, vllm='0.32.0')}\nimport os, sys\n"
        f"open({str(starts)!r}, 'a').write('x' if '--port' in sys.argv else '')\n"
        f"sys.exit({says!r}.replace('PID', str(os.getpid())))\n"
    )
    program = executable(tmp_path / "bin" / "vllm", fails)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    cache(tmp_path / "hub", MODEL, ["model.safetensors"])
    question = [
        "--model",
        MODEL,
        "--hw",
        "h200",
        "--engine",
        "vllm",
        "--on",
        "process",
        "--study",
        "dead",
    ]
    few = [
        "--workload",
        "random:16:4:8",
        "--space",
        str(ROOT / "examples" / "small-space.yaml"),
        "--seed",
        "1",
    ]
    home = new_home(tmp_path)
    return autotune("run", *question, *few, home=home), home, len(starts.read_text())


@pytest.mark.parametrize(("engine", "fault", "says", "way_out"), EMULATED)
def test_an_emulated_node_with_a_fault_costs_one_start(
    tmp_path: Path, engine: str, fault: str, says: str, way_out: str
) -> None:
    home = new_home(tmp_path)
    question = [
        "--model",
        MODEL,
        "--hw",
        "h200",
        "--engine",
        engine,
        "--on",
        "emulator",
        "--study",
        "dead",
    ]
    few = [
        "--workload",
        "random:16:4:8",
        "--space",
        str(ROOT / "examples" / "small-space.yaml"),
        "--seed",
        "1",
    ]
    if engine == "tensorrt_llm":
        few = few[:2] + few[4:]
    done = autotune("run", *question, *few, home=home, AUTOTUNE_EMULATE_FAULT=fault)
    logs = [log.read_text() for log in (home / "studies" / "dead" / "trials").rglob("*.log")]
    # TensorRT-LLM counts the GPUs before it starts a worker.
    last = "GPUs are available" if fault == "gpus-missing" else LAST_WORDS[engine]
    starts = sum(text.count(last) for text in logs)
    assert (done.code, starts) == (130, 1), done.err
    assert any("Loading safetensors" in text for text in logs) == (fault == "shard-truncated")
    assert "the first launch failed, but not because of its configuration" in done.err
    assert says in done.err
    assert way_out in done.err
    assert "0 launches are stored; continue with:\nautotune resume dead" in done.err
    assert nothing_is_left(home, 0) == []


def test_a_fault_of_the_node_costs_one_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _, starts = run(tmp_path, monkeypatch, NOT_READY)
    assert (done.code, starts) == (130, 1), done.err
    assert "the first launch failed, but not because of its configuration" in done.err
    assert "0 launches are stored; continue with:\nautotune resume dead" in done.err


def test_the_same_unknown_words_before_anything_ran_cost_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, home, starts = run(
        tmp_path, monkeypatch, "FabricError: process PID lost the partition 0x7f3a"
    )
    assert (done.code, starts) == (130, 3), done.err
    assert (
        "3 launches in a row failed with the same words, which no rule explains. vLLM ended with exit code"
        in done.err
    )
    assert "3 launches are stored; continue with:\nautotune resume dead" in done.err
    assert [row["failure"]["unexplained"] for row in rows(home, "dead")] == [True] * 3


def test_a_crash_that_is_known_to_depend_on_the_configuration_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _, starts = run(
        tmp_path, monkeypatch, "RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    assert (done.code, starts) == (3, 5), done.err


GONE = "FileNotFoundError: Weight files referenced in index but missing: {'model.safetensors'}"


@pytest.mark.parametrize("says", [GONE, "RuntimeError: the loader gave up"])
def test_weights_that_vanish_while_it_runs_stop_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Whatever the engine says of it, one launch meets it, and what it teaches is nothing about its
    configuration."""
    weights, starts = (
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        tmp_path / "starts",
    )
    folder = cache(tmp_path / "hub", MODEL, weights, weights)
    emulate = [
        sys.executable,
        "-m",
        "autotune",
        "emulate",
        "--hw",
        "h200",
        "--startup-s",
        "0",
        "--",
        "vllm",
    ]
    runs_twice = (
        f"#!{python_with(tmp_path, vllm='0.32.0')}\nimport os, sys\n"
        f"if '--port' not in sys.argv:\n    sys.exit(1)\n"
        f"open({str(starts)!r}, 'a').write('x')\n"
        f"if len(open({str(starts)!r}).read()) < 3:\n"
        f"    os.execv({sys.executable!r}, {emulate!r} + sys.argv[1:])\n"
        f"if os.path.exists({str(folder / weights[1])!r}):\n    os.unlink({str(folder / weights[1])!r})\n"
        f"sys.exit({says!r})\n"
    )
    program = executable(tmp_path / "bin" / "vllm", runs_twice)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    question = [
        "--model",
        MODEL,
        "--hw",
        "h200",
        "--engine",
        "vllm",
        "--on",
        "process",
        "--study",
        "dead",
    ]
    few = [
        "--workload",
        "random:16:4:8",
        "--space",
        str(ROOT / "examples" / "small-space.yaml"),
        "--seed",
        "1",
    ]
    home = new_home(tmp_path)
    done = autotune("run", *question, *few, home=home)
    assert (done.code, len(starts.read_text())) == (130, 3), done.err
    assert (
        f"the weights of {MODEL} are not complete in {tmp_path / 'hub'}: 1 of 2 files are missing"
        in done.err
    )
    assert f"({weights[1]} …)" in done.err
    assert "2 launches are stored; continue with:\nautotune resume dead" in done.err
    assert [row["state"] for row in rows(home, "dead")] == ["complete", "complete"]
