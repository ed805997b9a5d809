"""The steps back from a winner: its settings put back, one or several, to where its engine's reference has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.space.candidates import CandidateSet
from autotune.trial import Configuration, Scalar


@dataclass(frozen=True, slots=True)
class Ablation:
    """The winner without some of its settings.

    Attributes:
        position: the candidate to compare the winner with.
        knobs: what is put back; several where one alone gives no candidate.
    """

    position: int
    knobs: tuple[str, ...]


def reference(candidates: CandidateSet, winner: int) -> int | None:
    """The baseline where it has the winner's engine, else this engine's default; None without either."""
    engine = candidates.items[winner].configuration.engine
    named = (candidates.baseline, *candidates.defaults)
    return next((p for p in named if candidates.items[p].configuration.engine == engine), None)


def subsets_towards_default(
    candidates: CandidateSet, winner: int, base: int | None = None
) -> dict[int, frozenset[str]]:
    """Position to what is put back, of every candidate between winner and base; the winner itself is not among them.

    Args:
        base: by default the winner's `reference`; of the same engine.
    """
    base = reference(candidates, winner) if base is None else base
    if base is None or base == winner:
        return {}
    mine, theirs = candidates.items[winner].configuration, candidates.items[base].configuration
    differing = difference(mine, theirs)
    if 2 ** len(differing) <= len(candidates) and mine.knobs.keys() == theirs.knobs.keys():
        return dict(_looked_up(candidates, mine, theirs.knobs, differing))
    between: dict[int, frozenset[str]] = {}
    for position, candidate in enumerate(candidates.items):
        back = _put_back(candidate.configuration, mine, theirs)
        if back:
            between[position] = back
    return between


def ablations(candidates: CandidateSet, winner: int) -> list[Ablation]:
    """One entry per knob in which winner and reference differ, the fewest knobs put back each time.

    Knobs whose smallest step back is the same candidate share an entry; the largest step is the reference
    itself.
    """
    between = subsets_towards_default(candidates, winner)
    found: dict[int, Ablation] = {}
    for knob in sorted({name for back in between.values() for name in back}):
        position = min((len(back), position) for position, back in between.items() if knob in back)[1]
        found.setdefault(position, Ablation(position, tuple(sorted(between[position]))))
    return list(found.values())


def difference(one: Configuration, other: Configuration) -> list[str]:
    """The knobs in which two configurations differ, in alphabetical order."""
    names = {*one.knobs, *other.knobs}
    return sorted(name for name in names if one.knobs.get(name) != other.knobs.get(name))


def _looked_up(
    candidates: CandidateSet, mine: Configuration, theirs: Mapping[str, Scalar], differing: list[str]
) -> Iterator[tuple[int, frozenset[str]]]:
    """The same by trying every subset: there are fewer of them than candidates."""
    for count in range(1, len(differing) + 1):
        for back in itertools.combinations(differing, count):
            found = Configuration(mine.engine, {**mine.knobs, **{name: theirs[name] for name in back}}).fingerprint
            if found in candidates:
                yield candidates.position(found), frozenset(back)


def _put_back(other: Configuration, mine: Configuration, theirs: Configuration) -> frozenset[str] | None:
    """The knobs in which a configuration differs from mine, if it then is like theirs; else None."""
    if other.engine != mine.engine:
        return None
    back = set()
    for name in {**mine.knobs, **other.knobs}:
        value = other.knobs.get(name)
        if value != mine.knobs.get(name):
            if value != theirs.knobs.get(name):
                return None
            back.add(name)
    return frozenset(back)
