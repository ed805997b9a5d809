"""Find candidates that an engine resolves to one configuration.

Such candidates are equivalent: launches of one are repeats of the other. An engine reports the
configuration to which it has resolved a launched candidate. All launches of that candidate are
attributed to the reported configuration if it is a candidate itself and, once launched, is resolved
to itself; else to the first launched candidate with the same report. The first report of a
candidate decides, so that its launches are never split.

Only launched candidates with a report are joined. The result depends on the rows alone, not on
their order, so a resumed study joins the same candidates as an undisturbed one.
"""

from collections.abc import Container, Iterable, Sequence

from autotune.base import StringDict, by_key

from ..study.recommendation import Resolution
from ..trial import Launch


def canonical_of(
    launches: Iterable[Launch], candidates: Container[str], baseline: str | None = None
) -> StringDict:
    """Map a fingerprint to its canonical one if that differs; candidates are those that may be
    launched.

    The baseline is canonical for its equivalents, whatever the engine resolves it to, because it is
    launched as the user typed it.
    """
    reports = StringDict()
    for launch in sorted(launches, key=lambda row: row.number):
        if launch.result.resolved:
            reports.setdefault(launch.fingerprint, launch.result.resolved.fingerprint)
    canonical, first = StringDict(), StringDict()
    for asked, report in reports.items():
        # Do not join a configuration that is itself resolved to another one.
        stable = report in candidates and reports.get(report, report) == report
        canonical[asked] = report if stable else first.setdefault(report, asked)
    canonical = {**{end: end for end in canonical.values()}, **canonical}
    if baseline in canonical:
        own = canonical[baseline]
        canonical = {name: baseline if end == own else end for name, end in canonical.items()}
    return {name: end for name, end in canonical.items() if name != end}


def differences(launches: Sequence[Launch], joined: StringDict) -> list[Resolution]:
    """Return each difference between asked and resolved settings once, in the order of its first
    launch; `joined` is from `canonical_of`."""
    canonical = {x.number: joined.get(x.fingerprint, x.fingerprint) for x in launches}
    rows = by_key(
        ((launch.engine, knob, note), (launch.number, resolved.differs[knob]))
        for launch in sorted(launches, key=lambda row: row.number)
        if (resolved := launch.result.resolved)
        for knob, note in resolved.notes.items()
    )
    found = []
    for (engine, knob, note), group in rows.items():
        numbers = [number for number, _ in group]
        asked, got = group[0][1]
        same = {canonical[number] for number in numbers}
        others = [n for n, name in canonical.items() if n not in numbers and {name} == same]
        found.append(
            Resolution(
                engine=engine,
                knob=knob,
                asked=asked,
                got=got,
                note=note,
                launches=numbers,
                repeats_of=min(others, default=None),
            )
        )
    return found
