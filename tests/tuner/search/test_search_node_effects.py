"""What nodes do to scores, and that no comparison relies on it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.tuner.search.decide import finals
from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels
from autotune.tuner.search.history import History
from autotune.tuner.search.nodes import additive_spread, contrast, node_offsets
from autotune.tuner.search.plan import Plan, Step, Wait
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.search.spread import Spread
from autotune.tuner.trial import Role
from tests.tuner.search.search_landscapes import make_spec, small

SMALL = small()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("xy"), st.sampled_from("abc"), st.floats(-1, 1)),
        min_size=1,
        max_size=12,
    ),
    shift=st.tuples(*[st.floats(-2, 2)] * 3),
)
def test_what_a_node_does_to_all_launches_changes_no_comparison(
    rows: list[tuple[str, str, float]], shift: tuple[float, float, float]
) -> None:
    moved = [(what, node, score + shift["abc".index(node)]) for what, node, score in rows]
    one, two = additive_spread(rows), additive_spread(moved)
    assert (one.degrees, one.sd) == (two.degrees, pytest.approx(two.sd, abs=1e-7))
    parts = [
        [[(n, s) for w, n, s in found if w == name] for name in "xy"] for found in (rows, moved)
    ]
    (x, y), (x2, y2) = parts
    if {n for n, _ in x} & {n for n, _ in y}:
        assert contrast(x, y) == pytest.approx(contrast(x2, y2), abs=1e-9)


def test_on_one_node_comparisons_are_the_plain_ones() -> None:
    x, y = [("", 0.1), ("", 0.4)], [("", 0.2), ("", 0.0), ("", 0.1)]
    assert contrast(x, y) == (pytest.approx(0.15), pytest.approx(1 / (1 / 2 + 1 / 3)))
    rows = [("x", n, s) for n, s in x] + [("y", n, s) for n, s in y]
    assert additive_spread(rows).sd == pytest.approx(
        Spread.pooled([[s for _, s in x], [s for _, s in y]]).sd
    )
    assert contrast([("a", 0.3)], [("b", 0.1)]) == (pytest.approx(0.2), 0.0), (
        "never together: no information"
    )


def offsets(**scores: Sequence[float]) -> dict[str, float]:
    return {node: round(found.offset, 3) for node, found in node_offsets(scores).items()}


def test_noise_is_no_offset_and_a_slow_node_is_one() -> None:
    assert not any(offsets(a=[0.0], b=[0.03], c=[-0.02], d=[-0.04]).values())
    once = node_offsets({"a": [0.0], "b": [0.03], "c": [-0.02], "d": [-0.22]})
    assert once["d"].offset == pytest.approx(-0.22)
    assert once["d"].doubtful
    assert not once["d"].off, "one launch is not enough to leave a node out"
    again = node_offsets({"a": [0.0], "b": [0.03], "c": [-0.02], "d": [-0.22, -0.23]})
    assert again["d"].off
    assert not any(again[node].offset for node in "abc")
    assert offsets(a=[0.0, 0.01], b=[-0.2, -0.21]) == {"a": 0.0, "b": -0.21}, (
        "of two nodes the slower one"
    )
    assert offsets(a=[-0.2]) == {"a": 0.0}


def test_a_noisy_cluster_has_no_slow_node() -> None:
    rng = np.random.default_rng(0)
    studies = [
        {node: (0.1 * rng.standard_normal(2)).tolist() for node in "abcd"} for _ in range(300)
    ]
    assert sum(any(found.off for found in node_offsets(scores).values()) for scores in studies) <= 9
    spread = offsets(a=[0.04, 0.05], b=[-0.04, -0.05], c=[0.02, 0.03], d=[-0.03, -0.02])
    assert not any(spread.values()), "where all differ none is off"


@settings(max_examples=50, deadline=None)
@given(
    rows=st.dictionaries(
        st.sampled_from("abcd"),
        st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=4),
        min_size=2,
        max_size=4,
    ),
    shift=st.floats(-2, 2),
)
def test_a_shift_of_all_nodes_and_their_names_do_not_matter(
    rows: dict[str, list[float]], shift: float
) -> None:
    found = node_offsets(rows)
    moved = node_offsets(
        {node.upper(): [score + shift for score in scores] for node, scores in rows.items()}
    )
    assert found.keys() == rows.keys()
    for node, offset in found.items():
        assert (
            moved[node.upper()].offset == pytest.approx(offset.offset, abs=1e-6)
            or abs(offset.offset) > 0.1
        )


def test_the_search_takes_scores_less_the_offset_and_launches_nothing_more_on_a_slow_node() -> None:
    rows = [
        (Role.BASELINE, 0, n, s) for n, s in (("a", 0.0), ("b", 0.01), ("c", -0.01), ("d", -0.22))
    ]
    once = placed([*rows, (Role.SEARCH, 1, "d", 0.0), (Role.SEARCH, 2, "a", 0.0)])
    assert [round(e.score, 2) for e in once.adjusted() if e.score is not None] == [
        0.0,
        0.01,
        -0.01,
        0.0,
        0.22,
        0.0,
    ]
    assert finals.next_node(once, ["a", "d"]) == "d"
    assert not once.off_nodes
    sure = placed([*rows, (Role.CONTROL, 0, "d", -0.21)])
    assert sure.off_nodes == sure.adjusted().off_nodes == {"d"}
    kernels = Kernels(Encoding(SMALL))
    plan = Plan(kernels, CandidateSampler(kernels, seed=0))
    step = plan.next(sure, ["a"])
    assert isinstance(step, Step)
    assert step.role is not Role.CONTROL
    running = replace(
        sure, entries=(*sure.entries, Entry(5, Role.SEARCH, 2, pending=True, node="a"))
    )
    assert plan.next(running, ["d"]) == Wait(), "the others will have room"
    assert isinstance(plan.next(sure, ["d"]), Step), "where it is the only one left, it must do"


def test_a_pair_that_was_torn_apart_compares_nothing() -> None:
    rows = [(Role.BASELINE, 0, "a", 0.0), (Role.BASELINE, 0, "b", -0.3), (Role.SEARCH, 1, "a", 0.0)]
    rows += [(Role.FINAL, 1, "a", 0.01), (Role.FINAL, 0, "b", -0.31)]
    history = placed(rows)
    judgement = judge(history)
    assert judgement.gain is not None
    assert judgement.challenger_gain is not None
    assert judgement.challenger_gain.log == pytest.approx(0.01, abs=1e-9), (
        "against the baseline on node a alone"
    )


def placed(rows: Sequence[tuple[Role, int, str, float]]) -> History:
    entries = [
        Entry(i, role, p, s, violations={}, node=n) for i, (role, p, n, s) in enumerate(rows)
    ]
    return History(make_spec(launches=20), SMALL, tuple(entries))
