"""What nodes do to scores, in the course of a study, and that no comparison relies on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_landscapes import make_spec, small

from autotune.metrics.formulas import Slo
from autotune.search.acquisition import observations
from autotune.search.decide.estimate import Spread
from autotune.search.decide.verdict import judge
from autotune.search.history import Entry, History
from autotune.search.nodes import Effect, additive_spread, contrast, effects
from autotune.search.repeats import challengers
from autotune.study.recommendation import Verdict
from autotune.trial import Role

SMALL = small()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("abc"), st.floats(-1, 1)), min_size=1, max_size=12),
    shift=st.tuples(*[st.floats(-2, 2)] * 3),
)
def test_what_a_node_does_to_all_launches_changes_no_comparison(
    rows: list[tuple[str, str, float]], shift: tuple[float, float, float]
) -> None:
    moved = [(what, node, score + shift["abc".index(node)]) for what, node, score in rows]
    one, two = additive_spread(rows), additive_spread(moved)
    assert (one.degrees, one.sd) == (two.degrees, pytest.approx(two.sd, abs=1e-7))
    parts = [[[(n, s) for w, n, s in found if w == name] for name in "xy"] for found in (rows, moved)]
    (x, y), (x2, y2) = parts
    if {n for n, _ in x} & {n for n, _ in y}:
        assert contrast(x, y) == pytest.approx(contrast(x2, y2), abs=1e-9)


def test_on_one_node_comparisons_are_the_plain_ones() -> None:
    x, y = [("", 0.1), ("", 0.4)], [("", 0.2), ("", 0.0), ("", 0.1)]
    assert contrast(x, y) == (pytest.approx(0.15), pytest.approx(1 / (1 / 2 + 1 / 3)))
    rows = [("x", n, s) for n, s in x] + [("y", n, s) for n, s in y]
    assert additive_spread(rows).sd == pytest.approx(Spread.pooled([[s for _, s in x], [s for _, s in y]]).sd)
    assert contrast([("a", 0.3)], [("b", 0.1)]) == (pytest.approx(0.2), 0.0), "never together: no information"


def known(*rows: tuple[str, float], every: int = 1) -> dict[str, Effect]:
    """Of nodes and the baseline's scores there, the launches so far apart."""
    return effects(tuple(("x", node, every * i, score) for i, (node, score) in enumerate(rows)))


def test_noise_is_no_offset_and_a_slow_node_is_one() -> None:
    first = (("a", 0.0), ("b", 0.03), ("c", -0.02))
    alike = known(*first, ("d", -0.04))
    assert max(abs(e.now.offset) for e in alike.values()) < 0.01
    assert not any(e.now.certain or e.suspicious for e in alike.values())
    once = known(*first, ("d", -0.22))
    assert once["d"].suspicious
    assert once["d"].now.offset < -0.15
    again = known(*first, ("d", -0.22), ("d", -0.21), ("d", -0.23))
    assert again["d"].now.certain
    assert again["d"].changed is None
    assert again["d"].now.offset == pytest.approx(-0.22, abs=0.02)
    assert again["d"].stages[0].offset == pytest.approx(-0.22, abs=0.02)
    assert not any(again[n].now.certain for n in "abc")


STEADY = (("a", 0.01), ("b", 0.0), ("c", -0.02), ("d", 0.01))


def test_a_node_that_slows_in_the_middle_is_told_from_one_that_always_was() -> None:
    """Of d's launches 30, 50, 60 and 70 the last three are slow: it changed between 30 and 50."""
    found = known(*STEADY[:3], STEADY[3], ("b", 0.02), ("d", -0.21), ("d", -0.22), ("a", -0.01), every=10)
    slow = found["d"]
    assert slow.changed is not None
    assert (slow.changed.before, slow.changed.after) == (30, 50)
    assert abs(slow.at(7).offset) < 0.01, "its early launches are left as they are"
    assert slow.says(30)
    assert slow.at(77).offset == pytest.approx(-0.22, abs=0.02)
    assert slow.now.certain
    halfway = slow.at(40)
    assert halfway.offset == pytest.approx(-0.11, abs=0.02)
    assert halfway.sd == pytest.approx(0.11, abs=0.02), "it may have been either"
    assert not slow.says(40)
    assert [slow.place("d", n) for n in (30, 40, 50)] == ["d before", "d at launch 40", "d"]
    assert not any(found[n].changed or found[n].now.certain for n in "abc")


def test_what_is_all_but_impossible_is_no_change() -> None:
    """Tail latencies may be hundreds of times as long: the odds of all else are below the smallest number."""
    far = known(*[(node, -6.0 * (node == "a") + 0.01 * (i % 2)) for i in range(10) for node in "abc"])
    assert [e.now.slow for e in far.values()] == [True, False, False]
    assert [e.changed for e in far.values()] == [None, None, None]


def test_a_node_that_recovers_is_like_the_others_again() -> None:
    found = known(*STEADY[:3], ("d", -0.21), ("d", -0.22), ("d", -0.2), ("d", 0.0), ("d", 0.01), ("a", 0.0))
    assert found["d"].changed is not None
    assert not found["d"].now.certain
    assert abs(found["d"].now.offset) < 0.01
    assert not found["d"].says(3)
    assert found["d"].says(6)


def test_a_change_of_all_nodes_is_none_of_theirs() -> None:
    """Two nodes are seen to be slower; the others were not looked at since."""
    both = known(*STEADY, ("d", -0.2), ("d", -0.21), ("a", -0.19), ("a", -0.2))
    assert not any(effect.changed or effect.now.certain for effect in both.values())
    once = known(*STEADY, ("d", -0.2), ("d", -0.21))
    assert not once["d"].now.certain, "nobody knows what the others are like now"
    assert once["d"].suspicious


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("xy"), st.sampled_from("abc"), st.integers(1, 5), st.floats(-0.3, 0.3)),
        min_size=2,
        max_size=9,
    ),
    means=st.tuples(st.floats(-2, 2), st.floats(-2, 2)),
)
def test_configurations_names_and_the_course_of_time_do_not_matter(
    rows: list[tuple[str, str, int, float]], means: tuple[float, float]
) -> None:
    """Only differences on nodes count; read backwards a node that slows is one that recovers."""
    numbers = np.cumsum([gap for _, _, gap, _ in rows]).tolist()
    # No two equal: whether an effect of nothing is slower or faster would be up to rounding.
    told = [(row[0], row[1], k, row[3] + 0.01 * math.sin(k)) for row, k in zip(rows, numbers, strict=True)]
    found = effects(tuple(told))
    for effect in found.values():
        assert all(0 <= stage.odds <= 1 and stage.sd >= 0 for stage in effect.stages)
        between = effect.at(effect.numbers[0] + 1)
        assert min(s.odds for s in effect.stages) <= between.odds + 1e-9
    moved = effects(tuple((w, "cab"["abc".index(n)], k, s + means["xy".index(w)]) for w, n, k, s in told))
    back = effects(tuple((w, n, 100 - k, s) for w, n, k, s in reversed(told)))
    for name, effect in found.items():
        offsets = [stage.offset for stage in effect.stages]
        assert offsets == pytest.approx([s.offset for s in moved["cab"["abc".index(name)]].stages], abs=1e-6)
        assert offsets == pytest.approx([s.offset for s in back[name].stages[::-1]], abs=1e-6)


def test_a_node_that_changes_between_the_two_of_a_pair_compares_nothing() -> None:
    """It slows by a fifth after the finalist ran: without that the finalist would seem 20 % better there."""
    rows = [(Role.BASELINE, 0, n, s) for n, s in STEADY]
    rows += [(Role.SEARCH, 1, "a", 0.0), (Role.FINAL, 1, "d", 0.01), (Role.FINAL, 0, "d", -0.22)]
    pairs = {"a": (0.02, 0.0), "b": (-0.01, 0.02), "c": (0.01, -0.01)}
    rows += [(Role.FINAL, p, n, s) for n, both in pairs.items() for p, s in zip((1, 0), both, strict=True)]
    rows += [(Role.FINAL, 0, "d", -0.21), (Role.FINAL, 1, "d", -0.2)]
    history = placed(rows)
    assert history.off == {"d"}
    assert history.closed == {"d before"}
    judgement = judge(history)
    assert judgement.gain is not None
    assert judgement.challenger_gain is not None
    assert judgement.challenger_gain.log == pytest.approx(0.01, abs=0.01)
    assert judgement.spread.sd < 0.03
    assert judgement.verdict is Verdict.INDISTINGUISHABLE


def test_a_limit_that_only_a_slow_node_breaks_costs_the_search_no_candidate() -> None:
    rows = [(Role.BASELINE, 0, n, s) for n, s in [*STEADY[:3], ("d", -0.22), ("d", -0.21), ("d", -0.23)]]
    rows += [(Role.SEARCH, 1, "d", 0.0), (Role.SEARCH, 2, "d", 0.0), (Role.SEARCH, 3, "a", 0.0)]
    beyond = dict.fromkeys(range(6), -1.0) | {4: 0.9, 6: 0.9, 7: 2.5, 8: 0.9}
    limit = Slo.parse("mean_tpot_ms<=8")
    history = placed(rows, {k: {str(limit): v} for k, v in beyond.items()})
    history = replace(history, spec=make_spec(slos=(limit,)))
    assert history.feasible(0), "the baseline breaks it on the slow node alone"
    assert challengers(history) == [1], "2 is beyond what the node explains, 3 ran on another"
    seen = observations(history.adjusted())
    assert [ok for (p, _), ok in zip(seen.measured, seen.feasible, strict=True) if p] == [True, False, False]
    judgement = judge(history)
    assert judgement.winner == 0, "no launch shows that it keeps the limit"
    assert judgement.challenger is None


def test_a_pair_that_was_torn_apart_compares_nothing() -> None:
    rows = [(Role.BASELINE, 0, "a", 0.0), (Role.BASELINE, 0, "b", -0.3), (Role.SEARCH, 1, "a", 0.0)]
    rows += [(Role.FINAL, 1, "a", 0.01), (Role.FINAL, 0, "b", -0.31)]
    history = placed(rows)
    judgement = judge(history)
    assert judgement.gain is not None
    assert judgement.challenger_gain is not None
    assert judgement.challenger_gain.log == pytest.approx(0.01, abs=1e-9), "against the baseline on node a alone"


def placed(rows: Sequence[tuple[Role, int, str, float]], beyond: Mapping[int, Mapping[str, float]] = {}) -> History:
    entries = [Entry(i, role, p, s, violations=beyond.get(i, {}), node=n) for i, (role, p, n, s) in enumerate(rows)]
    return History(make_spec(launches=20), SMALL, tuple(entries))
