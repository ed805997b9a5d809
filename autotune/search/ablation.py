"""What each knob adds: the winner with one knob put back to where its engine's reference has it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.space.candidates import CandidateSet
from autotune.trial import Configuration


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


def ablations(candidates: CandidateSet, winner: int) -> list[Ablation]:
    """One entry per knob in which winner and reference differ, the fewest knobs put back each time.

    Knobs whose smallest step back is the same candidate share an entry; the largest step is the reference
    itself.
    """
    base = reference(candidates, winner)
    if base is None or base == winner:
        return []
    mine, theirs = candidates.items[winner].configuration, candidates.items[base].configuration
    differing = frozenset(_difference(mine, theirs))
    between: dict[int, frozenset[str]] = {}
    for position, candidate in enumerate(candidates.items):
        back = _put_back(candidate.configuration, mine, theirs)
        if back:
            between[position] = back
    found: dict[int, Ablation] = {}
    for knob in sorted(differing):
        steps = [(len(back), position) for position, back in between.items() if knob in back]
        if steps:
            position = min(steps)[1]
            found.setdefault(position, Ablation(position, tuple(sorted(between[position]))))
    return list(found.values())


def _difference(one: Configuration, other: Configuration) -> list[str]:
    names = {*one.knobs, *other.knobs}
    return [name for name in names if one.knobs.get(name) != other.knobs.get(name)]


def _put_back(other: Configuration, mine: Configuration, theirs: Configuration) -> frozenset[str] | None:
    """The knobs in which a configuration differs from mine, if it then is like theirs; else None."""
    if other.engine != mine.engine:
        return None
    back = _difference(other, mine)
    if any(other.knobs.get(name) != theirs.knobs.get(name) for name in back):
        return None
    return frozenset(back)
