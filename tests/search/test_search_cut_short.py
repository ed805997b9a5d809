"""Studies of earlier versions, in which hopeless loads were cut short: their figures are forecasts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from search_landscapes import evaluate, make_spec, opened, play, ridge, small

from autotune.outputs.report.render import render
from autotune.outputs.tracking.content import launch_metrics
from autotune.recommend import recommend
from autotune.replay import read_table
from autotune.search import objective
from autotune.search.priors.sources import sources_of
from autotune.simulator.fit.points import LeftOut
from autotune.simulator.fit.reading import study_rows
from autotune.space.library import Library
from autotune.study.home import Home
from autotune.study.results import Results, launch_of, row_of
from autotune.trial import Launch, Role
from tests import small_study
from tests.small_study import BASELINE, metrics
from tests.test_report import cells, record, section

CANDIDATES = small()
SPEC = make_spec(launches=12, noise=0.03, seed=5)


def cut(launch: Launch) -> Launch:
    """A row as version 5d80f59 wrote it; its forecast is ten times what anything reaches."""
    workload = launch.trial.workloads[0]
    figures = {**launch.result.metrics[workload], "saved_s": 60.0}
    figures["total_token_throughput"] *= 10
    result = replace(launch.result, metrics={workload: figures}, shortened={workload: 0.08})
    return launch_of(json.loads(json.dumps(row_of(Launch(launch.trial, result)))))


def test_a_study_goes_on_without_scoring_a_forecast_and_without_launching_its_configuration_again(
    tmp_path: Path,
) -> None:
    study = opened(tmp_path, SPEC, CANDIDATES)
    while (trial := study.ask()) is not None and trial.role is not Role.SEARCH:
        study.tell(evaluate(SPEC, ridge, trial))
    assert trial is not None
    study.tell(cut(evaluate(SPEC, ridge, trial)))
    study.close()
    again = opened(tmp_path, SPEC, CANDIDATES)
    launches = play(again, SPEC, ridge)
    again.close()
    (row,) = [launch for launch in launches if launch.result.shortened]
    assert row.result.shortened == {SPEC.workloads[0]: 0.08}
    assert objective.score(SPEC, row) is None
    same = [x for x in launches if x.trial.configuration == row.trial.configuration]
    assert same == [row]
    result = recommend(SPEC, CANDIDATES, launches, (), again.stop_reason)
    assert result.recommended is not None
    assert result.recommended.fingerprint != row.trial.configuration.fingerprint
    assert result.recommended.objective.value < row.result.metrics[SPEC.workloads[0]]["total_token_throughput"] / 5


def test_the_report_lists_it_and_counts_others() -> None:
    whole = small_study.launch(0, Role.BASELINE, BASELINE, {"sharegpt": metrics(6000.0)})
    other = cut(small_study.launch(1, Role.SEARCH, small_study.TOO_BIG, {"sharegpt": metrics(650.0)}))
    report = render(record(Path(), launches=[whole, other]), "md")
    assert cells(section(report, "Launches"))[2][-3:] == ["–", "–", "cut short by an earlier version: not scored"]
    assert cells(section(report, "Best configuration"))[1][1] == "6,000.00"
    assert "sharegpt.total_token_throughput" in launch_metrics(small_study.spec(), whole)
    assert "sharegpt.total_token_throughput" not in launch_metrics(small_study.spec(), other)


def test_neither_a_fit_nor_another_study_nor_a_replay_learns_from_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = home.open(small_study.spec(study="mine", on="process"))
    results = Results(folder / "results.jsonl")
    for launch in small_study.launches():
        figures = {n: m | {"duration": 420_000 / m["total_token_throughput"]} for n, m in launch.result.metrics.items()}
        row = replace(launch, result=replace(launch.result, metrics=figures))
        results.append(cut(row) if launch.trial.number == 1 else row)
    rows = {row.label: row for row in study_rows(home, "mine", allow_unmeasured=True)}
    assert isinstance(rows["mine/0001"], LeftOut)
    assert "cut short" in rows["mine/0001"].reason
    spec = SPEC.model_copy(update={"sources": (str(folder),), "workloads": ("sharegpt",)})
    (source,) = sources_of(spec, tmp_path / "new")
    assert len(source.lessons) == 7, "of nine one measurement did not count, and one was cut short"
    table = read_table(folder / "results.jsonl", Library())
    assert len(table.rows) == 7
    assert any("cut short" in note for note in table.notes)
