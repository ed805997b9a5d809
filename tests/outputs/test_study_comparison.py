"""Two studies side by side: what is predicted is open unless real nodes are expected to agree."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.evidence import Evidence
from autotune.cli.screens import printed
from autotune.outputs.report import sentences
from autotune.outputs.study_comparison import FinishedStudy, StudyComparison
from autotune.tuner.study.recommendation import WorkloadComparison
from tests import small_study

COST = "cost_per_million_tokens"
Ends = tuple[float, float] | None


def study(
    name: str,
    tokens_per_s: float,
    hourly: float,
    *,
    ci95: float | None = 1.02,
    on_a_node: float | None = 1.5,
    evidence: Evidence = Evidence.SIMULATED,
    hardware: str = "h200",
) -> FinishedStudy:
    """A study for the cost of a token; its intervals reach so many times below and above."""
    cost = 8 * hourly / 3600 / tokens_per_s * 1e6

    def around(factor: float | None) -> Ends:
        return None if factor is None else (cost / factor, cost * factor)

    outcome = small_study.recommendation()
    assert outcome.recommended is not None
    goal = {
        "metric": COST,
        "value": cost,
        "ci95": around(ci95),
        "interval90_on_a_node": around(on_a_node),
    }
    objective = outcome.recommended.objective.model_copy(update=goal)
    metrics = small_study.metrics(tokens_per_s) | {COST: cost, "mean_e2el_ms": 20_000.0}
    metrics |= {"total_token_throughput_per_gpu": tokens_per_s / 8}
    row = WorkloadComparison(baseline=None, recommended=metrics, gain_percent=None)
    changes = {"recommended": outcome.recommended.model_copy(update={"objective": objective})}
    outcome = outcome.model_copy(
        update={**changes, "workloads": {"sharegpt": row}, "evidence": evidence}
    )
    node = small_study.HARDWARE.model_copy(update={"name": hardware})
    asked: dict[str, Any] = {"objective": COST, "gpu_hour_price": hourly, "hardware": node}
    return FinishedStudy(name, small_study.spec(workloads=("sharegpt",), **asked), outcome)


def as_printed(compared: StudyComparison) -> str:
    """The comparison as `autotune compare` prints it."""
    known = {**compared.to_json(), "found": compared, "sentences": sentences}
    return printed("compared_studies", **known)


def of_cost(compared: StudyComparison) -> dict[str, Any]:
    found: dict[str, Any] = compared.to_json()["metrics"]["sharegpt"][COST]
    return found


def test_two_predictions_of_two_kinds_of_hardware_are_open() -> None:
    """By launches alone the second one is cheaper; the errors of both predictions are larger than
    that."""
    a, b = study("a", 10_370.0, 3.20), study("b", 9_033.0, 2.10, hardware="mi300x")
    compared = StudyComparison(a, b)
    row, text = of_cost(compared), as_printed(compared)
    assert row["interval95"][1] < 0
    assert row["verdict"] == "open"
    change = math.log(1 + row["change_percent"] / 100)
    half = math.hypot(math.log(1.5), math.log(1.5))
    ends = [100 * math.expm1(change + end) for end in (-half, half)]
    assert row["interval90_on_a_node"] == pytest.approx(ends)
    assert "open     -26.7 % to -22.5 %  -57.5 % to +33.7 %" in text
    assert (
        "cost of 0.686 per million tokens on sharegpt (95 % interval 0.672 to 0.699; 0.457 to 1.03"
        in text
    )
    assert " better" not in text.partition("sharegpt:")[2].partition("Note")[0]


def test_the_price_at_which_both_cost_the_same_is_told() -> None:
    a, b = study("a", 10_370.0, 3.20), study("b", 9_033.0, 2.10, hardware="mi300x")
    compared = StudyComparison(a, b)
    rent = compared.to_json()["rent"]
    assert rent["a"] == {"gpus": 8, "gpu_hour_price": 3.20}
    equal = rent["cheaper_below"]
    assert equal == pytest.approx(3.20 * 9_033 / 10_370)
    again = of_cost(StudyComparison(a, study("b", 9_033.0, equal, hardware="mi300x")))
    assert again["a"] == pytest.approx(again["b"])
    half = math.hypot(math.log(1.5), math.log(1.5))
    ends = rent["cheaper_below_interval90_on_a_node"]
    assert ends == pytest.approx([equal * math.exp(-half), equal * math.exp(half)])
    text = as_printed(compared)
    sides = "H200: 3.20 a GPU hour; MI300X: 2.10 a GPU hour."
    assert f"{sides} A GPU of MI300X carries 12.9 % fewer tokens a second." in text
    assert "MI300X is cheaper below 2.79 a GPU hour (90 % on real nodes: 1.57 to 4.95)." in text
    assert StudyComparison(a, a).to_json()["rent"]["cheaper_below"] == pytest.approx(3.20)


@given(st.floats(0.2, 5.0), st.floats(1.01, 3.0), st.floats(1.01, 3.0))
def test_an_interval_on_nodes_without_zero_decides_and_one_with_it_does_not(
    ratio: float, one: float, other: float
) -> None:
    a = study("a", 10_000.0, 3.0, on_a_node=one)
    b = study("b", 10_000.0, 3.0 * ratio, on_a_node=other, hardware="mi300x")
    row = of_cost(StudyComparison(a, b))
    half = math.hypot(math.log(one), math.log(other))
    if abs(abs(math.log(ratio)) - half) > 1e-6:
        decided = "better" if ratio < 1 else "worse"
        expected = decided if abs(math.log(ratio)) > half else "open"
        assert row["verdict"] == ("equal" if row["a"] == row["b"] else expected)


def test_a_prediction_of_before_nodes_were_told_is_open() -> None:
    """The spread of its launches is not what decides about it, however narrow that is."""
    b = study("b", 90_000.0, 3.0, hardware="b200")
    for ci95 in (None, 1.001):
        row = of_cost(StudyComparison(study("a", 10_000.0, 3.0, on_a_node=None, ci95=ci95), b))
        assert (row["verdict"], row["interval90_on_a_node"]) == ("open", None)


def test_measured_studies_are_judged_by_their_launches() -> None:
    measured = {"evidence": Evidence.MEASURED, "on_a_node": None}
    a, b = (
        study("a", 10_000.0, 3.0, **measured),
        study("b", 11_000.0, 3.0, hardware="b200", **measured),
    )
    row = of_cost(StudyComparison(a, b))
    assert (row["verdict"], row["interval90_on_a_node"]) == ("better", None)
    assert "90 % on real nodes" not in as_printed(StudyComparison(a, b))
    mixed = of_cost(StudyComparison(a, study("b", 11_000.0, 3.0, hardware="b200")))
    assert mixed["verdict"] == "open"
    assert mixed["interval90_on_a_node"] is not None


def test_on_one_kind_of_hardware_what_the_simulator_gets_wrong_of_both_cancels() -> None:
    """The same engine on the same node: its common error is in neither, so the interval is
    narrower."""
    a = study("a", 10_000.0, 3.0, on_a_node=3.0)
    same = of_cost(StudyComparison(a, study("b", 11_000.0, 3.0, on_a_node=3.0)))
    other = of_cost(StudyComparison(a, study("b", 11_000.0, 3.0, on_a_node=3.0, hardware="b200")))
    (low, high), (launches_low, launches_high) = same["interval90_on_a_node"], same["interval95"]
    assert low < launches_low < launches_high < high, "never narrower than the spread of launches"
    assert other["interval90_on_a_node"][0] < low < high < other["interval90_on_a_node"][1]
