"""NVML's calls, against a library of the driver's name that is compiled here: no machine of the
tests has a GPU."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.engines.machine import Gpu

SOURCE = Path(__file__).with_name("nvml.c")
ASK = """import dataclasses, autotune.engines.machine as m
nvidia = [gpu for gpu in m.gpus() if gpu.vendor == "nvidia"]
print([dataclasses.astuple(gpu) for gpu in nvidia])
print([read and read() for read in map(m.power_of, (nvidia[1:], nvidia[1:2], nvidia[:1], []))])"""


@pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler to make a stand-in for the driver's library"
)
@pytest.mark.skipif(sys.platform != "linux", reason="the driver's library has another name there")
def test_gpus_through_the_driver_s_library(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, SOURCE], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen, watts = map(ast.literal_eval, done.stdout.splitlines())
    assert watts == [725.75, 655.5, None, None]  # Of the one that is lost nothing is told.
    assert [Gpu(*gpu) for gpu in seen] == [
        Gpu(0, "NVIDIA GPU", "nvidia", 0, 0, ()),
        Gpu(1, "NVIDIA H200", "nvidia", 150754820096, 60000000000, (34, 912)),
        Gpu(2, "NVIDIA H200", "nvidia", 150754820096, 600000000, ()),
    ]
