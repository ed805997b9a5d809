"""What MLflow shows of a study: the metrics that matter, curves by steps, and the recommendation by
its name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.load.metrics.formulas import Slo
from autotune.load.metrics.records import LATENCIES, STATISTICS
from autotune.outputs.tracking import Tracker
from autotune.outputs.tracking.content import experiment_name, launch_points
from autotune.tuner.study.home import database_uri
from autotune.tuner.study.recommendation import CurvePoint, Curves
from autotune.tuner.trial import Role
from tests import small_study
from tests.outputs import report_studies
from tests.outputs.test_tracking import client_of, runs_of

LADDER = Curves(
    metric="total_token_throughput",
    workload="sharegpt",
    noise_percent=3.0,
    launches=(1, 1),
    points=[
        CurvePoint(concurrency=4, baseline=500.0, recommended=400.0),
        CurvePoint(concurrency=64, baseline=None, recommended=5000.0),
    ],
    crossings=[],
)


@pytest.fixture
def tracker(tmp_path: Path, database: Path) -> Iterator[Tracker]:
    shutil.copy(database, tmp_path / "mlflow.db")
    with Tracker(tmp_path, small_study.spec()) as tracker:
        yield tracker


def test_progress_and_curves_are_stepped_metrics(tracker: Tracker) -> None:
    """Also where launches end in another order than they began, and where they are sent again."""
    launches = report_studies.everything(tracker.home).launches
    tracker.sync(launches[:3])
    tracker.record(launches[4])
    client, (parent,) = client_of(tracker), runs_of(tracker, "study")
    assert [one.step for one in client.get_metric_history(parent.info.run_id, "best_so_far")] == [
        0,
        1,
    ]
    tracker.record(launches[3])
    tracker.sync(launches)
    tracker.finish(small_study.recommendation(curves=LADDER), tracker.home)
    tracker.finish(small_study.recommendation(curves=LADDER), tracker.home)

    def curve(run: Any, name: str) -> list[tuple[int, float]]:
        return sorted(
            (one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)
        )

    best = curve(parent, "best_so_far")
    assert [step for step, _ in best] == [0, 1, 3, 5, 6, 7, 8], "a launch that failed has no point"
    finals = [9000.0, 9000.0, 9099.45, 9099.45]
    assert [value for _, value in best] == pytest.approx([6000.0, 7000.0, 9100.0, *finals]), (
        "finals replace the search"
    )
    assert [step for step, _ in curve(parent, "launch_objective")] == [0, 1, 3, 5, 6, 7, 8]
    assert curve(parent, "sharegpt.curve.total_token_throughput") == [(4, 400.0), (64, 5000.0)]
    assert curve(parent, "baseline.sharegpt.curve.total_token_throughput") == [(4, 500.0)]
    final = runs_of(tracker, "launch")[7]
    assert [step for step, _ in curve(final, "sharegpt.curve.p99_ttft_ms")] == [4, 16, 64, 256]


def test_a_run_has_the_metrics_that_matter_and_those_that_were_asked_about() -> None:
    spec = small_study.spec(slos=[Slo.parse("p95_ttft_ms<=9000")])
    many = {f"{statistic}_{latency}_ms": 1.0 for statistic in STATISTICS for latency in LATENCIES}
    values = {
        **small_study.metrics(5000.0),
        **many,
        "curve": [{"request_rate": 0.25, **small_study.metrics(40.0)}],
    }
    launch = small_study.launch(
        0, Role.BASELINE, small_study.BASELINE, {"sharegpt": values, "long": values}
    )
    points = launch_points(spec, launch, None, start_ms=0)
    logged = {point.name for point in points if point.step == 0}
    assert len(logged) < 35
    assert {
        "objective",
        "sharegpt.p95_ttft_ms",
        "long.p95_ttft_ms",
        "sharegpt.mean_itl_ms",
        "time_s.load",
    } <= logged
    assert not {"sharegpt.std_ttft_ms", "sharegpt.client_bound", "long.mean_itl_ms"} & logged
    assert {point.step for point in points} == {0, 15}, "requests per minute"


def test_the_recommendation_is_fetched_by_name_as_the_documents_say(tracker: Tracker) -> None:
    """In a process of its own: MLflow's own server in this one says where runs are."""
    folder = tracker.home / "studies" / "small"
    (folder / "recommendation.json").write_text(json.dumps(small_study.recommendation().to_json()))
    tracker.finish(small_study.recommendation(), folder)
    page = (Path(__file__).parents[2] / "docs" / "mlflow.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace("'demo'", "'small'")
    env = {**os.environ, "MLFLOW_TRACKING_URI": database_uri(tracker.home)}
    command = [sys.executable, "-c", f"{code}print(recommendation['command'])"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == small_study.recommendation().recommended.command


def test_the_filters_of_the_documents_find_what_they_say(tracker: Tracker) -> None:
    tracker.sync(small_study.launches())
    tracker.finish(small_study.recommendation(), tracker.home)
    page = (Path(__file__).parents[2] / "docs" / "mlflow.md").read_text()
    filters = page.split("```sql\n")[1].split("```")[0].splitlines()
    client = client_of(tracker)
    (experiment,) = client.search_experiments(
        filter_string=f"name = '{experiment_name(small_study.spec())}'"
    )
    order = ["metrics.total_token_throughput DESC"]
    found = [client.search_runs([experiment.experiment_id], one, order_by=order) for one in filters]
    numbers = [[run.data.tags.get("number", "study") for run in runs] for runs in found]
    ran = ["7", "3", "5", "1", "6", "0", "8"]
    assert numbers == [ran, ["7", "3", "5", "1"], ["2"], ["7", "3", "5"], ran, ["study"]]
    assert [run.data.metrics["objective"] for run in found[0]] == [
        9200,
        9100,
        9000,
        7000,
        6100,
        6000,
        5900,
    ]
    (parent,) = found[-1]
    assert (
        parent.data.metrics["objective"] == parent.data.metrics["total_token_throughput"] == 9100.0
    )
    assert parent.data.tags["nodes"] == "node-0"


def test_a_fault_of_our_own_is_not_taken_for_an_outage(tracker: Tracker, tmp_path: Path) -> None:
    broken: Any = object()
    tracker.sync([])
    with pytest.raises(AttributeError):
        tracker.finish(broken, tmp_path)
