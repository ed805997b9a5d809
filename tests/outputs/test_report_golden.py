"""The whole report of the small study, word for word: what a change of wording, order or figures
does to all of it.

After a change that is meant: ``python -m tests.outputs.test_report_golden`` writes the file anew.
"""

from __future__ import annotations

from pathlib import Path

from autotune.outputs.report.render import render
from autotune.tuner.study.home import ui_command
from tests.outputs import report_studies

GOLDEN = Path(__file__).parents[1] / "data" / "golden_report.md"


def _report(home: Path) -> str:
    told = render(report_studies.everything(home / "studies" / "small"), "md")
    return told.replace(ui_command(home.resolve()), "mlflow ui")


def test_the_whole_report(tmp_path: Path) -> None:
    assert _report(tmp_path) == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(_report(Path("home")), encoding="utf-8")
