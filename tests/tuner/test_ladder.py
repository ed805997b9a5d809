"""A ladder of concurrencies: what may be asked, who measures it, both curves, and where they
cross."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines.library import Library
from autotune.engines.registry import recognise, split_command
from autotune.load.metrics.table import HEADLINE, Metrics
from autotune.load.workloads import how_fixed, load_workload
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from autotune.tuner.backends import EvaluationSetup, ValidatedEvaluator, evaluator_for
from autotune.tuner.backends.simulator import SimulatedEvaluator
from autotune.tuner.comparison import compare, crossings
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.recommend import recommend
from autotune.tuner.search import objective
from autotune.tuner.search.spread import Spread
from autotune.tuner.study.home import library_of
from autotune.tuner.study.loads import rung_of, with_loads
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import CurvePoint
from autotune.tuner.study.results import launch_of, row_of
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, Trial
from tests.data import SWEEP, rows
from tests.small_study import conclusion
from tests.tuner.prepare.settings import RUN, prepared
from tests.tuner.test_recommend import CANDIDATES, launch, spec, story

USUAL = Spread(0.03, 10)


def laddered(asked: StudySpec, **more: str) -> StudySpec:
    """Gives a study the loads that were typed, where all can be measured."""
    options = RunOptions("m", "h200", **more)  # type: ignore[arg-type]
    return with_loads(asked, options, lambda _, rungs, __: (rungs, ()), Library(), sent=True)


@pytest.mark.parametrize("text", ["", "0", "4,,8", "4;8", "-4", "1.5", "four", "4,", "1e3"])
def test_a_ladder_is_made_of_whole_numbers(text: str) -> None:
    with pytest.raises(BadInput, match=r"--ladder .*write concurrencies"):
        laddered(spec(), ladder=text)


def test_a_ladder_is_sorted() -> None:
    asked = spec(workloads=("sharegpt",))
    assert laddered(asked, ladder="16, 4,16").ladder == (4, 16)
    assert laddered(asked).ladder == ()


def test_a_load_search_has_no_ladder_beside_it() -> None:
    with pytest.raises(BadInput, match="remove --ladder or --find-load"):
        laddered(spec(find_load="rate"), ladder="1,4")


@pytest.mark.parametrize("workload", ["sweep", "sharegpt-c4", "offline"])
def test_a_workload_with_a_load_of_its_own_has_no_ladder(workload: str) -> None:
    assert how_fixed(load_workload(workload))
    asked = RunOptions(
        "deepseek-ai/DeepSeek-V3.2", "h200", workloads=[workload], on="simulator", ladder="1,4"
    )
    with pytest.raises(BadInput, match=f"--ladder: {workload} .* so its concurrency is fixed"):
        build_spec(asked)


def test_a_light_load_has_few_prompts_of_the_same_lengths() -> None:
    workload = load_workload("random:100:10:400")
    counts = {c: rung_of(workload, c).points[0].prompts for c in (1, 4, 16, 64, 256)}
    assert counts == {1: 32, 4: 32, 16: 128, 64: 400, 256: 400}
    assert rung_of(workload, 4).points[0].lengths == workload.points[0].lengths


def test_sessions_are_sent_whole(tmp_path: Path) -> None:
    turns = [{"input_tokens": 40, "output_tokens": 9}] * 30
    (tmp_path / "s.jsonl").write_text("\n".join(json.dumps({"turns": turns}) for _ in range(4)))
    workload = rung_of(load_workload(f"sessions:{tmp_path / 's.jsonl'}"), 2)
    assert len(workload.draw(0, 0)) == 120


def test_the_finals_measure_the_ladder() -> None:
    asked = spec(ladder=(1, 4))
    assert [asked.rungs_of(role) for role in (Role.BASELINE, Role.FINAL)] == [(1, 4)] * 2
    assert [asked.rungs_of(role) for role in (Role.SEARCH, Role.CONTROL)] == [()] * 2
    assert StudySpec.from_yaml(asked.to_yaml()) == asked


def with_curve(row: Launch, rates: dict[int, float]) -> Launch:
    """Gives a launch a curve: total token throughput by concurrency, and a speed per user that
    falls with it."""
    rows: list[Metrics] = [
        {
            "concurrency": c,
            "total_token_throughput": rate,
            "output_tokens_per_s_per_user": rate / c / 10,
        }
        for c, rate in rates.items()
    ]
    row.result.metrics["chat"]["curve"] = rows
    return row


def test_two_curves_cross_between_loads_and_are_put_in_words() -> None:
    slow_start = {1: 50.0, 4: 180.0, 16: 700.0, 64: 1900.0}
    usual = {1: 100.0, 4: 250.0, 16: 600.0, 64: 1000.0}
    rows = [
        with_curve(row, slow_start if row.trial.configuration.engine == "sglang" else usual)
        for row in story()[:1]
    ]
    for row in story()[4:8]:
        rows.append(
            with_curve(row, usual if row.trial.configuration.engine == "vllm" else slow_start)
        )
    told = recommend(spec(ladder=(1, 4, 16, 64)), CANDIDATES, rows, (), "done")
    ladder = told.curves
    assert ladder is not None
    assert ladder.launches == (3, 2)
    assert [point.faster for point in ladder.points] == [
        "baseline",
        "baseline",
        "recommended",
        "recommended",
    ]
    assert [point.gain_percent for point in ladder.points] == pytest.approx([-50, -28, 100 / 6, 90])
    (crossing,) = ladder.crossings
    a, b = math.log(180 / 250), math.log(700 / 600)
    assert crossing.concurrency == pytest.approx(4 * 4 ** (-a / (b - a)), rel=1e-3)
    assert 4 < crossing.between[0] < crossing.concurrency < crossing.between[1] < 16
    assert (crossing.below, crossing.above) == ("baseline", "recommended")
    assert "Below about 10.3 in flight (between " in conclusion(told)
    assert "the baseline is faster, above the recommended command." in conclusion(told)
    assert told.workloads["chat"].baseline is not None
    assert [
        row["total_token_throughput"] for row in told.workloads["chat"].baseline["curve"]
    ] == list(usual.values())


def test_a_load_that_was_not_measured_as_it_should_be_does_not_count_and_is_told() -> None:
    row = with_curve(launch(0, Role.BASELINE, 0, 1000), {4: 100.0, 16: 400.0, 64: 900.0})
    row.result.metrics["chat"]["curve"][0]["invalid"] = (
        "the client did not keep up with the server: too slow"
    )
    row.result.metrics["chat"]["curve"][1]["client_bound"] = True
    assert objective.curve(row, "chat").keys() == {64}
    told = recommend(spec(ladder=(4, 16, 64)), CANDIDATES, [row], (), "done")
    assert told.curves is not None
    assert [point.concurrency for point in told.curves.points] == [64]
    page = render(StudyRecord(spec(ladder=(4, 16, 64)), [row], told, Path("/home/studies/s")), "md")
    assert (
        "launch 0 at 4 in flight is invalid: the client did not keep up with the server: too slow"
        in page
    )
    assert "launch 0 at 16 in flight is invalid" in page
    assert "--ladder 4,16,64" in page


def test_a_difference_within_noise_is_none() -> None:
    base, mine = (
        [with_curve(launch(0, Role.BASELINE, 0, 1000), {4: 100.0, 16: 400.0})],
        launch(1, Role.FINAL, 2, 2000),
    )
    told = compare(spec(ladder=(4, 16)), USUAL, base, [with_curve(mine, {4: 95.0, 16: 420.0})])
    assert told is not None
    assert [point.faster for point in told.points] == [None, None]
    assert told.crossings == []


@pytest.mark.parametrize("groups", [[[0.0], [0.1]], [[0.0, 0.001]], [[0.0] * 6]])
def test_where_few_repeats_show_the_noise_or_all_are_one_row_it_is_taken_as_3_percent(
    groups: list[list[float]],
) -> None:
    """Two launches then differ by chance by up to 8.3 %."""
    base = [with_curve(launch(0, Role.BASELINE, 0, 1000), {4: 100.0, 16: 100.0})]
    mine = [with_curve(launch(1, Role.FINAL, 2, 2000), {4: 107.0, 16: 112.0})]
    told = compare(spec(ladder=(4, 16)), Spread.pooled(groups), base, mine)
    assert told is not None
    assert [point.faster for point in told.points] == [None, "recommended"]


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 0.3)), min_size=1, max_size=8))
def test_a_crossing_lies_between_loads_that_are_decided_and_within_its_interval(
    steps: list[tuple[float, float]],
) -> None:
    ahead = [
        CurvePoint(
            concurrency=2**i,
            baseline=1.0,
            recommended=math.exp(log),
            ci95=(100 * math.expm1(log - half), 100 * math.expm1(log + half)),
            faster=None if abs(log) <= half else "recommended" if log > 0 else "baseline",
        )
        for i, (log, half) in enumerate(steps)
    ]
    found = crossings(ahead)
    sides = [one.faster for one in ahead if one.faster]
    assert len(found) == sum(a != b for a, b in pairwise(sides))
    for one in found:
        low, high = one.between
        assert 1 <= low <= high <= 2 ** len(steps)
        assert low * (1 - 1e-3) <= one.concurrency <= high * (1 + 1e-3)
        assert one.below != one.above


def test_the_simulated_node_measures_the_ladder_on_one_launch() -> None:
    ready = prepared(request_on_ladder())
    role = Role.FINAL
    candidate = ready.candidates.baseline_candidate
    trial = Trial(
        number=0,
        role=role,
        configuration=candidate.configuration,
        engine_version=candidate.engine_version,
        command=ready.command_of(candidate),
        workloads=ready.spec.workloads,
        rungs=(1, 8),
    )
    result = ValidatedEvaluator(SimulatedEvaluator(ready.spec, ready.library), ready.spec)(trial)
    metrics = result.metrics[ready.spec.workloads[0]]
    assert [row["concurrency"] for row in metrics["curve"]] == [1, 8]
    one, eight = metrics["curve"]
    assert one["output_tokens_per_s_per_user"] > eight["output_tokens_per_s_per_user"]
    assert (
        one["total_token_throughput"]
        < eight["total_token_throughput"]
        < metrics["total_token_throughput"]
    )
    durations = metrics["duration"] + one["duration"] + eight["duration"]
    assert result.times_s["load"] == pytest.approx(durations)
    # A row keeps what was measured and what was asked for.
    row = json.loads(json.dumps(row_of(Launch(trial, result))))
    assert row["ladder"] == [1, 8]
    again = launch_of(row)
    assert again.trial.rungs == (1, 8)
    assert objective.curve(again, trial.workloads[0]).keys() == {1, 8}


def request_on_ladder() -> RunOptions:
    return replace(RUN, ladder="1,8", gpu_hour_price=3.0)


def replayed(path: Path, **asked: object) -> RunOptions:
    return RunOptions("deepseek-ai/DeepSeek-R1", "h200", on=f"replay:{path}", **asked)  # type: ignore[arg-type]


def test_rows_bring_the_curves_of_their_study_and_a_csv_has_none(tmp_path: Path) -> None:
    row = with_curve(launch(0, Role.BASELINE, 0, 1000), {4: 300.0, 8: 500.0})
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(row_of(row)) + "\n")
    ready = prepared(replayed(path, ladder="4,16", workloads=["chat"]))
    assert ready.spec.ladder == (4,)
    assert any("no row is of concurrency 16" in note for note in ready.spec.notes)
    trial = replace(
        row.trial, workloads=("chat",), configuration=ready.candidates.items[0].configuration
    )
    answers = evaluator_for(EvaluationSetup(ready.spec, library_of(ready.spec), tmp_path))
    assert objective.curve(Launch(trial, answers(trial)), "chat").keys() == {4, 8}
    table = tmp_path / "t.csv"
    table.write_text("engine,alpha,concurrency,total_token_throughput\nfoo,1,4,100\nfoo,1,8,200\n")
    with pytest.raises(BadInput, match=r"at concurrency 4, 8; .* a CSV has none"):
        build_spec(replayed(table, ladder="4,8"))
    # Without a ladder the column is a knob, as any other one.
    assert len(prepared(replayed(table)).candidates.items) == 2


def test_the_published_sweep_crosses_where_its_rows_do() -> None:
    """DeepSeek-R1 on 8×H200, 3200→800 tokens: vLLM leads at up to 32 in flight, TensorRT-LLM at
    128."""
    by_engine: dict[str, dict[int, float]] = {}
    for row in rows(SWEEP):
        if row["hardware"] == "H200":
            name = recognise(split_command(row["command"]).argv).name
            by_engine.setdefault(name, {})[int(row["max_concurrency"])] = float(row[HEADLINE])
    vllm = with_curve(launch(0, Role.BASELINE, 0, 1), by_engine["vllm"])
    tensorrt_llm = with_curve(launch(1, Role.FINAL, 2, 1), by_engine["tensorrt_llm"])
    told = compare(spec(ladder=(4, 8, 16, 32, 64, 128)), Spread(0.0, 5), [vllm], [tensorrt_llm])
    assert told is not None
    assert {point.concurrency: point.baseline for point in told.points} == pytest.approx(
        by_engine["vllm"]
    )
    assert [point.faster for point in told.points] == [*["baseline"] * 4, None, "recommended"]
    (crossing,) = told.crossings
    # The rows of 64 and 128 alone say where: 3792 against 3619, and 3724 against 4176 tokens per
    # second.
    assert crossing.concurrency == pytest.approx(78.2, abs=0.5)
    assert 32 < crossing.between[0] < 64 < crossing.between[1] < 128
