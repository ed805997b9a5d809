"""The content of a recommendation, from launches written by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autotune.base.evidence import Evidence
from autotune.engines.cards import HardwareCard, ModelCard
from autotune.engines.command import Command, Configuration, Scalar
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.failure import Failure, FailureKind
from autotune.load.metrics.formulas import Slo
from autotune.outputs.report.sentences import brief
from autotune.tuner.recommend import recommend
from autotune.tuner.search.reach import OUT_OF_REACH
from autotune.tuner.study.recommendation import (
    Exclusion,
    Recommendation,
    Verdict,
    WorkloadComparison,
)
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.small_study import conclusion

SPACES = Path(__file__).resolve().parents[2] / "search_spaces"
MODEL = ModelCard.model_validate(yaml.safe_load((SPACES / "models/deepseek-r1.yaml").read_text()))
HARDWARE = HardwareCard.model_validate(yaml.safe_load((SPACES / "hardware/h200.yaml").read_text()))

CONFIGURATIONS: list[tuple[str, dict[str, Scalar]]] = [
    ("vllm", {"tp": 8, "kv": "auto", "compile": False}),
    ("sglang", {"tp": 8, "kv": "auto", "overlap": True}),
    ("sglang", {"tp": 1, "kv": "fp8", "overlap": True}),
    ("sglang", {"tp": 1, "kv": "auto", "overlap": True}),
    ("sglang", {"tp": 8, "kv": "fp8", "overlap": True}),
    ("vllm", {"tp": 8, "kv": "fp8", "compile": False}),
]
CANDIDATES = CandidateSet(
    tuple(Candidate(Configuration(engine, knobs), "1.0") for engine, knobs in CONFIGURATIONS),
    0,
    (0, 1),
)


def spec(**changes: object) -> StudySpec:
    fields: dict[str, object] = {
        "study": "s",
        "model": MODEL,
        "hardware": HARDWARE,
        "gpus": 8,
        "engines": (
            EngineChoice(name="vllm", version="1.0"),
            EngineChoice(name="sglang", version="1.0"),
        ),
        "workloads": ("chat", "long"),
        "launches": 10,
    }
    return StudySpec.model_validate({**fields, **changes})


def launch(
    number: int, role: Role, position: int, value: float | None, long: float | None = None
) -> Launch:
    """A launch with a throughput (None: it crashed) and twice the latency in ms of its inverse."""
    configuration = CANDIDATES.items[position].configuration
    command = Command((configuration.engine, "serve", f"--position={position}"), {"A": "1"})
    trial = Trial(number, role, configuration, "1.0", command, ("chat", "long"))
    if value is None:
        failure = Failure(FailureKind.CRASHED, "it crashed")
        return Launch(
            trial, TrialResult(State.FAILED, Evidence.SIMULATED, failure, times_s={"launch": 10.0})
        )
    metrics = {
        name: {"total_token_throughput": v, "p99_ttft_ms": 2e6 / v, "completed": 100}
        for name, v in (("chat", value), ("long", long))
        if v is not None
    }
    times = {"launch": 100.0, "load": 50.0}
    return Launch(
        trial, TrialResult(State.COMPLETE, Evidence.SIMULATED, metrics=metrics, times_s=times)
    )


def story() -> list[Launch]:
    """A baseline at 1000, a winner at 2000 in the finals (a lucky 2600 in the search), and two
    ablations."""
    rows: list[tuple[Role, int, float | None, float | None]] = [
        (Role.BASELINE, 0, 1000, 500),
        (Role.DEFAULT, 1, 1250, None),
        (Role.SEARCH, 2, 2600, None),
        (Role.SEARCH, 5, None, None),
        (Role.FINAL, 2, 1980, 700),
        (Role.FINAL, 0, 1010, 510),
        (Role.FINAL, 0, 990, 490),
        (Role.FINAL, 2, 2020, 710),
        (Role.FINAL, 3, 1600, 650),
        (Role.FINAL, 4, 1500, 600),
    ]
    return [launch(number, *row) for number, row in enumerate(rows)]


@pytest.fixture
def result() -> Recommendation:
    return recommend(
        spec(), CANDIDATES, story(), [Exclusion(engine="tensorrt_llm", reason="no")], "done"
    )


def test_gain_comes_from_the_finals_and_not_from_the_lucky_search(result: Recommendation) -> None:
    assert result.verdict is Verdict.BETTER
    assert result.recommended is not None
    assert result.recommended.objective.value == pytest.approx(2000, rel=1e-3)
    assert result.recommended.objective.repeats == 2
    assert result.baseline is not None
    assert result.baseline.objective.repeats == 3
    assert result.gain_percent == pytest.approx(100, abs=0.5)
    assert result.gain_ci95 is not None
    assert result.gain_ci95[0] < 100 < result.gain_ci95[1]


def test_the_interval_by_hand(result: Recommendation) -> None:
    """Pooled spread on 3 degrees of freedom, one finalist: t(0.975, 3) = 3.182.

    As the test passed, the lower end has 0.3 of its half of the error: t(1 - 0.3 x 0.025, 3) =
    5.047.
    """
    base = [math.log(v) for v in (1000, 1010, 990)]
    mine = [math.log(v) for v in (1980, 2020)]
    squares = sum((x - sum(g) / len(g)) ** 2 for g in (base, mine) for x in g)
    error = math.sqrt(squares / 3) * math.sqrt(1 / 3 + 1 / 2)
    gain = sum(mine) / 2 - sum(base) / 3
    ends = [100 * math.expm1(gain + quantile * error) for quantile in (-5.04729, 3.18245)]
    assert result.gain_ci95 == pytest.approx(ends, rel=1e-4)


def test_commands_and_counts(result: Recommendation) -> None:
    assert result.recommended is not None
    assert result.recommended.command == "A=1 sglang serve --position=2 --host 127.0.0.1", (
        "as serve.sh starts it"
    )
    assert result.recommended.config == {"tp": 1, "kv": "fp8", "overlap": True}
    assert (result.launches, result.trials) == (10, 6)
    assert result.failures == {"crashed": 1}
    assert result.duration_s == 9 * 150 + 10
    assert result.evidence is Evidence.SIMULATED
    assert result.stop_reason == "done"
    assert [e.engine for e in result.excluded] == ["tensorrt_llm"]


def test_every_workload_before_and_after(result: Recommendation) -> None:
    long = result.workloads["long"]
    assert long.gain_percent == pytest.approx(41, abs=0.5)
    assert long.recommended is not None
    assert long.recommended["total_token_throughput"] == pytest.approx(705)
    assert long.recommended["completed"] == 100


def test_survives_its_file(result: Recommendation) -> None:
    assert Recommendation.from_json(result.to_json()) == result


def test_a_latency_is_minimised_and_its_gain_is_positive() -> None:
    result = recommend(spec(objective="p99_ttft_ms"), CANDIDATES, story())
    assert result.verdict is Verdict.BETTER
    assert result.recommended is not None
    assert result.recommended.objective.value == pytest.approx(1000, rel=1e-3)
    assert result.gain_percent == pytest.approx(100, abs=0.5)
    ends = result.recommended.objective.ci95
    assert ends is not None
    assert ends[0] < 1000 < ends[1]


def test_an_slo_turns_the_winner_down() -> None:
    """The winner's first token takes 1000 ms; the ablations never stood in the finals twice."""
    rows = [*story(), launch(10, Role.FINAL, 3, 1620, 650)]
    strict = spec(slos=(Slo.parse("p99_ttft_ms>=1100"),))
    result = recommend(strict, CANDIDATES, rows)
    assert result.recommended is not None
    assert result.recommended.config == {"tp": 1, "kv": "auto", "overlap": True}


def test_where_nothing_keeps_the_limits_the_nearest_miss_is_told() -> None:
    """Candidate 2 has the least worst break over its launches; one that failed is none."""
    rows = [
        launch(0, Role.BASELINE, 0, 900),
        launch(1, Role.SEARCH, 1, 1000),
        launch(2, Role.SEARCH, 2, 1250),
    ]
    rows += [launch(3, Role.SEARCH, 2, 1200), launch(4, Role.SEARCH, 3, None)]
    limits = (Slo.parse("p99_ttft_ms<=1000"), Slo.parse("mean_ttft_ms<=100000"))
    values = [row.result.metrics["chat"]["p99_ttft_ms"] for row in rows[2:4]]
    for row in rows[:4]:
        row.result.metrics["chat"]["mean_ttft_ms"] = 1.0
    result = recommend(spec(slos=limits), CANDIDATES, rows)
    miss = result.nearest_miss
    assert (result.verdict, miss is None) == (Verdict.INFEASIBLE, False)
    assert miss is not None
    assert (miss.slo, miss.metric, miss.limit, miss.load) == (
        "p99_ttft_ms<=1000",
        "p99_ttft_ms",
        1000.0,
        None,
    )
    assert miss.value == pytest.approx(sum(values) / 2)
    assert miss.config == dict(CANDIDATES.items[2].configuration.knobs)
    assert miss.command.endswith("--host 127.0.0.1")
    assert [one.slo for one in miss.broken] == ["p99_ttft_ms<=1000"], "the other limit is kept"
    assert Recommendation.from_json(result.to_json()) == result
    assert f"{miss.value / 10 - 100:.0f} % beyond the limit p99_ttft_ms<=1000" in conclusion(result)
    assert recommend(spec(), CANDIDATES, rows[4:]).nearest_miss is None, "nothing ran"
    tight = (limits[0], Slo.parse("mean_ttft_ms<=0.01"))
    both = recommend(spec(slos=tight), CANDIDATES, rows)
    assert both.nearest_miss is not None
    assert [one.slo for one in both.nearest_miss.broken] == [
        "mean_ttft_ms<=0.01",
        "p99_ttft_ms<=1000",
    ]
    assert "9,900 % beyond the limit mean_ttft_ms<=0.01 and a" in conclusion(both)


def test_a_goodput_out_of_reach_ends_without_a_command() -> None:
    """The best has 9 % of good requests; where the study ended otherwise that is an answer."""
    rows = [launch(0, Role.BASELINE, 0, 900), launch(1, Role.SEARCH, 1, 1000)]
    for row, bad in zip(rows, (99.0, 91.0), strict=True):
        row.result.metrics["chat"].update(
            request_goodput=(100 - bad) / 10, request_violations_percent=bad
        )
    question = spec(objective="request_goodput", goodput={"ttft": 2000.0})
    ended = recommend(question, CANDIDATES, rows, stop_reason=OUT_OF_REACH)
    assert (ended.verdict, ended.recommended) == (Verdict.INFEASIBLE, None)
    assert ended.nearest_miss is not None
    assert ended.nearest_miss.config == dict(CANDIDATES.items[1].configuration.knobs)
    burst = {"sharegpt": WorkloadComparison(baseline=None, recommended=None, gain_percent=None)}
    said = conclusion(ended.model_copy(update={"workloads": burst}))
    assert "9.0 % of the requests within the goodput limits" in said
    assert "meets the limits for 45 % of them; --find-load concurrency with --slo" in said
    assert recommend(question, CANDIDATES, rows, stop_reason="done").recommended is not None


def test_a_baseline_that_breaks_an_slo_is_not_recommended() -> None:
    rows = [
        launch(i, r, p, v)
        for i, (r, p, v) in enumerate(
            [
                (Role.BASELINE, 0, 1000.0),
                (Role.FINAL, 2, 1001.0),
                (Role.FINAL, 0, 995.0),
                (Role.FINAL, 2, 1005.0),
            ]
        )
    ]
    result = recommend(spec(slos=(Slo.parse("p99_ttft_ms<=1999"),)), CANDIDATES, rows)
    assert result.verdict is Verdict.INDISTINGUISHABLE
    assert result.recommended is not None
    assert result.recommended.engine == "sglang"


@pytest.mark.parametrize(
    ("finals", "told"),
    [
        ([(2, None), (2, None), (0, 1010.0)], "all 2 launches of finalists failed (2 crashed)"),
        ([], "no finalist was launched again"),
        ([(2, 1300.0), (0, 1010.0)], ""),
        ([(2, None), (1, 1300.0)], ""),
    ],
)
def test_finals_that_show_nothing_are_told(
    finals: list[tuple[int, float | None]], told: str
) -> None:
    """On the terminal too: "no configuration is significantly better" would be a claim that nothing
    supports."""
    searched = [(Role.BASELINE, 0, 1000.0), (Role.SEARCH, 2, 1200.0), (Role.SEARCH, 1, 1100.0)]
    made = [*searched, *((Role.FINAL, position, value) for position, value in finals)]
    result = recommend(
        spec(launches=9), CANDIDATES, [launch(i, *row) for i, row in enumerate(made)]
    )
    assert result.unconfirmed == told
    for said in (conclusion(result), " ".join(brief(result))):
        assert (f"Nothing is confirmed: {told}." in said) == bool(told)
        assert not told or "significantly better" not in said


def test_nothing_is_to_be_confirmed_where_nothing_else_ran() -> None:
    made = [(Role.BASELINE, 0, 1000.0), (Role.SEARCH, 2, None)]
    result = recommend(spec(), CANDIDATES, [launch(i, *row) for i, row in enumerate(made)])
    assert result.unconfirmed == ""


def test_an_indistinguishable_best_leaves_the_baseline_s_command() -> None:
    values = [
        (Role.BASELINE, 0, 1000.0),
        (Role.SEARCH, 2, 1200.0),
        (Role.FINAL, 2, 1030.0),
        (Role.FINAL, 0, 1020.0),
    ]
    values += [(Role.FINAL, 0, 990.0), (Role.FINAL, 2, 1000.0)]
    rows = [launch(i, *row) for i, row in enumerate(values)]
    result = recommend(spec(launches=6), CANDIDATES, rows, (), "the finals are done")
    assert result.verdict is Verdict.INDISTINGUISHABLE
    assert result.recommended is not None
    assert result.baseline is not None
    assert result.recommended.fingerprint == result.baseline.fingerprint
    assert result.gain_percent == 0
    assert result.contributions == []
    assert "best challenger's gain is +1.2 %" in result.stop_reason


def test_a_finalist_that_crashed_once_is_out() -> None:
    rows = [*story(), launch(10, Role.FINAL, 2, None), launch(11, Role.FINAL, 3, 1610, 640)]
    result = recommend(spec(), CANDIDATES, rows)
    assert result.recommended is not None
    assert result.recommended.config == {"tp": 1, "kv": "auto", "overlap": True}


def test_no_launch_at_all() -> None:
    result = recommend(spec(), CANDIDATES, [])
    assert result.verdict is Verdict.INFEASIBLE
    assert result.recommended is None


def test_a_baseline_that_is_recommended_listens_on_loopback_too() -> None:
    only = recommend(spec(), CANDIDATES, story()[:1], (), "done")
    assert only.recommended is not None
    assert only.recommended.command == "A=1 vllm serve --position=0 --host 127.0.0.1"


def test_a_baseline_that_breaks_a_limit_is_the_best_of_no_workload() -> None:
    rows = story()
    for row in rows:
        if row.trial.configuration == CANDIDATES.items[0].configuration:
            row.result.metrics["chat"]["p99_ttft_ms"] = 1e9
            row.result.metrics["long"]["total_token_throughput"] = 5000
    for limit, best in ((1e10, {"baseline"}), (1e6, {"recommended"})):
        told = recommend(
            spec(slos=(Slo.parse(f"p99_ttft_ms<={limit:g}"),)), CANDIDATES, rows, (), "done"
        )
        assert {row.role for row in told.matrix if row.workloads["long"].best} == best


def test_two_nodes_are_told_with_what_each_ran() -> None:
    rows = [
        Launch(replace(row.trial, node="ab"[row.trial.number % 2]), row.result) for row in story()
    ]
    shares = recommend(spec(), CANDIDATES, rows, (), "done").nodes
    assert [(share.node, share.launches) for share in shares] == [("a", 5), ("b", 5)]


def with_recipes(rows: list[Launch], *positions: int) -> Recommendation:
    named = {position: f"recipe-{position}" for position in positions}
    return recommend(spec(), replace(CANDIDATES, recipes=named), rows)


def test_the_gain_over_the_fastest_recipe_that_ran_by_hand() -> None:
    """One launch of the recipe against two of the finals; the baseline's recipe and one that never
    ran do not count."""
    result = with_recipes(story(), 0, 1, 4)
    base, mine = [math.log(v) for v in (1000, 1010, 990)], [math.log(v) for v in (1980, 2020)]
    squares = sum((x - sum(g) / len(g)) ** 2 for g in (base, mine) for x in g)
    gain = sum(mine) / 2 - math.log(1500)
    half = 3.18245 * math.sqrt(squares / 3) * math.sqrt(1 / 2 + 1)
    found = result.gain_over_recipe
    assert found is not None
    assert (found.engine, found.recipe) == ("sglang", "recipe-4"), (
        "that has 1500, and the other 1250"
    )
    assert found.percent == pytest.approx(100 * math.expm1(gain), rel=1e-6)
    assert found.ci95 == pytest.approx(
        (100 * math.expm1(gain - half), 100 * math.expm1(gain + half)), rel=1e-4
    )
    assert "+33.3 % over sglang's recipe recipe-4 (95 % interval +" in conclusion(result)
    assert result.to_json()["gain_over_recipe"]["percent"] == found.percent
    assert Recommendation.from_json(result.to_json()) == result


@pytest.mark.parametrize("recipes", [(), (0,)])
def test_where_the_baseline_is_the_only_recipe_there_is_no_gain_over_one(
    recipes: tuple[int, ...],
) -> None:
    result = with_recipes(story(), *recipes)
    assert result.to_json()["gain_over_recipe"] is None
    assert "recipe" not in conclusion(result) + result.stop_reason


def test_a_recipe_that_did_not_run_is_said_to_have_failed() -> None:
    result = with_recipes(story(), 5)
    assert result.gain_over_recipe is None
    assert "vllm's recipe recipe-5 did not run (crashed)" in result.stop_reason
    never = with_recipes(
        [row for row in story() if row.trial.configuration.knobs["kv"] != "fp8"], 5
    )
    assert (never.gain_over_recipe, "recipe-5" in never.stop_reason) == (None, False)


def test_a_recipe_that_breaks_a_limit_is_nothing_to_gain_over() -> None:
    limited = spec(slos=(Slo.parse("p99_ttft_ms<=1500"),))
    result = recommend(limited, replace(CANDIDATES, recipes={1: "slow"}), story())
    assert result.recommended is not None
    assert result.gain_over_recipe is None
    assert "sglang's recipe slow did not meet the limits" in result.stop_reason


def test_a_recipe_that_is_recommended_is_named() -> None:
    result = with_recipes(story(), 1, 2)
    found = result.gain_over_recipe
    assert found is not None
    assert (found.recipe, found.percent, found.ci95) == ("recipe-2", 0.0, None)
    assert "the command is sglang's recipe recipe-2" in conclusion(result)
