"""Settings that are not shown to add anything leave the command, and those that are shown to
stay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.tuner.search.decide.simplify import (
    ablations,
    drop_unlikely,
    drop_unproven,
    gains_of_settings,
    next_without,
    subsets_towards_default,
)
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels, one_thread
from autotune.tuner.search.gp.posterior import THOROUGH, Posterior
from autotune.tuner.search.history import History
from autotune.tuner.trial import Role
from tests.tuner.search.search_landscapes import make_spec

KNOBS = ("big", "some", "idle", "still")
ITEMS = tuple(
    Candidate(Configuration("b", dict(zip(KNOBS, row, strict=True))), "1")
    for row in itertools.product((False, True), repeat=len(KNOBS))
)
NODE = CandidateSet(ITEMS, 0, (0,))
LEADER = len(NODE) - 1
KERNELS = Kernels(Encoding(NODE))
WORTH = {"big": 0.2, "some": 0.1, "idle": 0.0, "still": 0.0}
"""What each setting adds: two do nothing."""


def position(*on: str) -> int:
    return next(
        i
        for i, item in enumerate(ITEMS)
        if {k for k, v in item.configuration.knobs.items() if v} == set(on)
    )


def truth(at: int, worth: Mapping[str, float] = WORTH) -> float:
    return math.fsum(worth[name] for name, on in ITEMS[at].configuration.knobs.items() if on)


class Search:
    """A study's launches so far, over a node where every launch has its noise."""

    explain = "model"

    def __init__(self, seed: int, noise: float, worth: Mapping[str, float] = WORTH) -> None:
        self._rng, self._noise, self._worth = np.random.default_rng(seed), noise, worth
        self.entries: list[Entry] = []

    def launch(self, at: int, *, broke: bool = False, role: Role = Role.SEARCH) -> None:
        role = role if self.entries else Role.BASELINE
        score = (
            None if broke else truth(at, self._worth) + self._noise * self._rng.standard_normal()
        )
        self.entries.append(Entry(len(self.entries), role, at, score, violations={}, broke=broke))

    @property
    def history(self) -> History:
        return History(make_spec(explain=self.explain), NODE, tuple(self.entries))

    @property
    def model(self) -> Posterior:
        ran = [e for e in self.entries if e.score is not None]
        scores = [e.score or 0.0 for e in ran]
        return Posterior(KERNELS, [e.position for e in ran], scores, effort=THOROUGH)


def searched(seed: int, noise: float, worth: Mapping[str, float] = WORTH) -> Search:
    """A study that has launched the baseline, the leader, and half of the rest."""
    search = Search(seed, noise, worth)
    others = np.random.default_rng(seed).permutation(np.arange(1, LEADER))[:7]
    for at in (0, LEADER, *others.tolist()):
        search.launch(at)
    return search


def test_fresh_launches_after_the_finals_show_what_rode_on_luck() -> None:
    """All of the leader looked good in the search; its fresh launches say what of it stays: what
    they expect to add 0.5 %, so a setting without an effect may be kept by luck."""
    ends = []
    for seed in range(8):
        search = searched(seed, 0.01)
        for at in (LEADER, 0) * 3:
            search.launch(at, role=Role.FINAL)
        winner = LEADER
        with one_thread():
            while (shorter := next_without(search.history, search.model, winner)) is not None:
                search.launch(shorter, role=Role.FINAL)
                winner = drop_unproven(search.history, LEADER)
        ends.append(ITEMS[winner].configuration.knobs)
    assert all(knobs["big"] and knobs["some"] for knobs in ends)
    assert sum(bool(knobs["idle"]) + bool(knobs["still"]) for knobs in ends) <= 6, "of 16"


@pytest.mark.parametrize(
    ("explain", "measured"), [("model", set[str]()), ("measured", {"big", "some"})]
)
def test_a_setting_that_nobody_doubts_has_a_launch_without_it_on_request_alone(
    explain: str, measured: set[str]
) -> None:
    search, ends = Search(0, 0.003), position("big", "some")
    search.explain = explain
    for at in (0, ends, position("big"), position("some")) * 3:
        search.launch(at)
    for at in (ends, 0) * 3:
        search.launch(at, role=Role.FINAL)
    before = len(search.entries)
    with one_thread():
        assert (
            min(
                gain.odds(0.005)
                for gain in gains_of_settings(search.history, search.model, ends).values()
            )
            > 0.9
        )
        while (shorter := next_without(search.history, search.model, ends)) is not None:
            search.launch(shorter, role=Role.FINAL)
    launched = [ITEMS[e.position].configuration.knobs for e in search.entries[before:]]
    assert sorted(
        name for knobs in launched for name in ("big", "some") if not knobs[name]
    ) == sorted(measured)


@pytest.mark.parametrize(
    ("worth", "leaves"), [(WORTH, True), ({**WORTH, "big": 0.0, "some": 0.0}, False)]
)
def test_a_setting_leaves_after_the_finals_only_by_fresh_launches_and_where_the_rest_beats_the_baseline(
    worth: Mapping[str, float], leaves: bool
) -> None:
    search, shorter = Search(0, 0.003, worth), position("big", "some", "idle")
    for at in (0, 0, LEADER, LEADER, LEADER, shorter):
        search.launch(at, role=Role.FINAL)
    assert drop_unproven(search.history, LEADER) == LEADER, "once is not enough"
    search.launch(shorter, role=Role.FINAL)
    assert drop_unproven(search.history, LEADER) == (shorter if leaves else LEADER)


def test_a_plain_command_has_no_setting_that_is_unlikely_to_help() -> None:
    """Launched or not: after so few launches most of these commands never were."""
    never = 0
    for seed in range(6):
        search = searched(seed, 0.03)
        with one_thread():
            found = drop_unlikely(search.history, search.model, LEADER, lambda _: True)
            gains = gains_of_settings(search.history, search.model, found).values()
        assert all(gain.mean >= 0.005 and gain.odds(0.005) >= 0.5 for gain in gains)
        assert ITEMS[found].configuration.knobs["big"]
        never += not search.history.at(found)
    assert never > 0


def test_a_plain_command_keeps_what_it_would_not_run_without() -> None:
    search = searched(0, 0.003)

    def likely(at: int) -> bool:
        return bool(ITEMS[at].configuration.knobs["idle"])

    with one_thread():
        assert drop_unlikely(search.history, search.model, LEADER, lambda _: False) == LEADER
        assert drop_unlikely(search.history, search.model, LEADER, lambda _: True) == position(
            "big", "some"
        )
        assert drop_unlikely(search.history, search.model, LEADER, likely) == position(
            "big", "some", "idle"
        )
        table = replace(search.history, candidates=replace(NODE, as_they_are=True))
        assert drop_unlikely(table, search.model, LEADER, lambda _: True) == LEADER


@pytest.mark.parametrize(
    "of", [lambda c: c, lambda c: CandidateSet(c.items[:9] + c.items[10:], 0, (0,))]
)
def test_steps_back_are_every_candidate_between_leader_and_default(
    of: Callable[[CandidateSet], CandidateSet],
) -> None:
    """Found by looking subsets up where there are few, by going through the candidates where there
    are few of those."""
    candidates = of(NODE)
    leader = len(candidates) - 1
    found = subsets_towards_default(candidates, leader)
    mine = candidates.items[leader].configuration.knobs
    assert found.keys() == set(range(leader))
    for at, back in found.items():
        assert back == {
            n for n, v in candidates.items[at].configuration.knobs.items() if v != mine[n]
        }
    assert {knob for back in ablations(candidates, leader).values() for knob in back} == set(KNOBS)
