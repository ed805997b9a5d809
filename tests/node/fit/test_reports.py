"""The table and the summary say what the figures are; order is judged over points of one load."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.cli.calibration import predictions_table as table
from autotune.cli.screens import printed
from autotune.node.fit.calibrate import LeftOutPrediction, Predicted
from autotune.node.fit.reading import points_of, read_file
from autotune.node.fit.report import errors, rankings
from tests.node.fit.files import SGLANG, VLLM, csv_file, lines_file, own_row, run_row

DP = "--dp-size 8 --enable-dp-attention"
NO_ORDER: dict[str, list[Any]] = {"rankings": [], "best_engine": []}


def own_points(tmp_path, throughputs):
    """Points of one load: command to measured throughput; None = it failed."""
    rows = [
        own_row(
            command=command,
            engine_version="0.13.0" if command.startswith("vllm") else "0.5.6.post2",
            total_token_throughput="" if value is None else value,
            mean_ttft_ms="" if value is None else 1000,
            failure="" if value is not None else "it did not start",
        )
        for command, value in throughputs.items()
    ]
    return points_of(read_file(csv_file(tmp_path, *rows)).rows)


def told(point, throughput, **changes):
    metrics = {"total_token_throughput": throughput, "mean_ttft_ms": 1100.0}
    return Predicted(point, metrics, low=throughput * 0.8, high=throughput * 1.25, **changes)


def told_each(points, *throughputs):
    """Predict each point: a throughput, or the failure to start."""
    return [
        Predicted(point, {}, failure=one) if isinstance(one, str) else told(point, one)
        for point, one in zip(points, throughputs, strict=True)
    ]


def test_a_line_says_measured_predicted_and_interval(tmp_path):
    equivalent = [
        run_row(),
        run_row(
            duration=5.0,
            total_token_throughput=26400.0,
            output_throughput=800.0,
            mean_ttft_ms=2500.0,
        ),
    ]
    (point,) = points_of(read_file(lines_file(tmp_path, *equivalent)).rows)
    text = table(
        [told(point, 20_000.0, left_out={"engine": LeftOutPrediction(14_000.0, 9_000.0, 21_000.0)})]
    ).splitlines()
    assert len(text) == 3
    cells = dict(zip(text[0].split(" | "), text[2].split(" | "), strict=True))
    assert cells["| point"] == "| 1+2"
    assert (cells["configuration"], cells["spread"]) == ("TP8", "100%")
    assert (cells["measured"], cells["predicted"], cells["ratio"]) == ("18 668", "20 000", "1.07")
    assert (cells["90 % interval"], cells["inside"]) == ("16 000 to 25 000", "yes")
    assert cells["without its engine"] == "0.75"


def test_a_cold_run_is_shown_with_and_without_its_silence(tmp_path):
    cold = run_row(
        duration=20.0,
        total_token_throughput=6600.0,
        output_throughput=200.0,
        mean_ttft_ms=13000.0,
        p99_ttft_ms=16000.0,
    )
    (point,) = points_of(read_file(lines_file(tmp_path, cold)).rows)
    line = table([told(point, 13_200.0)]).splitlines()[2]
    assert "| 6 600 | 13 200 |" in line
    assert "| 1.00 |" in line


def test_errors_count_what_is_predicted_not_to_run(tmp_path):
    points = own_points(
        tmp_path,
        {
            SGLANG: 1000,
            f"{SGLANG} {DP}": 2000,
            VLLM: 1500,
            f"{VLLM} -dcp 8": None,
            f"{VLLM} -O0": None,
        },
    )
    gone = "out_of_memory"
    found = errors(told_each(points, 1100, 4000, gone, gone, 500))
    assert found["points"] == 3
    assert found["throughput"] == pytest.approx(1.0)
    assert found["coverage"] == pytest.approx(1 / 3)
    assert (found["failures"], found["invented"]) == (
        {"measured": 2, "predicted": 1},
        [points[2].label],
    )
    assert found["times"]["TTFT"] == pytest.approx(0.1)
    assert found["times"]["TPOT"] is None
    assert "failures to start: 1 of 2 predicted" in printed(
        "calibration", errors=found, order=NO_ORDER, path=None
    )


def test_predictions_without_their_group_have_an_error_a_coverage_and_a_width(tmp_path):
    points = own_points(tmp_path, {SGLANG: 1000, f"{SGLANG} {DP}": 2000, VLLM: 1500})
    unseen = [(1200.0, 900.0, 1600.0), (2200.0, 2100.0, 2310.0), (1500.0, 1000.0, 2000.0)]
    found = errors(
        [
            told(point, 1000, left_out={"model": LeftOutPrediction(*one)})
            for point, one in zip(points, unseen, strict=True)
        ]
    )
    assert found["left_out"]["model"] == pytest.approx(
        {"throughput": 0.1, "inside": 2 / 3, "width": 16 / 9}
    )
    assert found["ttft_bias"] == pytest.approx({"sglang": 1.1, "vllm": 1.1})
    said = printed("calibration", errors=found, order=NO_ORDER, path=None)
    assert "with its model left out: 10.0%, inside the 90 % interval 66.7%, 1.8 wide" in said
    assert "mean TTFT of sglang: 1.10 of the measured" in said


def test_order_is_judged_at_one_load_for_all_engines_and_for_each(tmp_path):
    throughputs = {
        SGLANG: 1000,
        f"{SGLANG} {DP}": 2000,
        f"{SGLANG} {DP} --ep-size 8": 1900,
        f"{SGLANG} {DP} --kv-cache-dtype fp8_e4m3": 2100,
        VLLM: 1500,
        f"{SGLANG} --context-length 1": None,
    }
    points = own_points(tmp_path, throughputs)
    predictions = told_each(points, 900, 1800, 1700, 1750, 2500, "bad_argument")
    found = rankings(predictions)
    everything, sglang = found["rankings"]
    assert (everything["points"], sglang["points"]) == (5, 4)
    assert sglang["spearman"] == pytest.approx(0.8)
    assert everything["spearman"] == pytest.approx(0.3)
    (best,) = found["best_engine"]
    assert (best["measured"], best["predicted"]) == ("sglang", "vllm")
    assert "wrong: vllm is predicted" in printed(
        "calibration", errors=errors(predictions), order=found, path=None
    )
