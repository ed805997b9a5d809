"""Candidates that are near the best launched ones only: they are found, kept, and found again."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.engines.command import Configuration, Scalar
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.tuner.recommend import recommend
from tests.tuner.search.search_landscapes import decisions, make_spec, opened, play, ridge, small

SWITCHES = {f"switch_{number}": (False, True) for number in range(6)}
PLAIN = small()


@dataclass(frozen=True)
class Switches:
    """Six switches beside the 24 configurations: a product would be 64 times as large."""

    switches: frozenset[str] = frozenset(SWITCHES)

    def around(self, one: Configuration) -> Sequence[Configuration]:
        found = []
        for number in (1, 2):
            for names in combinations(sorted(self.switches), number):
                flipped: dict[str, Scalar] = {name: not one.knobs[name] for name in names}
                found.append(one.with_knobs(**flipped))
        return found

    def extended(self, candidates: CandidateSet, more: Sequence[Configuration]) -> CandidateSet:
        known = [
            one for one in more if {k for k, v in one.knobs.items() if v is True} <= self.switches
        ]
        items = [*candidates.items, *(Candidate(one, "0.11") for one in known)]
        return replace(candidates, items=items)


def switched(growth: Switches | None = None) -> CandidateSet:
    off = dict.fromkeys(SWITCHES, False)
    items = [Candidate(one.configuration.with_knobs(**off), "0.11") for one in PLAIN.items]
    return replace(PLAIN, items=items, growth=growth)


def hidden(configuration: Configuration) -> float:
    return ridge(configuration) * (1.1 if configuration.knobs["switch_4"] else 1.0)


SPEC = make_spec(launches=24, noise=0.02, seed=3)


def study(folder: Path, candidates: CandidateSet, at_most: int = 100) -> list[str]:
    one = opened(folder, SPEC, candidates)
    launches = play(one, SPEC, hidden, at_most)
    one.close()
    return decisions(launches)


def test_a_gain_of_a_switch_beside_the_candidates_is_found(tmp_path: Path) -> None:
    candidates = switched(Switches())
    one = opened(tmp_path, SPEC, candidates)
    launches = play(one, SPEC, hidden)
    explained = one.explanation(lambda _: [])
    found = recommend(SPEC, candidates, launches, (), one.stop_reason, explained)
    one.close()
    assert found.recommended is not None
    assert found.recommended.config["switch_4"] is True
    assert {row.knob for row in found.not_tried}.isdisjoint({"switch_4"})
    assert len(candidates) == len(PLAIN), "what is beside them does not multiply the candidates"


def test_values_that_no_launch_had_are_named_with_what_is_expected_of_them(tmp_path: Path) -> None:
    spec = make_spec(launches=4, noise=0.02, seed=3)
    one = opened(tmp_path, spec, switched(Switches()))
    play(one, spec, hidden)
    rows = one.explanation(lambda _: []).not_tried
    one.close()
    expected = [row.expected_percent for row in rows]
    assert {"switch_0", "switch_4"} & {row.knob for row in rows}
    assert expected == sorted(expected, reverse=True)
    assert min(expected) >= 0.0


@pytest.mark.parametrize("killed_after", [7])
def test_a_study_that_was_killed_goes_on_as_if_it_had_not_been(
    tmp_path: Path, killed_after: int
) -> None:
    whole = study(tmp_path / "whole", switched(Switches()))
    study(tmp_path / "cut", switched(Switches()), killed_after)
    assert study(tmp_path / "cut", switched(Switches())) == whole
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    (tmp_path / "again" / "optuna.journal").unlink()
    assert study(tmp_path / "again", switched(Switches())) == whole


def test_a_launch_that_is_near_nothing_any_more_ends_the_study(tmp_path: Path) -> None:
    study(tmp_path, switched(Switches()))
    with pytest.raises(BadInput, match="no longer a candidate"):
        opened(tmp_path, SPEC, switched(Switches(frozenset({"switch_0"}))))
