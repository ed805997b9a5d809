"""Find candidates that an engine resolves to one configuration.

Two candidates that the engine resolves to the same thing are equivalent: the launches of one are repeats of the other.
A candidate that was launched counts as the one whose fingerprint the engine's answer has; where that is no candidate,
or became something else when it was launched itself, as the first launched one that the engine resolved alike. A
candidate's first answer decides, and all its launches go together, so that no measurement of a configuration is ever
split.

Only what was launched and answered is joined. It depends on the rows alone, not on their order, so that a study that
is resumed joins what the undisturbed one joined.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.space.enumeration import CandidateSet
from autotune.study.recommendation import Resolution
from autotune.trial import Configuration, Launch, Scalar


def earlier_names(launches: Iterable[Launch], candidates: CandidateSet) -> dict[str, int]:
    """Map fingerprints of an earlier version to candidates: those without the knobs that its rows do not have.

    A knob that came to an engine's card later was at the engine's default before. Empty where every row is a candidate.
    """
    engines = {
        one.engine: one for launch in launches if (one := launch.trial.configuration).fingerprint not in candidates
    }
    later: dict[str, Mapping[str, Scalar]] = {}
    for engine, earlier in engines.items():
        default = [candidates.items[p].configuration for p in (candidates.baseline, *candidates.defaults)]
        default = [one for one in default if one.engine == engine]
        # Where the default is no candidate a knob that all candidates share is not searched.
        known = default or [item.configuration for item in candidates.items if item.configuration.engine == engine]
        values = {name: {one.knobs[name] for one in known} for name in known[0].knobs} if known else {}
        later[engine] = {n: next(iter(v)) for n, v in values.items() if n not in earlier.knobs and len(v) == 1}
    found: dict[str, int] = {}
    for position, candidate in enumerate(candidates.items):
        new, knobs = later.get(candidate.configuration.engine), candidate.configuration.knobs
        if new and all(knobs[name] == value for name, value in new.items()):
            kept = {name: value for name, value in knobs.items() if name not in new}
            found[Configuration(candidate.configuration.engine, kept).fingerprint] = position
    return found


def renamed(launch: Launch, names: Mapping[str, int], candidates: CandidateSet) -> Launch:
    """A launch of an earlier version with the candidate's configuration; any other as it is."""
    position = names.get(launch.trial.configuration.fingerprint)
    if position is None:
        return launch
    resolved = launch.result.resolved
    if resolved is not None and resolved.fingerprint in names:
        resolved = replace(resolved, fingerprint=candidates.items[names[resolved.fingerprint]].fingerprint)
    trial = replace(launch.trial, configuration=candidates.items[position].configuration)
    return replace(launch, trial=trial, result=replace(launch.result, resolved=resolved))


def canonical_of(launches: Iterable[Launch], candidates: Container[str], baseline: str | None = None) -> dict[str, str]:
    """Map a fingerprint to its canonical one, where that is another.

    Args:
        candidates: the fingerprints of what may be launched.
        baseline: stands for its equivalents whatever the engine made of it, as it is launched as the user typed it.
    """
    answers: dict[str, str] = {}
    for launch in sorted(launches, key=lambda row: row.trial.number):
        if launch.result.resolved is not None:
            answers.setdefault(launch.trial.configuration.fingerprint, launch.result.resolved.fingerprint)
    ends: dict[str, str] = {}
    first: dict[str, str] = {}
    for asked, answer in answers.items():
        # An answer that became yet another thing when it was asked for itself is no configuration to count for.
        lasting = answer in candidates and answers.get(answer, answer) == answer
        ends[asked] = answer if lasting else first.setdefault(answer, asked)
    ends = {**{end: end for end in ends.values()}, **ends}
    if baseline in ends:
        own = ends[baseline]
        ends = {name: baseline if end == own else end for name, end in ends.items()}
    return {name: end for name, end in ends.items() if name != end}


def differences(launches: Sequence[Launch], joined: dict[str, str]) -> list[Resolution]:
    """Every difference once, in the order of the first launch that had it.

    Args:
        joined: as `canonical_of` gives it.
    """

    def canonical(launch: Launch) -> str:
        fingerprint = launch.trial.configuration.fingerprint
        return joined.get(fingerprint, fingerprint)

    rows: dict[tuple[str, str, str], list[Launch]] = {}
    for launch in sorted(launches, key=lambda row: row.trial.number):
        resolved = launch.result.resolved
        for knob, note in resolved.notes.items() if resolved else ():
            rows.setdefault((launch.trial.configuration.engine, knob, note), []).append(launch)
    found = []
    for (engine, knob, note), group in rows.items():
        resolved = group[0].result.resolved
        asked, got = resolved.differs[knob] if resolved else (None, None)
        numbers = {launch.trial.number for launch in group}
        same = {canonical(launch) for launch in group}
        others = [x.trial.number for x in launches if x.trial.number not in numbers and {canonical(x)} == same]
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
