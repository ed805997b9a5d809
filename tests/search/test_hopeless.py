"""Which loads of the search may be cut short, and that what was cut is no evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.recommend import recommend
from autotune.search.decide.verdict import evidence, judge
from autotune.search.history import History
from autotune.search.hopeless import MARGIN, UNKNOWN_NOISE, hopeless_below
from autotune.search.nodes import Effect, Stage
from autotune.study.spec import Slo
from autotune.trial import Role
from tests.search.search_landscapes import best_of, make_spec, opened, play, ridge, small


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A whole study on which nothing was cut, with its question and candidates."""
    question, candidates = make_spec(noise=0.03, launches=16), small()
    study = opened(tmp_path_factory.mktemp("study"), question, candidates)
    launches = play(study, question, ridge)
    study.close()
    return question, candidates, launches


def test_below_the_best_by_a_wide_margin_and_only_in_the_search(played):
    question, candidates, launches = played
    best = max(row.result.metrics["chat"]["total_token_throughput"] for row in launches)
    assert best == pytest.approx(best_of(candidates, ridge), rel=0.1)
    assert (
        hopeless_below(question, Role.SEARCH, launches[:1])
        < launches[0].result.metrics["chat"]["total_token_throughput"]
    )
    found = hopeless_below(question, Role.SEARCH, launches)
    assert found == pytest.approx(best * math.exp(-MARGIN * 0.03), rel=0.02)
    assert hopeless_below(question, Role.SEARCH, []) is None
    for role in set(Role) - {Role.SEARCH}:
        assert hopeless_below(question, role, launches) is None
    unknown = question.model_copy(update={"noise": 0.0})
    assert hopeless_below(unknown, Role.SEARCH, launches[:2]) == pytest.approx(
        max(row.result.metrics["chat"]["total_token_throughput"] for row in launches[:2])
        * math.exp(-MARGIN * UNKNOWN_NOISE)
    )


def test_repeats_that_scatter_more_widen_the_margin(played):
    question, _, launches = played
    first = launches[0]
    scattered = [
        replace(first, result=replace(first.result, metrics={"chat": {"total_token_throughput": value}}))
        for value in (800.0, 1000.0, 1250.0)
    ]
    assert hopeless_below(question, Role.SEARCH, scattered) < 1250 * math.exp(-MARGIN * 0.15)


def test_a_slow_node_lowers_it_and_no_node_raises_it(played):
    """A launch may run on any node: the best configuration must not be cut short on the slowest one."""
    question, _, launches = played
    rows = [replace(row, result=replace(row.result, node="a")) for row in launches]
    usual = hopeless_below(question, Role.SEARCH, rows)

    def bar(**offsets):
        nodes = {name: Effect(stages=(Stage(offset, 0.01, 1.0),)) for name, offset in offsets.items()}
        return hopeless_below(question, Role.SEARCH, rows, nodes)

    assert bar(a=0.0, d=-0.2) == pytest.approx(usual * math.exp(-0.21))
    assert bar(a=-0.2) == pytest.approx(usual * math.exp(-0.21)), "what it costs the best is not added"
    assert bar(a=0.2) == pytest.approx(usual * math.exp(-0.2)), "what it gives the best is taken off"
    assert bar(b=0.2) == pytest.approx(usual)
    doubtful = {"d": Effect(stages=(Stage(-0.1, 0.1, 0.5),))}
    assert hopeless_below(question, Role.SEARCH, rows, doubtful) == pytest.approx(usual * math.exp(-0.2))
    # Repeats on a node that is known to be slow scatter no more for that.
    apart = [replace(row, result=replace(row.result, node=node)) for row, node in ((rows[0], "a"), (rows[0], "d")) * 2]
    slow = [row if row.result.node == "a" else slower(row, 0.8) for row in apart]
    known = {"a": Effect(), "d": Effect(stages=(Stage(math.log(0.8), 0.0, 1.0),))}
    assert hopeless_below(question, Role.SEARCH, slow, known) > hopeless_below(question, Role.SEARCH, slow) * 1.2


def slower(row, share):
    metrics = {"chat": {name: share * value for name, value in row.result.metrics["chat"].items()}}
    return replace(row, result=replace(row.result, metrics=metrics))


@pytest.mark.parametrize(
    "other",
    [
        {"slos": (Slo.parse("mean_tpot_ms<=8"),)},
        {"weights": {"chat": 1.0}},
        {"pareto": "p99_ttft_ms"},
        {"objective": "mean_tpot_ms"},
        {"objective": "request_goodput"},
    ],
)
def test_other_goals_need_whole_loads(played, other):
    question, _, launches = played
    assert hopeless_below(question.model_copy(update=other), Role.SEARCH, launches) is None


def test_a_study_asks_for_it_and_resumes_with_the_same(tmp_path):
    question, candidates = make_spec(noise=0.03, launches=12), small()
    study = opened(tmp_path, question, candidates)
    play(study, question, ridge, at_most=5)
    asked = study.ask()
    study.close()
    again = opened(tmp_path, question, candidates)
    assert asked.role is Role.SEARCH
    assert asked.hopeless_below is not None
    assert again.ask() == asked
    again.close()


def test_what_was_cut_short_is_no_evidence(played):
    """Every challenger but one was cut: only that one stands, and where all were, the baseline."""
    question, candidates, launches = played
    searched = [row for row in launches if row.trial.role is not Role.FINAL]
    whole = next(row for row in searched if row.trial.role is not Role.BASELINE)

    def cut(row):
        return replace(row, result=replace(row.result, shortened={"chat": 0.1}))

    rows = [row if row.trial.role is Role.BASELINE or row is whole else cut(row) for row in searched]
    history = History.of(question, candidates, rows)
    position = candidates.position(whole.trial.configuration.fingerprint)
    shortened = [p for p in history.by_position if p not in (position, candidates.baseline)]
    assert shortened
    assert not any(evidence(history, p) or history.feasible(p) for p in shortened)
    assert judge(history).challenger == position
    alone = [row if row.trial.role is Role.BASELINE else cut(row) for row in searched]
    outcome = recommend(question, candidates, alone)
    assert outcome.recommended.fingerprint == candidates.items[candidates.baseline].fingerprint
