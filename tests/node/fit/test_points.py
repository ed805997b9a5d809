"""Equivalent rows are one point with its spread; groups are whole, and every point is in one of
each kind."""

from __future__ import annotations

import math

import pytest

from autotune.node.fit.calibrate import weights
from autotune.node.fit.reading import groups, points_of, read_file
from tests.node.fit.files import SGLANG, VLLM, csv_file, lines_file, own_row, run_row, sweep_row


def points(tmp_path, *rows):
    return points_of(read_file(lines_file(tmp_path, *rows)).rows)


def faster(factor, **changes):
    """The row with a run that was faster by a factor."""
    row = run_row(**changes)
    return {
        **row,
        "duration": row["duration"] / factor,
        "total_token_throughput": row["total_token_throughput"] * factor,
        "output_throughput": row["output_throughput"] * factor,
        "mean_ttft_ms": row["mean_ttft_ms"] / factor,
    }


def test_one_effective_configuration_is_one_point_with_its_spread(tmp_path):
    # Without --dp-size, dp attention is nothing in 0.5; a tool-call parser is nothing to the
    # engine's speed.
    equivalent = faster(
        1.21, command=f"{SGLANG} --enable-dp-attention --tool-call-parser deepseekv32"
    )
    (point,) = points(tmp_path, run_row(), equivalent)
    assert point.label == "1+2"
    assert point.metrics["total_token_throughput"] == pytest.approx(13200 * 1.1)
    assert point.metrics["mean_ttft_ms"] == pytest.approx(5000 / 1.1)
    assert math.exp(point.spread) == pytest.approx(1.21)


@pytest.mark.parametrize(
    "other",
    [
        {"command": f"{SGLANG} --kv-cache-dtype fp8_e4m3"},
        {"engine_version": "0.5.3"},
        {"input_len": 129},
        {"max_concurrency": 8},
        {"hardware": "4xH200"},
        {"failure": "it did not start"},
    ],
)
def test_what_differs_in_anything_that_counts_is_not_equivalent(tmp_path, other):
    assert [point.spread for point in points(tmp_path, run_row(), run_row(**other))] == [0, 0]


def test_a_lost_request_makes_no_other_point(tmp_path):
    assert len(points(tmp_path, run_row(), run_row(completed=984.0))) == 1


def test_groups_are_whole_and_cover_every_point_once_per_kind(tmp_path):
    files = [
        lines_file(
            tmp_path, run_row(), run_row(VLLM), run_row(f"{SGLANG} --kv-cache-dtype fp8_e4m3")
        ),
        csv_file(
            tmp_path, sweep_row(), sweep_row(max_concurrency=4, hardware="H200"), name="sweep.csv"
        ),
        csv_file(tmp_path, own_row(), name="own.csv"),
    ]
    found = points_of([row for path in files for row in read_file(path).rows])
    by_kind = groups(found)
    assert set(by_kind) == {"engine", "gpu", "workload", "curve", "model", "version"}
    for names in by_kind.values():
        assert sorted(place for members in names.values() for place in members) == list(
            range(len(found))
        )
    assert by_kind["gpu"] == {"h200": (0, 1, 2, 4, 5), "mi300x": (3,)}
    # A curve is all its concurrencies; each is a workload of its own.
    assert by_kind["curve"]["3200→800 closed loop"] == (3, 4)
    assert not any(members == (3, 4) for members in by_kind["workload"].values())
    assert by_kind["version"]["vllm 0.7"] == (3, 4)


def test_loads_of_one_configuration_weigh_less_than_as_many_configurations(tmp_path):
    loads = [run_row(input_len=64 * n, total_input_tokens=64000.0 * n) for n in (1, 2, 4)]
    alike = [
        {**row, "total_token_throughput": (row["total_input_tokens"] + 4000) / 10} for row in loads
    ]
    others = [run_row(VLLM), run_row(f"{VLLM} -dcp 8")]
    found = weights(points(tmp_path, *alike, *others), alike=0.5)
    assert found == pytest.approx([0.5, 0.5, 0.5, 1.0, 1.0])


def test_a_kind_with_one_group_is_none(tmp_path):
    assert set(groups(points(tmp_path, run_row(), run_row(VLLM)))) == {"engine", "version"}
