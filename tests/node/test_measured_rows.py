"""The shipped calibration against measured rows.

These are the rows that it was fitted to; what it predicts for rows that it has not seen is in
docs/simulator.md.
"""

import pytest

from autotune.node.calibration import packaged_calibration
from autotune.node.fit.calibrate import predicted_by
from autotune.node.fit.reading import points_of, read_file
from autotune.node.fit.report import errors, rankings
from tests.data import LAB, SWEEP


@pytest.fixture(scope="module")
def compared():
    points = points_of([row for file in (LAB, SWEEP) for row in read_file(file).rows])
    return predicted_by(points, packaged_calibration())


def test_errors_are_those_that_the_documentation_states(compared):
    found = errors(compared)
    assert found["points"] == 70
    assert found["throughput"] <= 0.12
    assert all(error <= 0.30 for error in found["times"].values())
    # The stated spread is that of all models; of these rows, which the fit has seen, more lie
    # within it.
    assert found["coverage"] >= 0.85


def test_every_failure_to_start_is_predicted_and_none_is_invented(compared):
    found = errors(compared)
    assert found["failures"] == {"measured": 5, "predicted": 5}
    assert found["invented"] == []


def test_configurations_rank_as_they_were_measured(compared):
    found = rankings(compared)
    chats = [
        one for one in found["rankings"] if "sharegpt" in one["name"] and "V3.2" in one["name"]
    ]
    ranked = {one["name"]: one["spearman"] for one in chats}
    assert next(value for name, value in ranked.items() if name.startswith("all engines")) >= 0.9
    assert next(value for name, value in ranked.items() if name.startswith("sglang")) >= 0.85
    # R1's two best engines are 2 to 8 % apart, and predicted 0.4 to 5 % apart the other way round.
    wrong = [
        one["name"]
        for one in found["best_engine"]
        if one["measured"] != one["predicted"] and "3200" not in one["name"]
    ]
    assert {*wrong} <= {
        f"DeepSeek-R1-0528 8×h200 {load}" for load in ("sharegpt", "medium", "long", "very-long")
    }
