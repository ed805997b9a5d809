"""Settings that do nothing leave the command, and those that are worth something stay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_landscapes import make_spec

from autotune.search.decide.simplify import ablations, expected_loss, next_check, shortened, subsets_towards_default
from autotune.search.gp.encoding import Encoding
from autotune.search.gp.kernels import Kernels, one_thread
from autotune.search.gp.posterior import Posterior
from autotune.search.history import Entry, History
from autotune.space.enumeration import Candidate, CandidateSet
from autotune.trial import Configuration, Role

KNOBS = ("big", "three", "idle", "still")
ITEMS = tuple(
    Candidate(Configuration("b", dict(zip(KNOBS, row, strict=True))), "1")
    for row in itertools.product((False, True), repeat=len(KNOBS))
)
NODE = CandidateSet(ITEMS, 0, (0,))
LEADER = len(NODE) - 1
KERNELS = Kernels(Encoding(NODE))
WORTH = {"big": 0.2, "three": 0.03, "idle": 0.0, "still": 0.0}
"""What each setting adds: two do nothing."""


def position(*on: str) -> int:
    return next(i for i, item in enumerate(ITEMS) if {k for k, v in item.configuration.knobs.items() if v} == set(on))


def truth(at: int, worth: Mapping[str, float] = WORTH) -> float:
    return math.fsum(worth[name] for name, on in ITEMS[at].configuration.knobs.items() if on)


class Search:
    """A study's launches so far, over a node where every launch has its noise."""

    def __init__(self, seed: int, noise: float, worth: Mapping[str, float] = WORTH) -> None:
        self._rng, self._noise, self._worth = np.random.default_rng(seed), noise, worth
        self.entries: list[Entry] = []

    def launch(self, at: int, *, broke: bool = False) -> None:
        role = Role.SEARCH if self.entries else Role.BASELINE
        score = None if broke else truth(at, self._worth) + self._noise * self._rng.standard_normal()
        self.entries.append(Entry(len(self.entries), role, at, score, violations={}, broke=broke))

    @property
    def history(self) -> History:
        return History(make_spec(), NODE, tuple(self.entries))

    @property
    def model(self) -> Posterior:
        ran = [e for e in self.entries if e.score is not None]
        return Posterior(KERNELS, [e.position for e in ran], [e.score or 0.0 for e in ran])

    def shorten(self, checks: int = 3) -> int:
        """Check while that is wanted, then the command that is left."""
        with one_thread():
            for left in range(checks, 0, -1):
                found = next_check(self.history, self.model, LEADER, left)
                if found is None:
                    break
                self.launch(found)
            return shortened(self.history, self.model, LEADER)


def searched(seed: int, noise: float) -> Search:
    """A study that has launched the baseline, the leader, and half of the rest."""
    search = Search(seed, noise)
    others = np.random.default_rng(seed).permutation(np.arange(1, LEADER))[:7]
    for at in (0, LEADER, *others.tolist()):
        search.launch(at)
    return search


def test_idle_settings_leave_and_one_that_is_worth_three_percent_stays() -> None:
    ends = [ITEMS[searched(seed, 0.007).shorten()].configuration.knobs for seed in range(12)]
    assert all(knobs["big"] for knobs in ends)
    assert sum(bool(knobs["three"]) for knobs in ends) >= 11
    idle = sum(bool(knobs["idle"]) + bool(knobs["still"]) for knobs in ends)
    assert idle <= 2, "of 24"


def test_of_what_is_in_doubt_the_shortest_command_is_tried_first() -> None:
    """The rest of the node is known; the two idle settings were never taken away from the leader."""
    search = Search(0, 0.005)
    for at in (0, LEADER, LEADER, position("big", "idle", "still"), position("three", "idle", "still")):
        search.launch(at)
    assert shortened(search.history, search.model, LEADER) == LEADER, "what was never launched cannot be recommended"
    found = next_check(search.history, search.model, LEADER, 1)
    assert found in (position("big", "three"), position("big")), "both idle settings leave together"
    assert next_check(search.history, search.model, LEADER, 0) is None


def test_after_a_check_that_looks_worse_fewer_settings_leave() -> None:
    """One of the two that were thought to be idle is worth 6 %: it stays, the other one leaves."""
    worth = {**WORTH, "still": 0.06}
    first = (0, LEADER, position("big", "idle", "still"), position("three", "idle", "still"), position("big", "three"))
    ends = []
    for seed in range(4):
        search = Search(seed, 0.003, worth)
        for at in first:
            search.launch(at)
        assert shortened(search.history, search.model, LEADER) == LEADER
        ends.append(search.shorten())
    assert ends.count(position("big", "three", "still")) >= 3, "a check has its noise as well"


def test_a_shorter_command_that_failed_is_neither_tried_again_nor_recommended() -> None:
    search = Search(0, 0.003)
    for at in (0, LEADER, position("big", "idle", "still"), position("three", "idle", "still")):
        search.launch(at)
    search.launch(position("big", "three"), broke=True)
    found = next_check(search.history, search.model, LEADER, 3)
    assert found not in (None, position("big", "three"))
    assert search.shorten() != position("big", "three")


def test_an_engines_default_cannot_be_shortened() -> None:
    search = Search(0, 0.01)
    search.launch(0)
    assert next_check(search.history, search.model, 0, 3) is None
    assert shortened(search.history, search.model, 0) == 0


@given(st.floats(-0.5, 0.5), st.floats(1e-4, 0.5))
def test_the_expected_loss_lies_between_the_mean_and_what_chance_adds(mean: float, sd: float) -> None:
    loss = expected_loss(mean, sd)
    assert max(0.0, mean) - 1e-12 <= loss <= max(0.0, mean) + 0.4 * sd
    assert expected_loss(mean, 0.0) == pytest.approx(max(0.0, mean))


@pytest.mark.parametrize("of", [lambda c: c, lambda c: CandidateSet(c.items[:9] + c.items[10:], 0, (0,))])
def test_steps_back_are_every_candidate_between_leader_and_default(of: Callable[[CandidateSet], CandidateSet]) -> None:
    """Found by looking subsets up where there are few, by going through the candidates where there are few of those."""
    candidates = of(NODE)
    leader = len(candidates) - 1
    found = subsets_towards_default(candidates, leader)
    mine = candidates.items[leader].configuration.knobs
    assert found.keys() == set(range(leader))
    for at, back in found.items():
        assert back == {n for n, v in candidates.items[at].configuration.knobs.items() if v != mine[n]}
    assert {knob for back in ablations(candidates, leader).values() for knob in back} == set(KNOBS)
