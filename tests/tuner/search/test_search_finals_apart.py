"""Finals that send other prompts than the search: what is said of the winner does not depend on how
heavy these are."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.enumeration import CandidateSet
from autotune.tuner.search.acquisition import Suggestion
from autotune.tuner.search.decide.finals import is_far_below, next_control_node
from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels
from autotune.tuner.search.history import History
from autotune.tuner.search.plan import Plan, Step
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.study.recommendation import Verdict
from autotune.tuner.trial import Role
from tests.tuner.search.search_landscapes import make_spec, small

PAIR = CandidateSet(small().items[:2], 0)
KERNELS = Kernels(Encoding(PAIR))


class OneChallenger(CandidateSampler):
    """Suggests the candidate beside the baseline, once."""

    def suggest(self, history: History) -> Suggestion | None:
        return None if history.spent(1) else Suggestion(1, None)


def played(level: float, seed: int, gain: float = 0.1, launches: int = 16) -> History:
    """A whole study whose finals' scores are all higher by `level`, as their prompts are other
    ones."""
    rng, plan = np.random.default_rng(seed), Plan(KERNELS, OneChallenger(KERNELS))
    history = History(make_spec(launches=launches, divided=True), PAIR, ())
    while isinstance(step := plan.next(history), Step):
        apart = step.role is Role.FINAL
        score = gain * (step.position == 1) + 0.02 * rng.standard_normal() + level * apart
        entry = Entry(
            len(history), step.role, step.position, score, violations={}, sent_finals_prompts=apart
        )
        history = History(history.spec, PAIR, (*history.entries, entry))
    return history


@settings(max_examples=8, deadline=None)
@given(level=st.floats(-1.0, 1.0), seed=st.integers(0, 50))
def test_how_heavy_the_finals_prompts_are_changes_nothing(level: float, seed: int) -> None:
    plain, other = played(0.0, seed), played(level, seed)
    assert [(e.role, e.position) for e in plain] == [(e.role, e.position) for e in other]
    ours, theirs = judge(plain), judge(other)
    assert (ours.verdict, ours.change) == (theirs.verdict, theirs.change)
    both = [
        gain for gain in (ours.gain, theirs.gain) if gain is not None and gain.interval is not None
    ]
    assert both[1].log == pytest.approx(both[0].log)
    assert both[1].interval == pytest.approx(both[0].interval, abs=1e-6)
    assert other.spread.sd == pytest.approx(plain.spread.sd)
    # What the model is told is on one level, so that it takes the finals' prompts for no property
    # of a command.
    assert [s for _, s in other.measured_scores] == pytest.approx(
        [s for _, s in plain.measured_scores]
    )


@pytest.mark.parametrize(
    ("launches", "score", "gone"),
    [(16, 0.3, True), (16, 0.5, False), (6, 0.3, False)],
)
@pytest.mark.parametrize("level", [-0.4, 0.0, 0.4])
def test_a_finalist_far_below_what_the_search_launched_makes_room_for_it(
    launches: int, score: float, gone: bool, level: float
) -> None:
    """It was never launched before: a command without settings that were not expected to help."""
    three = CandidateSet(small().items[:3], 0)
    rows = [(Role.BASELINE, 0, 0.0), (Role.SEARCH, 1, 0.6), (Role.SEARCH, 1, 0.61)]
    rows += [(Role.FINAL, 2, score + level), (Role.FINAL, 0, level)]
    entries = [
        Entry(n, role, at, value, violations={}, sent_finals_prompts=role is Role.FINAL)
        for n, (role, at, value) in enumerate(rows)
    ]
    spec = make_spec(launches=launches, divided=True)
    assert not is_far_below(History(spec, three, tuple(entries[:4])), 2), "without the baseline"
    assert is_far_below(History(spec, three, tuple(entries)), 2) is gone
    lucky = [replace(e, position=2) if e.position == 1 else e for e in entries]
    assert not is_far_below(History(spec, three, tuple(lucky)), 2), "its own lucky launch"


def test_a_gain_that_only_the_search_s_prompts_gave_is_not_recommended() -> None:
    history = History(make_spec(launches=16, divided=True), PAIR, ())
    plan = Plan(KERNELS, OneChallenger(KERNELS))
    while isinstance(step := plan.next(history), Step):
        apart = step.role is Role.FINAL
        score = 0.0 if apart else 0.2 * (step.position == 1) - 0.5
        score += 0.01 * math.sin(7 * len(history))
        entry = Entry(
            len(history), step.role, step.position, score, violations={}, sent_finals_prompts=apart
        )
        history = History(history.spec, PAIR, (*history.entries, entry))
    assert judge(history).verdict is Verdict.INDISTINGUISHABLE


def test_the_baseline_is_not_launched_for_finals_before_they_begin() -> None:
    """What it sends then is the search's; where prompts are drawn that is as good."""
    entries = tuple(Entry(i, Role.BASELINE, 0, 0.0, node=f"n{i}") for i in range(2))
    drawn, divided = (
        History(make_spec(divided=divided), PAIR, entries) for divided in (False, True)
    )
    assert next_control_node(drawn, ["n0", "n1"]) == "n0"
    assert next_control_node(divided, ["n0", "n1"]) is None
