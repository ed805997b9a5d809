"""Find candidates that an engine resolves to one configuration.

Two candidates that the engine resolves to the same thing are equivalent: the launches of one are
repeats of the other. A candidate that was launched counts as the one whose fingerprint the engine's
answer has; where that is no candidate, or became something else when it was launched itself, as the
first launched one that the engine resolved alike. A candidate's first answer decides, and all its
launches go together, so that no measurement of a configuration is ever split.

Only what was launched and answered is joined. It depends on the rows alone, not on their order, so
that a study that is resumed joins what the undisturbed one joined.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ..study.recommendation import Resolution
from ..trial import Launch


def canonical_of(
    launches: Iterable[Launch], candidates: Container[str], baseline: str | None = None
) -> dict[str, str]:
    """Map a fingerprint to its canonical one if that differs; candidates are those that may be
    launched.

    The baseline stands for its equivalents whatever the engine made of it, as it is launched as the
    user typed it.
    """
    answers: dict[str, str] = {}
    for launch in sorted(launches, key=lambda row: row.number):
        if launch.result.resolved is not None:
            answers.setdefault(launch.fingerprint, launch.result.resolved.fingerprint)
    ends: dict[str, str] = {}
    first: dict[str, str] = {}
    for asked, answer in answers.items():
        # An answer that became yet another thing when it was asked for itself is no configuration
        # to count for.
        lasting = answer in candidates and answers.get(answer, answer) == answer
        ends[asked] = answer if lasting else first.setdefault(answer, asked)
    ends = {**{end: end for end in ends.values()}, **ends}
    if baseline in ends:
        own = ends[baseline]
        ends = {name: baseline if end == own else end for name, end in ends.items()}
    return {name: end for name, end in ends.items() if name != end}


def differences(launches: Sequence[Launch], joined: dict[str, str]) -> list[Resolution]:
    """Return every difference once, in the order of its first launch; joined is the result of
    `canonical_of`."""

    def canonical(launch: Launch) -> str:
        fingerprint = launch.fingerprint
        return joined.get(fingerprint, fingerprint)

    rows: dict[tuple[str, str, str], list[Launch]] = {}
    for launch in sorted(launches, key=lambda row: row.number):
        resolved = launch.result.resolved
        for knob, note in resolved.notes.items() if resolved else ():
            rows.setdefault((launch.engine, knob, note), []).append(launch)
    found = []
    for (engine, knob, note), group in rows.items():
        resolved = group[0].result.resolved
        asked, got = resolved.differs[knob] if resolved else (None, None)
        numbers = {launch.number for launch in group}
        same = {canonical(launch) for launch in group}
        others = [x.number for x in launches if x.number not in numbers and {canonical(x)} == same]
        found.append(
            Resolution(
                engine=engine,
                knob=knob,
                asked=asked,
                got=got,
                note=note,
                launches=sorted(numbers),
                repeats_of=min(others, default=None),
            )
        )
    return found
