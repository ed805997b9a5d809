"""The measured study under examples/: its bundle comes to the recommendation that its report shows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.product.cli import autotune, new_home

MEASURED = Path(__file__).resolve().parents[2] / "examples" / "llama_server" / "measured"


def test_the_bundle_comes_to_the_command_of_the_report(tmp_path: Path) -> None:
    """Also where its engine is not installed."""
    done = autotune("run", "--on", f"replay:{MEASURED / 'study.bundle'}", "--json", home=new_home(tmp_path))
    assert done.code == 0, done.err
    assert "the recommendation is that of study measured" in done.err
    report = re.sub("</?span>", "", (MEASURED / "report.html").read_text())
    assert done.json["command"] in report
    assert f"{done.json['gain_percent']:+.1f} %" in report
