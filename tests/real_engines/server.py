"""The real vLLM of examples/vllm_cpu: its environment, its model, and how it is launched on
loopback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.engines.command import Command
from autotune.engines.library import Library
from autotune.servers import StartupTimeouts
from autotune.servers.process import ProcessLauncher
from autotune.servers.server import Server

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vllm_cpu"
CARD = Library().engine("vllm")
PATIENT = StartupTimeouts(total_s=900.0, silence_s=300.0)
"""It starts in a minute on two idle cores, and in many on busy ones."""
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
STARTED = ("--enforce-eager", "--dtype", "float32")
"""What lets the tiny model start quickly and run well on a CPU."""


def environment() -> Path:
    """The virtual environment that ``AUTOTUNE_VLLM`` names; skips the test when it names none."""
    named = os.environ.get("AUTOTUNE_VLLM", "")
    if not (Path(named) / "bin" / "vllm").is_file():
        pytest.skip(
            "AUTOTUNE_VLLM names no environment made by examples/vllm_cpu/make_environment.sh"
        )
    return Path(named)


def make_model(folder: Path, *options: str) -> Path:
    """Write the tiny model."""
    subprocess.run(
        [environment() / "bin" / "python", EXAMPLE / "tiny_model.py", folder, *options], check=True
    )
    return folder


def launch(model: Path, folder: Path, *options: str, flags: Sequence[str] = STARTED) -> Server:
    """Start it as a study does, under the watchdog; gives it before it is ready."""
    program = str(environment() / "bin" / "vllm")
    command = Command(
        (program, "serve", str(model), "--served-model-name", "tiny", *flags, *options), SETTINGS
    )
    return ProcessLauncher().launch(command, folder, CARD)


@contextmanager
def serving(model: Path, folder: Path, *options: str) -> Iterator[Server]:
    """The server, ready; it is gone when the block ends."""
    with launch(model, folder, *options) as server:
        failure = server.wait_ready(PATIENT)
        assert failure is None, failure
        yield server
    assert server.stop().problem() == ""
