"""What a command may give up for speed: only what pays by 3 % on fresh launches, or what the user allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from search_landscapes import Throughput, evaluate, make_spec, opened, play

from autotune.recommend import recommend
from autotune.search.acquisition import model_of
from autotune.search.decide import promises
from autotune.search.decide.verdict import judge
from autotune.search.gp.encoding import Encoding
from autotune.search.gp.kernels import Kernels
from autotune.search.history import Entry, History
from autotune.search.plan import Plan, Step
from autotune.search.sampler import CandidateSampler
from autotune.space.enumeration import Candidate, CandidateSet
from autotune.space.promises import GivenUp
from autotune.space.schema import GiveUpKind
from autotune.study.recommendation import Recommendation, Verdict
from autotune.trial import Configuration, Launch, Role

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


NODE = CandidateSet(ITEMS, 0, (0,), given_up={i: g for i, item in enumerate(ITEMS) if (g := given_up(item))})


def node(context: float = 0.0, cache: float = 0.0, layout: float = 0.2) -> Throughput:
    """Attention replicas add the most; a short context and no prefix cache add so much, logarithms."""

    def throughput(c: Configuration) -> float:
        score = layout * math.log2(float(c.knobs["dp"] or 1))
        return 1000 * math.exp(score + context * (c.knobs["context"] == 16384) + cache * (c.knobs["cache"] is False))

    return throughput


def study(folder: Path, throughput: Throughput, **changes: object) -> tuple[list[Launch], Recommendation]:
    spec = make_spec(**{"noise": 0.01, "launches": 24, **changes})
    one = opened(folder, spec, NODE)
    made = play(one, spec, throughput)
    one.close()
    return made, recommend(spec, NODE, made, (), one.stop_reason)


@pytest.mark.parametrize("seed", range(3))
def test_a_promise_is_kept_where_breaking_it_pays_less_than_three_percent(tmp_path: Path, seed: int) -> None:
    _, outcome = study(tmp_path, node(context=0.015), seed=seed)
    assert outcome.recommended is not None
    assert outcome.recommended.config == {"dp": 4, "context": None, "cache": True}
    assert (outcome.gives_up, outcome.alternatives) == ([], [])
    assert outcome.verdict is Verdict.BETTER


def test_what_pays_is_shown_against_the_same_command_on_fresh_launches_and_has_a_price(tmp_path: Path) -> None:
    made, outcome = study(tmp_path, node(context=0.15))
    assert outcome.recommended is not None
    assert outcome.recommended.config == {"dp": 4, "context": 16384, "cache": True}
    assert [(one.knob, one.to, one.what) for one in outcome.gives_up] == [("context", 16384, "less context")]
    (other,) = outcome.alternatives
    assert other.config == {"dp": 4, "context": None, "cache": True}
    assert other.price_percent == pytest.approx(100 * math.expm1(0.15), abs=4)
    assert other.price_ci95 is not None
    assert other.price_ci95[0] > 0
    for config in (outcome.recommended.config, other.config):
        fresh = [x for x in made if x.trial.role is Role.FINAL and x.trial.configuration.knobs == config]
        assert len(fresh) >= 3
    # The best of many by a lucky launch of the search has no fresh ones.
    lucky = replace(made[0].trial, number=len(made), role=Role.SEARCH, configuration=ITEMS[4].configuration)
    made.append(evaluate(make_spec(), lambda _: 5000.0, lucky))
    (again,) = recommend(make_spec(noise=0.01, launches=24), NODE, made, (), "done").alternatives
    assert again.config == other.config
    written = outcome.to_json()
    assert written["gives_up"] == [
        {"knob": "context", "from": None, "to": 16384, "what": "less context", "kind": "shorter-context"}
    ]
    assert Recommendation.from_json(written) == outcome


@pytest.mark.parametrize("seed", range(3))
def test_nothing_rides_along_with_what_pays(tmp_path: Path, seed: int) -> None:
    """A coarser cache pays, a shorter context adds half a percent: the context stays."""
    kinds: dict[str, GiveUpKind] = {"context": "shorter-context", "coarse": "lossy"}
    rows = [
        Candidate(Configuration("vllm", {"dp": dp, "context": context, "coarse": coarse}), "0.11")
        for dp, context, coarse in itertools.product((1, 2, 4), (None, 16384), (None, True))
    ]
    given = {
        i: tuple(
            GivenUp(knob=name, from_=None, to=value, what=f"less {name}", kind=kinds[name])
            for name, value in row.configuration.knobs.items()
            if name in kinds and value is not None
        )
        for i, row in enumerate(rows)
    }
    candidates = CandidateSet(tuple(rows), 0, (0,), given_up={i: g for i, g in given.items() if g})

    def throughput(c: Configuration) -> float:
        score = 0.2 * math.log2(float(c.knobs["dp"] or 1))
        return 1000 * math.exp(score + 0.005 * bool(c.knobs["context"]) + 0.2 * bool(c.knobs["coarse"]))

    spec = make_spec(noise=0.01, launches=24, seed=seed)
    one = opened(tmp_path, spec, candidates)
    made = play(one, spec, throughput)
    one.close()
    outcome = recommend(spec, candidates, made, (), one.stop_reason)
    assert outcome.recommended is not None
    assert outcome.recommended.config == {"dp": 4, "context": None, "coarse": True}
    assert [one.kind for one in outcome.gives_up or ()] == ["lossy"]


def test_prefix_caching_stays_whatever_it_costs_unless_it_is_allowed(tmp_path: Path) -> None:
    _, kept = study(tmp_path / "kept", node(cache=0.5))
    assert kept.recommended is not None
    assert kept.recommended.config["cache"] is True
    _, allowed = study(tmp_path / "allowed", node(cache=0.5), allow=("no-prefix-caching",))
    assert allowed.recommended is not None
    assert allowed.recommended.config["cache"] is False
    assert [one.knob for one in allowed.gives_up] == ["cache"]


def test_what_is_allowed_goes_into_the_finals_without_a_contest(tmp_path: Path) -> None:
    made, outcome = study(tmp_path, node(context=0.1), allow=("shorter-context",))
    finals = [x.trial.configuration.knobs["context"] for x in made if x.trial.role is Role.FINAL]
    assert finals[0] == 16384
    assert outcome.recommended is not None
    assert outcome.recommended.config["context"] == 16384


def test_the_last_launch_goes_to_the_form_that_keeps_the_promise(tmp_path: Path) -> None:
    """Nothing but the baseline keeps it before."""
    entries = [Entry(0, Role.BASELINE, 0, 0.0, violations={}), Entry(1, Role.SEARCH, 10, 0.5, violations={})]
    history = History(make_spec(launches=3), NODE, tuple(entries))
    assert NODE.items[10].configuration.knobs == {"dp": 4, "context": 16384, "cache": True}
    kept = promises.keeper(history, 10)
    assert kept is not None
    assert NODE.items[kept].configuration.knobs == {"dp": 4, "context": None, "cache": True}
    made, outcome = study(tmp_path, node(context=0.3), launches=3)
    assert outcome.recommended is not None
    assert outcome.recommended.config["context"] is None
    assert len(made) == 3


def test_the_search_leaves_a_launch_for_the_form_of_the_leader_that_keeps_the_promise() -> None:
    """A slower command keeps it already, and the finals leave no launch for a check."""
    slower, leader, kept = at(2, None, True), at(4, 16384, True), at(4, None, True)
    tried = [slower, leader, at(2, 16384, True), at(1, 16384, True), at(1, None, False), at(4, 16384, False)]
    scores = [0.2, 0.6, 0.3, 0.1, 0.0, 0.6]
    entries = [Entry(0, Role.BASELINE, 0, 0.0, violations={})]
    entries += [
        Entry(i + 1, Role.SEARCH, p, s, violations={}) for i, (p, s) in enumerate(zip(tried, scores, strict=True))
    ]
    kernels = Kernels(Encoding(NODE))
    plan = Plan(kernels, CandidateSampler(kernels))
    spec = make_spec(launches=12, noise=0.01)
    assert plan.next(History(spec, NODE, tuple(entries))) == Step(Role.SEARCH, kept)
    ran = (*entries, Entry(7, Role.SEARCH, kept, 0.55, violations={}))
    assert plan.next(History(spec, NODE, ran)) == Step(Role.FINAL, kept)
    assert plan.next(History(spec, NODE, tuple(entries[:-1]))) == Step(Role.SEARCH, None)


def test_where_only_the_baseline_keeps_it_the_gain_over_that_must_be_three_percent(tmp_path: Path) -> None:
    few = CandidateSet((ITEMS[0], ITEMS[2]), 0, (0,), given_up={1: NODE.given_up[2]})
    ends = []
    for name, worth in (("little", 0.02), ("much", 0.05)):
        spec = make_spec(launches=12)
        one = opened(tmp_path / name, spec, few)
        made = play(one, spec, node(context=worth))
        one.close()
        ends.append(recommend(spec, few, made, (), one.stop_reason))
    little, much = ends
    assert little.verdict is Verdict.INDISTINGUISHABLE
    assert little.recommended is not None
    assert little.recommended.config["context"] is None
    assert much.verdict is Verdict.BETTER
    assert much.gives_up
    assert [other.config["context"] for other in much.alternatives] == [None]


def test_what_is_allowed_excuses_nothing_else_that_a_candidate_gives_up() -> None:
    expected = [i for i, item in enumerate(ITEMS) if item.configuration.knobs["cache"] is False]
    assert NODE.giving_up(frozenset({"shorter-context"})) == expected
    assert NODE.giving_up(frozenset(kind for _, kind in KINDS.values())) == []


def at(*knobs: object) -> int:
    """The position of a candidate by its values."""
    return next(i for i, item in enumerate(ITEMS) if tuple(item.configuration.knobs.values()) == knobs)


KEPT, RIVAL = at(4, None, True), at(4, 16384, True)


def after_finals(kept: Sequence[float], rival: Sequence[float]) -> History:
    """The finals are won by `KEPT`; a rival that gives something up has been launched against it so often."""
    rows = [(Role.BASELINE, 0, 0.0), (Role.SEARCH, RIVAL, 0.6)]
    rows += [(Role.FINAL, p, score) for p, scores in ((KEPT, kept), (RIVAL, rival)) for score in scores]
    entries = [Entry(n, role, p, score, violations={}) for n, (role, p, score) in enumerate(rows)]
    return History(make_spec(), NODE, tuple(entries))


def test_what_pays_is_shown_beyond_noise() -> None:
    clear = after_finals([0.40, 0.41, 0.39], [0.50, 0.51, 0.49])
    assert promises.paying(clear, KEPT) == RIVAL
    noisy = after_finals([0.40, 0.60, 0.20], [0.50, 0.70, 0.30])
    assert promises.paying(noisy, KEPT) is None
    assert promises.paying(after_finals([0.40, 0.41, 0.39], [0.50, 0.51]), KEPT) is None, "two launches are too few"


def test_a_contest_is_begun_only_where_it_can_be_ended() -> None:
    history = after_finals([0.40, 0.41], [])
    model = model_of(Kernels(Encoding(NODE)), history)
    assert promises.next_of_contest(history, model, KEPT, 4) == RIVAL
    assert promises.next_of_contest(history, model, KEPT, 3) is None


def test_a_baseline_that_gives_something_up_has_no_price() -> None:
    own = replace(NODE, baseline=RIVAL)
    found = promises.prices(History(make_spec(), own, ()))
    assert found[RIVAL] == 0
    assert found[at(2, 16384, True)] == pytest.approx(math.log(1.03))


def test_a_simple_command_that_gives_something_up_takes_no_baseline_s_place() -> None:
    """It has fewer settings than the baseline, and its finals tell neither from the other."""
    base, simple = at(4, None, False), at(1, 16384, True)
    rows = [(Role.BASELINE, base), (Role.SEARCH, simple), *((Role.FINAL, p) for p in (simple, base, base, simple))]
    entries = [Entry(n, role, p, 0.01 * (-1) ** (n // 2), violations={}) for n, (role, p) in enumerate(rows)]
    for broken, winner in ((NODE.given_up, base), ({}, simple)):
        node_ = replace(NODE, baseline=base, given_up=broken)
        assert judge(History(make_spec(launches=len(rows)), node_, tuple(entries))).winner == winner
