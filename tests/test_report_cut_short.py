"""How the report shows a load that was cut short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.outputs.report import render
from autotune.trial import Role
from tests import small_study
from tests.small_study import BASELINE, metrics
from tests.test_report import cells, record, section


def test_a_load_that_was_cut_short_is_marked_and_is_no_evidence(tmp_path: Path) -> None:
    whole = small_study.launch(0, Role.BASELINE, BASELINE, {"sharegpt": metrics(6000.0)})
    other = small_study.launch(1, Role.SEARCH, small_study.TOO_BIG, {"sharegpt": metrics(6500.0)})
    launches = [whole, replace(other, result=replace(other.result, shortened={"sharegpt": 0.08}))]
    report = render(record(tmp_path, launches=launches), "md")
    assert cells(section(report, "Launches"))[2][-1] == "cut short, forecast ± 8 %"
    assert cells(section(report, "Best configuration"))[1][1] == "6,000.00"
