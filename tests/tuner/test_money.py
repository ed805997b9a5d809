"""Metrics per GPU, per user and in money; limits on single requests; what a study itself cost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.engines.command import Command
from autotune.load.metrics.formulas import Slo, goodput_limits, parse_goodput, summarize
from autotune.load.metrics.records import RequestRecords
from autotune.load.metrics.table import COSTS, DERIVED, METRICS, Metrics, Rent
from autotune.outputs.report.sentences import lines
from autotune.tuner.backends import ValidatedEvaluator
from autotune.tuner.recommend import recommend
from autotune.tuner.search import objective
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Role, State, Trial, TrialResult
from tests.tuner.test_goals import asking
from tests.tuner.test_recommend import CANDIDATES, launch, spec, story

RATES = (
    *(
        "total_token_throughput",
        "steady_total_token_throughput",
        "output_throughput",
        "request_throughput",
    ),
    *("request_goodput", "capacity_total_token_throughput", "total_token_throughput_per_gpu"),
    *("cost_per_million_tokens", "cost_per_million_input_tokens", "cost_per_million_output_tokens"),
)
LOAD: Metrics = {
    "total_token_throughput": 8000.0,
    "output_throughput": 3200.0,
    "mean_tpot_ms": 40.0,
    "duration": 10.0,
}


def test_what_follows_from_throughput_and_latency() -> None:
    told = Rent(8, 3.6).derived(LOAD)
    assert told["total_token_throughput_per_gpu"] == 1000
    assert told["output_tokens_per_s_per_user"] == 25
    # 8 GPUs at 3.60 an hour are 0.8 cents a second.
    assert told["cost_per_million_tokens"] == pytest.approx(0.008 / 8000 * 1e6)
    assert told["cost_per_million_input_tokens"] == pytest.approx(0.008 / 4800 * 1e6)
    assert told["cost_per_million_output_tokens"] == pytest.approx(0.008 / 3200 * 1e6)
    assert not Rent(8).derived(LOAD).keys() & set(COSTS)
    assert not Rent(None, 3.6).derived(LOAD).keys() & {*COSTS, "total_token_throughput_per_gpu"}
    assert set(DERIVED) - METRICS.keys() == {"request_violations_percent"}
    assert all(
        METRICS[name].maximise is (name not in COSTS) for name in METRICS.keys() & set(DERIVED)
    )


@pytest.mark.parametrize("figure", [0.0, math.nan, math.inf, None, "fast", True])
def test_nothing_follows_from_what_is_no_figure(figure: object) -> None:
    told = Rent(8, 3.6).derived(dict.fromkeys(LOAD, figure))
    assert not told.keys() & set(DERIVED)


def test_what_was_recorded_stays_but_for_another_price() -> None:
    recorded = {**LOAD, "total_token_throughput_per_gpu": 2000.0, "cost_per_million_tokens": 9.0}
    assert Rent(8).derived(recorded)["cost_per_million_tokens"] == 9.0
    told = Rent(8, 3.6).derived(recorded)
    assert (told["total_token_throughput_per_gpu"], told["cost_per_million_tokens"]) == (
        2000,
        pytest.approx(1),
    )


class Says:
    """An evaluator with one answer, a curve among it."""

    evidence = Evidence.MEASURED

    def __call__(self, trial: Trial) -> TrialResult:
        curve = [{"concurrency": 4, **LOAD}, {"concurrency": 8, **LOAD, "mean_ttft_ms": math.nan}]
        return TrialResult(
            State.COMPLETE, self.evidence, metrics={"chat": {**LOAD, "curve": curve}}
        )


def test_every_row_has_them_of_the_gpus_that_its_server_takes() -> None:
    question = spec(workloads=("chat",), objective="cost_per_million_tokens", gpu_hour_price=3.6)
    configuration = CANDIDATES.items[0].configuration.with_knobs(tensor_parallel=2, data_parallel=2)
    trial = Trial(0, Role.BASELINE, configuration, "1", Command(("vllm",)), ("chat",))
    result = ValidatedEvaluator(Says(), question)(trial)
    assert result.state is State.COMPLETE
    whole = result.metrics["chat"]
    assert (whole["total_token_throughput_per_gpu"], whole["cost_per_million_tokens"]) == (
        2000,
        pytest.approx(0.5),
    )
    assert [row["cost_per_million_tokens"] for row in whole["curve"]] == [pytest.approx(0.5)] * 2
    assert "mean_ttft_ms" not in whole["curve"][1]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpu_hour_price": 0.0}, "--gpu-hour-price 0"),
        ({"gpu_hour_price": -1.0}, "a number above 0"),
        ({"gpu_hour_price": math.nan}, "a number above 0"),
        ({"gpu_hour_price": math.inf}, "a number above 0"),
        (
            {"objective": "cost_per_million_tokens"},
            "--objective cost_per_million_tokens.*--gpu-hour-price",
        ),
        (
            {"pareto": "cost_per_million_output_tokens"},
            "--pareto cost_per_million_output_tokens.*--gpu-hour-price",
        ),
        (
            {"slos": ["cost_per_million_tokens<=2"]},
            "--slo cost_per_million_tokens.*--gpu-hour-price",
        ),
        ({"goodput": ["ttft=5"]}, "--goodput 'ttft=5': write latency:ms"),
        ({"goodput": ["itl:5"]}, "--goodput 'itl:5'.*ttft, tpot and e2el"),
        ({"goodput": [""]}, "write latency:ms"),
        ({"goodput": ["ttft:"]}, "write latency:ms"),
        ({"goodput": ["ttft:0"]}, "above 0"),
        ({"goodput": ["ttft:inf"]}, "above 0"),
        ({"goodput": ["ttft:5", "ttft:6"]}, "two limits, 5 and 6"),
    ],
    ids=str,
)
def test_money_and_goodput_that_cannot_be(asked: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        asking(("chat",), **asked)


def test_one_text_or_several_say_the_same() -> None:
    assert (
        parse_goodput(["ttft:2000 tpot:50"])
        == parse_goodput(["ttft:2000", "tpot:50"])
        == {"ttft": 2000, "tpot": 50}
    )


def requests() -> RequestRecords:
    """Four requests, 1 s apart, of which the last failed: TTFTs of 1, 1 and 3 s, 10 gaps of 50, 100
    and 50 ms."""
    sent, ttft, gap = np.arange(4.0), np.array([1.0, 1, 3, 1]), np.array([0.05, 0.1, 0.05, 0.05])
    first = sent + ttft
    counts = np.full(4, 11.0)
    return RequestRecords(
        sent, first, first + 10 * gap, counts, counts, np.array([True, True, True, False])
    )


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("ttft:2000", 2),
        ("tpot:60", 2),
        ("ttft:2000 tpot:60", 1),
        ("e2el:1500", 1),
        ("e2el:1600 ttft:500", 0),
    ],
)
def test_goodput_counts_the_requests_that_keep_all_and_no_failed_one(text: str, good: int) -> None:
    run = requests()
    found = summarize(run, goodput_limits(parse_goodput([text])))
    assert found["request_goodput"] * found["duration"] == pytest.approx(good)
    assert found["failed"] == 1


def test_a_request_keeps_the_slos_where_no_goodput_was_asked_for() -> None:
    slo = Slo.parse("p99_ttft_ms<=5")
    assert spec(slos=(slo,)).request_limits == (slo,)
    asked = spec(slos=(slo,), goodput={"tpot": 50.0})
    assert [str(one) for one in asked.request_limits] == ["tpot_ms<=50"]
    assert StudySpec.from_yaml(asked.to_yaml()) == asked


def test_a_load_of_which_no_request_is_good_is_an_answer() -> None:
    question = spec(workloads=("chat",), objective="request_goodput", goodput={"ttft": 1.0})
    row = launch(0, Role.SEARCH, 0, 1000)
    row.result.metrics["chat"].update(request_goodput=0.0, duration=10.0)
    assert objective.scores_of(question, row.result).value == 0
    assert objective.scores_of(question, row.result).score == pytest.approx(math.log(0.5 / 10))


def test_a_gain_in_a_rate_or_a_cost_is_one_in_work_per_hour() -> None:
    assert {name for name, metric in METRICS.items() if metric.is_work} == set(RATES)


def test_a_study_says_what_it_cost() -> None:
    told = recommend(spec(gpu_hour_price=3.0), CANDIDATES, story(), (), "done")
    cost = told.study_cost
    assert cost is not None
    assert cost.node_hours == pytest.approx(told.duration_s / 3600)
    assert cost.cost == pytest.approx(cost.node_hours * 8 * 3)
    took, price = lines("money", told)
    assert took == "The study took 0.378 node-hours of the simulated node (3.02 GPU-hours)."
    assert price.startswith("At 3.00 per GPU-hour that is 9.")
    free = recommend(spec(), CANDIDATES, story(), (), "done")
    assert len(lines("money", free)) == 1
    ranked = cost.model_copy(update={"node_hours_by_fidelity": {"random_weights": 0.25}})
    said = lines("money", told.model_copy(update={"study_cost": ranked}))[0]
    assert said.endswith(
        "(3.02 GPU-hours), 0.250 node-hours of them for launches with random weights."
    )
    shared = [replace(row, result=replace(row.result, gpu_ids=("0", "1"))) for row in story()]
    quarter = recommend(spec(), CANDIDATES, shared, (), "done").study_cost
    assert quarter is not None
    assert cost.gpu_hours is not None
    assert quarter.gpu_hours == pytest.approx(cost.gpu_hours / 4), "two of eight GPUs were reserved"
    assert quarter.node_hours == pytest.approx(cost.node_hours), "the node was in use all the same"


def test_a_machine_without_a_gpu_spends_no_gpu_hours() -> None:
    node = spec().hardware.model_copy(update={"vendor": "cpu", "gpus": 1})
    told = recommend(spec(hardware=node, gpus=1), CANDIDATES, story(), (), "done")
    assert told.study_cost is not None
    assert told.study_cost.gpu_hours is None
    assert told.study_cost.node_hours > 0
    assert "GPU" not in " ".join(lines("money", told))
