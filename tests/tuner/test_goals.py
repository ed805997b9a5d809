"""Several workloads and goals: what is asked, what a launch says of it, and where a winner
loses."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines.library import Library
from autotune.load.metrics.formulas import Slo, slos_of
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from autotune.tuner.recommend import recommend
from autotune.tuner.search import objective
from autotune.tuner.study.goals import with_goals
from autotune.tuner.study.loads import with_loads
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role
from tests.small_study import conclusion
from tests.tuner.test_recommend import CANDIDATES, launch, spec

_weight = st.floats(1e-300, 1e300)
_value = st.floats(1e-3, 1e6)


def request(**asked: object) -> RunOptions:
    return RunOptions(model="m", hardware="h200", **asked)  # type: ignore[arg-type]


def asking(workloads: tuple[str, ...] = ("sharegpt",), **asked: object) -> StudySpec:
    return with_goals(spec(workloads=workloads), request(**asked))


@given(_value, _value, _weight, _weight)
def test_the_weighted_mean_lies_between_and_knows_no_order(
    chat: float, long: float, one: float, two: float
) -> None:
    row = launch(0, Role.SEARCH, 0, chat, long)
    found = objective.scores_of(spec(weights={"chat": one, "long": two}), row.result).value
    assert found is not None
    assert min(chat, long) * (1 - 1e-9) <= found <= max(chat, long) * (1 + 1e-9)
    turned = spec(workloads=("long", "chat"), weights={"long": two, "chat": one})
    both = objective.scores_of(spec(weights={"chat": one, "long": two}), row.result)
    assert objective.scores_of(turned, row.result).score == both.score
    equal = objective.scores_of(spec(weights={"chat": one, "long": one}), row.result).score
    assert equal == pytest.approx((math.log(chat) + math.log(long)) / 2, abs=1e-9)


@given(_value, _weight, st.sampled_from(["chat", "long"]))
def test_all_weight_on_one_workload_is_that_workload(
    value: float, weight: float, name: str
) -> None:
    row = launch(0, Role.SEARCH, 0, value, 2 * value)
    alone = spec(weights={name: weight})
    assert objective.scores_of(alone, row.result).score == objective.score_on(
        spec(), row.result.metrics[name]
    )
    assert (
        objective.scores_of(alone, row.result).value
        == row.result.metrics[name]["total_token_throughput"]
    )
    assert objective.on_workloads(alone) == name


def test_the_search_measures_what_decides_and_the_finals_everything() -> None:
    one, both = spec(weights={"long": 1.0}), spec(weights={"chat": 2.0, "long": 1.0})
    assert objective.workloads_of(spec(), Role.SEARCH) == ("chat",)
    assert objective.workloads_of(both, Role.SEARCH) == ("chat", "long")
    assert objective.workloads_of(one, Role.SEARCH) == ("long",)
    limited = spec(weights={"long": 1.0}, slos=(Slo.parse("p99_ttft_ms<=9"),))
    assert objective.workloads_of(limited, Role.SEARCH) == ("chat", "long")
    assert objective.workloads_of(one, Role.FINAL) == ("chat", "long")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -5.0, True, "12", None])
def test_what_is_no_measurement_says_nothing(number: object) -> None:
    """An SLO on a figure that is none is not kept, and a negative latency keeps no limit."""
    row = launch(0, Role.SEARCH, 0, 1000, 500)
    row.result.metrics["chat"].update(total_token_throughput=number, p99_ttft_ms=number)
    asked = spec(
        slos=(Slo.parse("p99_ttft_ms<=100"),),
        pareto="p99_ttft_ms",
        weights={"chat": 1.0, "long": 1.0},
    )
    assert objective.number_in(row.result.metrics["chat"], "p99_ttft_ms") is None
    scores = objective.scores_of(asked, row.result)
    assert scores.score is None
    assert scores.value is None
    assert scores.second_value is None
    assert scores.violations == {}


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("p99_ttft_ms>=2000", "p99_ttft_ms<=2000"),
        ("total_token_throughput<=5", "total_token_throughput>=5"),
        ("failed>=1", "failed<=1"),
        ("cache_hit_rate<=0.5", "cache_hit_rate>=0.5"),
    ],
)
def test_a_limit_that_asks_for_worse_is_refused_with_the_other_sense(
    typed: str, right: str
) -> None:
    with pytest.raises(BadInput) as told:
        slos_of(["p99_ttft_ms<=100", typed])
    assert f"'{typed}'" in str(told.value)
    assert f"'{right}'" in str(told.value)
    assert [str(slo) for slo in slos_of([right, right])] == [right]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"weights": "sharegpt"}, "workload=weight"),
        ({"weights": ""}, "workload=weight"),
        ({"weights": "sharegpt="}, "is not a weight"),
        ({"weights": "sharegpt=0"}, "above 0"),
        ({"weights": "sharegpt=-1"}, "above 0"),
        ({"weights": "sharegpt=nan"}, "above 0"),
        ({"weights": "sharegpt=inf"}, "above 0"),
        ({"weights": "sharegpt=1,sharegpt=2"}, "two weights"),
        ({"weights": "sharegpt=1,lon=2"}, "'lon'"),
        ({"pareto": "p97_ttft_ms"}, "did you mean 'p99_ttft_ms'"),
        ({"pareto": "ttft"}, "did you mean 'mean_ttft_ms', 'median_ttft_ms'"),
        ({"objective": "throughput"}, "'total_token_throughput', 'output_throughput', "),
        ({"slos": ["e2e<=1"]}, "'p95_e2el_ms' or 'p99_e2el_ms'?"),
        ({"pareto": "completed"}, "'completed'"),
        ({"objective": "p99_ttft_ms", "pareto": "p99_ttft_ms"}, "two metrics"),
        ({"slos": ["p99_ttft_ms<=nan"]}, "finite"),
        ({"slos": ["p99_ttft_ms<=1e999"]}, "finite"),
        ({"slos": ["p99_ttft_ms<=-1"]}, "below 0"),
        ({"slos": ["p99_ttft_ms<=fast"]}, "metric<=limit"),
        ({"slos": ["p99_ttft_s<=1"]}, "did you mean 'p99_ttft_ms'"),
    ],
    ids=str,
)
def test_goals_that_cannot_be_asked(asked: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput) as told:
        asking(("sharegpt", "long"), **asked)
    assert said in str(told.value)


@pytest.mark.parametrize("typed", ["p99_ttft", "p99-ttft-ms", "P99_TTFT", "ttft_p99"])
def test_a_metric_is_known_by_its_words_where_only_one_has_them(typed: str) -> None:
    goals = asking(pareto=typed, slos=[f"{typed}<=5"], objective="goodput")
    assert (goals.pareto, goals.objective) == ("p99_ttft_ms", "request_goodput")
    assert [slo.metric for slo in goals.slos] == ["p99_ttft_ms"]


def test_weights_of_names_that_hold_commas_and_equals_signs() -> None:
    names = ("jsonl:a,b=1.jsonl", "random:10:20")
    goals = asking(names, weights="random:10:20=0.5, jsonl:a,b=1.jsonl=2")
    assert goals.weights == {"jsonl:a,b=1.jsonl": 2.0, "random:10:20": 0.5}
    assert list(goals.weights) == list(names)


def both_ways(finalist: int = 2) -> list[Launch]:
    """Candidate 2 is the best on chat and loses a third on long, candidate 3 the other way
    round."""
    rows = [
        launch(0, Role.BASELINE, 0, 1000, 600),
        launch(1, Role.SEARCH, 2, 2600),
        launch(2, Role.SEARCH, 3, 1900),
    ]
    for _ in range(3):
        others = [(2, 2000.0, 400.0), (3, 1500.0, 700.0), (0, 1000.0, 600.0)]
        for position, chat, long in sorted(others, key=lambda row: row[0] != finalist):
            wiggle = 1 + 0.004 * (len(rows) // 3 % 3 - 2)
            rows.append(launch(len(rows), Role.FINAL, position, chat * wiggle, long * wiggle))
    return rows


def outcome(finalist: int = 2, **asked: object) -> tuple[StudySpec, Recommendation]:
    asked_for = spec(**asked)
    return asked_for, recommend(asked_for, CANDIDATES, both_ways(finalist), (), "done")


def test_where_a_winner_loses_is_said() -> None:
    question, found = outcome()
    rows = {row.role: row for row in found.matrix}
    assert [row.role for row in found.matrix] == ["baseline", "recommended", "finalist"]
    lost = rows["recommended"].workloads["long"]
    assert lost.gain_percent == pytest.approx(found.workloads["long"].gain_percent)
    assert lost.gain_percent == pytest.approx(-33, abs=1)
    assert lost.ci95 is not None
    assert lost.ci95[0] < lost.gain_percent < lost.ci95[1] < 0
    assert rows["recommended"].workloads["chat"].ci95 == found.gain_ci95
    assert [row.role for row in found.matrix if row.workloads["chat"].best] == ["recommended"]
    assert [row.role for row in found.matrix if row.workloads["long"].best] == ["finalist"]
    assert (
        "It has the best mean on chat and loses 33 % on long against the baseline."
        in conclusion(found)
    )
    report = render(StudyRecord(question, both_ways(), found, Path("studies/s")), "md")
    assert "Best mean on `long`: the finalist" in report
    assert rows["finalist"].command in report


def test_with_weights_the_mean_is_what_is_gained() -> None:
    _, chat = outcome(weights={"chat": 3.0, "long": 1.0})
    _, long = outcome(3, weights={"chat": 1.0, "long": 3.0})
    assert chat.recommended is not None
    assert long.recommended is not None
    assert chat.recommended.fingerprint == CANDIDATES.items[2].fingerprint
    assert long.recommended.fingerprint == CANDIDATES.items[3].fingerprint
    assert long.recommended.objective.workload == "chat=1,long=3"
    each = {name: 1 + (row.gain_percent or 0) / 100 for name, row in long.workloads.items()}
    assert 1 + (long.gain_percent or 0) / 100 == pytest.approx(
        each["chat"] ** 0.25 * each["long"] ** 0.75
    )
    assert "(weighted geometric mean)" in conclusion(long)
    assert Recommendation.from_json(long.to_json()) == long


def test_the_front_has_a_command_for_each_point() -> None:
    """Latency here falls as throughput rises, so only the best is on the front; turned round both
    ends are."""
    question, found = outcome(pareto="p99_ttft_ms")
    assert [p.fingerprint for p in found.front] == [CANDIDATES.items[2].fingerprint]
    rows = both_ways()
    for row in rows:
        row.result.metrics["chat"]["p99_ttft_ms"] = (
            row.result.metrics["chat"]["total_token_throughput"] ** 2
        )
    turned = recommend(question, CANDIDATES, rows, (), "done")
    assert [p.objective.repeats for p in turned.front] == [3, 3, 4]
    assert all(
        a.second.value > b.second.value
        for a, b in zip(turned.front, turned.front[1:], strict=False)
    )
    assert all(
        p.second.ci95 and p.second.ci95[0] < p.second.value < p.second.ci95[1] for p in turned.front
    )
    report = render(StudyRecord(question, rows, turned, Path("studies/s")), "md")
    assert all(p.command in report for p in turned.front)
    assert "3 configurations make the front" in conclusion(turned)
    assert Recommendation.from_json(turned.to_json()) == turned
    by_latency = recommend(
        spec(objective="p99_ttft_ms", pareto="total_token_throughput"), CANDIDATES, rows, (), "done"
    )
    assert {p.fingerprint for p in by_latency.front} == {p.fingerprint for p in turned.front}
    assert [p.objective.value for p in by_latency.front] == sorted(
        p.second.value for p in turned.front
    )
    limited = recommend(
        question.model_copy(update={"slos": (Slo.parse("p99_ttft_ms<=3e6"),)}), CANDIDATES, rows
    )
    assert [p.fingerprint for p in limited.front] == [
        CANDIDATES.items[p].fingerprint for p in (3, 0)
    ]


TEN = (
    "total_token_throughput, output_throughput, request_throughput, request_goodput, total_token_throughput_per_gpu, "
    "output_tokens_per_s_per_user, mean_ttft_ms, p99_ttft_ms, mean_tpot_ms, p99_tpot_ms"
)


@pytest.mark.parametrize("name", ["speed", "tps", "zzz"])
def test_an_unknown_metric_is_answered_with_the_ten_that_people_use(name: str) -> None:
    for ask in (lambda: asking(objective=name), lambda: slos_of([f"{name}<=1"])):
        with pytest.raises(BadInput, match=rf"metric '{name}'\. Known: {TEN} and \d+ others\."):
            ask()


@given(
    st.floats(0.1, 1e5),
    st.floats(0.1, 1e5),
    st.sampled_from(["p99_ttft_ms<=", "request_throughput>="]),
)
def test_of_two_limits_on_one_metric_the_stricter_is_named(
    one: float, other: float, form: str
) -> None:
    texts = [f"{form}{one:g}", f"{form}{other:g}"]
    if texts[0] == texts[1]:
        assert len(slos_of(texts)) == 1
        return
    strict = min(one, other) if "<=" in form else max(one, other)
    with pytest.raises(BadInput, match=re.escape(f"the stricter is '{form}{strict:g}'")):
        slos_of(texts)


def test_a_limit_of_microseconds_is_one_in_seconds() -> None:
    with pytest.raises(BadInput, match=re.escape("0.04 seconds are 'p99_tpot_ms<=40'")):
        slos_of(["p99_tpot_ms<=0.04"])
    assert slos_of(["p99_itl_ms<=0.05"])


def test_a_limit_that_nobody_typed_is_told_in_words() -> None:
    limit = spec(objective="request_goodput", goodput={"ttft": 5.0}).with_goodput_floor.slos[-1]
    assert limit.broken_by(90.8) == "9.2 % of the requests met the limits; 45 % were wanted"
    assert limit.description == "45 % of the requests within --goodput"
    assert Slo.parse("p99_ttft_ms<=2000").broken_by(3000.0) == "p99_ttft_ms<=2000 by 50 % (3,000)"


def test_a_concurrency_that_is_typed_twice_is_measured_once_and_told() -> None:
    options, measured = request(ladder="4,1,4"), lambda _, rungs, __: (rungs, ())
    asked = with_loads(spec(), options, measured, Library(), sent=False)
    assert asked.ladder == (1, 4)
    assert asked.notes[-1] == "--ladder: each concurrency is measured once"
