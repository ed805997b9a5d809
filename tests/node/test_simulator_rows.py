"""The file of measured rows and the script that prints and rewrites it."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "simulator_rows", _ROOT / "scripts" / "simulator_rows.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_calibrate_prints_becomes_the_file(
    script: ModuleType, tmp_path: Path, monkeypatch, capsys
) -> None:
    told = tmp_path / "told.md"
    header = "| point | measured | predicted | ratio | 90 % interval | inside | TPOT ratio |"
    ran = "| 1+3 | 16 885 | 17 945 | 1.06 | 15 239 to 22 049 | yes | – |"
    failed = r"| 19 | did not start | a \| b | – | – | yes | – |"
    told.write_text(
        "\n".join(("2 rows read", header, "|---|", ran, failed, "- 8 %")), encoding="utf-8"
    )
    monkeypatch.setattr(script, "FILE", tmp_path / "rows.csv")
    monkeypatch.setattr(sys, "argv", ["simulator_rows.py", "--from", str(told)])
    script.main()
    rows = _rows(tmp_path / "rows.csv")
    assert (
        rows[0] | {"measured": "16885", "low": "15239", "high": "22049", "TPOT ratio": ""}
        == rows[0]
    )
    assert rows[1]["predicted"] == "a | b"
    assert rows[1]["low"] == ""
    assert "2 rows" in capsys.readouterr().out


def test_rows_are_found_by_words_and_the_worst_come_first(
    script: ModuleType, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulator_rows.py", "V3.2", "vllm", "--worst", "3"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all("DeepSeek-V3.2" in line and "vllm" in line for line in lines[1:4])
    off = [float(row["ratio"]) for row in script.holding(_rows(script.FILE), ["V3.2", "vllm"], 3)]
    assert off == sorted(off, key=lambda ratio: min(ratio, 1 / ratio))
