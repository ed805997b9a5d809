"""What has been written survives a power loss: files and the folders that name them are brought to
disk, in order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to watch the writes"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="libraries are preloaded in another way there"
    ),
]
WRITES = """
import sys
from pathlib import Path
from autotune.tuner.study.home import write_atomically
from autotune.tuner.study.results import Results
from tests import small_study

folder = Path(sys.argv[1])
for content in ("one", "two"):
    write_atomically(folder / "report.md", content)
results = Results(folder / "results.jsonl")
for launch in small_study.launches()[:2]:
    results.append(launch)
"""


def test_a_name_is_on_disk_when_a_write_returns(tmp_path: Path) -> None:
    library, log, folder = tmp_path / "disk_writes.so", tmp_path / "log", tmp_path / "study"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("disk_writes.c")],
        check=True,
    )
    folder.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(library), "DISK_WRITES": str(log)}
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", WRITES, folder], cwd=root, env=environment, check=True)
    told = [
        line.replace(str(folder), "study")
        for line in log.read_text().splitlines()
        if str(folder) in line
    ]
    (draft,) = {line for line in told if line.endswith(".tmp")}
    assert draft.startswith("fsync study/.report.md.")
    once = [draft, "rename study/report.md", "fsync study"]
    assert told == [
        *once,
        *once,
        "fsync study/results.jsonl",
        "fsync study",
        "fsync study/results.jsonl",
    ]
