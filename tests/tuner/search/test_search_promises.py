"""A command gives up nothing for speed but what the user allows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.promises import GivenUp
from autotune.engines.schema import GiveUpKind
from autotune.load.metrics.formulas import Slo
from autotune.outputs.report.sentences import lines
from autotune.tuner.recommend import recommend
from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.history import History
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.trial import Launch, Role
from tests.tuner.search.search_landscapes import Throughput, evaluate, make_spec, opened, play

KINDS: dict[str, tuple[object, GiveUpKind]] = {
    "context": (16384, "shorter-context"),
    "cache": (False, "no-prefix-caching"),
}
ITEMS = tuple(
    Candidate(Configuration("vllm", {"dp": dp, "context": context, "cache": cache}), "0.11")
    for dp, context, cache in itertools.product((1, 2, 4), (None, 16384), (True, False))
)


def given_up(candidate: Candidate) -> tuple[GivenUp, ...]:
    knobs = candidate.configuration.knobs
    return tuple(
        GivenUp(knob=name, from_=None, to=value, what=f"less {name}", kind=kind)
        for name, (value, kind) in KINDS.items()
        if knobs[name] == value and knobs[name] is not None
    )


NODE = CandidateSet(
    ITEMS, 0, (0,), given_up={i: g for i, item in enumerate(ITEMS) if (g := given_up(item))}
)


def node(context: float = 0.0, cache: float = 0.0, layout: float = 0.2) -> Throughput:
    """Attention replicas add the most; a short context and no prefix cache add so much,
    logarithms."""

    def throughput(c: Configuration) -> float:
        score = layout * math.log2(float(c.knobs["dp"] or 1))
        return 1000 * math.exp(
            score + context * (c.knobs["context"] == 16384) + cache * (c.knobs["cache"] is False)
        )

    return throughput


def study(
    folder: Path, throughput: Throughput, **changes: object
) -> tuple[list[Launch], Recommendation]:
    spec = make_spec(**{"noise": 0.01, "launches": 24, **changes})
    one = opened(folder, spec, NODE)
    made = play(one, spec, throughput)
    one.close()
    return made, recommend(spec, NODE, made, (), one.stop_reason)


@pytest.mark.parametrize("seed", range(3))
def test_a_promise_is_kept_whatever_breaking_it_would_pay(tmp_path: Path, seed: int) -> None:
    made, outcome = study(tmp_path, node(context=0.3), seed=seed)
    assert outcome.recommended is not None
    assert outcome.recommended.config == {"dp": 4, "context": None, "cache": True}
    assert (outcome.gives_up, outcome.alternatives) == ([], [])
    assert outcome.verdict is Verdict.BETTER
    assert {row.trial.configuration.knobs["context"] for row in made} == {None}, (
        "no launch is spent on it"
    )


def test_a_faster_command_that_was_launched_and_breaks_a_promise_is_an_alternative_with_its_price(
    tmp_path: Path,
) -> None:
    made, _ = study(tmp_path, node())
    faster = replace(
        made[0].trial, number=len(made), role=Role.START, configuration=ITEMS[RIVAL].configuration
    )
    made.append(evaluate(make_spec(), lambda _: 5000.0, faster))
    outcome = recommend(make_spec(noise=0.01, launches=24), NODE, made, (), "done")
    assert outcome.recommended is not None
    assert outcome.recommended.config["context"] is None
    (other,) = outcome.alternatives
    assert other.config == {"dp": 4, "context": 16384, "cache": True}
    assert [row.kind for row in other.gives_up] == ["shorter-context"]
    assert other.lead_percent < -50, "the recommended command is slower"
    told = lines("promises", outcome)
    assert not any(line.startswith(("Same", "Changed")) for line in told), (
        "no knob here is an engine's"
    )
    assert any("shorter-context" in line for line in told)
    assert Recommendation.from_json(outcome.to_json()) == outcome


def test_where_nothing_that_keeps_the_promises_runs_the_others_are_searched(tmp_path: Path) -> None:
    def throughput(c: Configuration) -> float | None:
        return None if c.knobs["context"] is None else node(cache=0.5)(c)

    made, outcome = study(tmp_path, throughput)
    assert outcome.verdict is Verdict.UNOPPOSED
    assert outcome.recommended is not None
    assert outcome.recommended.config == {"dp": 4, "context": 16384, "cache": True}, (
        "prefix caching is never given up"
    )
    assert [row.kind for row in outcome.gives_up or ()] == ["shorter-context"]
    failed = [row for row in made if row.result.failure is not None]
    assert len(failed) <= 5


def test_prefix_caching_stays_whatever_it_costs_unless_it_is_allowed(tmp_path: Path) -> None:
    _, kept = study(tmp_path / "kept", node(cache=0.5))
    assert kept.recommended is not None
    assert kept.recommended.config["cache"] is True
    _, allowed = study(tmp_path / "allowed", node(cache=0.5), allow=("no-prefix-caching",))
    assert allowed.recommended is not None
    assert allowed.recommended.config["cache"] is False
    assert [one.knob for one in allowed.gives_up] == ["cache"]


def test_what_is_allowed_goes_into_the_finals(tmp_path: Path) -> None:
    made, outcome = study(tmp_path, node(context=0.1), allow=("shorter-context",))
    finals = [x.trial.configuration.knobs["context"] for x in made if x.trial.role is Role.FINAL]
    assert finals[0] == 16384
    assert outcome.recommended is not None
    assert outcome.recommended.config["context"] == 16384
    assert [other.config["context"] for other in outcome.alternatives] == [None], (
        "what gives nothing up stands beside it"
    )


def test_what_is_allowed_excuses_nothing_else_that_a_candidate_gives_up() -> None:
    expected = [i for i, item in enumerate(ITEMS) if item.configuration.knobs["cache"] is False]
    assert NODE.giving_up(frozenset({"shorter-context"})) == expected
    assert NODE.giving_up(frozenset(kind for _, kind in KINDS.values())) == []


def at(*knobs: object) -> int:
    """The position of a candidate by its values."""
    return next(
        i for i, item in enumerate(ITEMS) if tuple(item.configuration.knobs.values()) == knobs
    )


RIVAL = at(4, 16384, True)


def test_a_baseline_that_gives_something_up_is_not_barred() -> None:
    own = replace(NODE, baseline=RIVAL)
    ineligible = History(make_spec(), own, ()).ineligible
    assert RIVAL not in ineligible
    assert at(2, 16384, True) in ineligible


def test_what_breaks_a_promise_takes_no_place_even_of_a_baseline_that_breaks_a_limit() -> None:
    base, simple = at(4, None, True), at(1, 16384, True)
    slo = Slo.parse("p99_ttft_ms<=1000")
    rows = [
        (Role.BASELINE, base),
        (Role.SEARCH, simple),
        *((Role.FINAL, p) for p in (simple, base, base, simple)),
    ]
    entries = [
        Entry(
            n, role, p, 0.01 * (-1) ** (n // 2), violations={str(slo): 0.1 if p == base else -0.1}
        )
        for n, (role, p) in enumerate(rows)
    ]
    for broken, winner in ((NODE.given_up, None), ({}, simple)):
        node_ = replace(NODE, baseline=base, given_up=broken)
        spec = make_spec(launches=len(rows), slos=(slo,))
        assert judge(History(spec, node_, tuple(entries))).winner == winner


EIGHT = tuple(
    Candidate(Configuration("vllm", {"dp": n, "context": None}), "0.11") for n in range(1, 9)
)
SHORTER = Candidate(Configuration("vllm", {"dp": 1, "context": 16384}), "0.11")


@pytest.mark.parametrize("ran", [False, True])
def test_commands_with_a_trade_off_are_searched_after_five_failures_of_those_without(
    ran: bool,
) -> None:
    """Whatever else could still be tried without a trade-off; and never where one of these ran."""
    kept = GivenUp(knob="context", from_=None, to=16384, what="less", kind="shorter-context")
    node_ = CandidateSet((*EIGHT, SHORTER), 0, (0,), given_up={8: (kept,)})
    for failures in range(9):
        entries = [Entry(n, Role.SEARCH, n, None, broke=True) for n in range(failures)]
        if ran and failures:
            entries[-1] = Entry(failures - 1, Role.SEARCH, failures - 1, 0.0, violations={})
        assert (8 in History(make_spec(), node_, tuple(entries)).ineligible) is (
            ran or failures < 5
        )
