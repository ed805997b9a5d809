"""Studies that meet faults at random moments; thousands by command, see `docs/faults.md`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = [12, pytest.param(100, marks=pytest.mark.slow)]


@pytest.mark.parametrize("faults", FAULTS)
def test_nothing_is_lost_doubled_left_behind_or_changed_by_faults(
    tmp_path: Path, faults: int
) -> None:
    """Some on emulated engines, the others in virtual time."""
    file = tmp_path / "faults.json"
    words = [
        "--faults",
        str(faults),
        "--seed",
        "6",
        "--json",
        str(file),
        "--folder",
        str(tmp_path / "studies"),
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "product" / "faults.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    met = json.loads(file.read_text())
    assert sum(found["injected"] for found in met) >= faults
    for found in met:
        assert found["recovered"], found
        assert found["named"] is not False, found
        assert not any(found[name] for name in ("lost", "doubled", "left_behind", "changed")), found


def test_a_campaign_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    """The file says what was injected; as many as were asked for are there already."""
    file = tmp_path / "faults.json"
    one = {
        "kind": "kill-tuner",
        "injected": 1,
        "recovered": True,
        "named": None,
        "seed": 6,
        "study": 1,
        "problems": [],
    }
    file.write_text(
        json.dumps([one | dict.fromkeys(("lost", "doubled", "left_behind", "changed"), 0)])
    )
    words = [
        "--faults",
        "1",
        "--seed",
        "6",
        "--json",
        str(file),
        "--folder",
        str(tmp_path / "studies"),
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "product" / "faults.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| kill-tuner | 1 | 1 | – | 0 | 0 | 0 | 0 |" in done.stdout
    assert len(json.loads(file.read_text())) == 1
