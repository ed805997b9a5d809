"""Files and studies of measurements, read into rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInput, MalformedFile
from autotune.simulator.fit.dstack import DstackResults
from autotune.simulator.fit.formats import Content, Format
from autotune.simulator.fit.own_table import OwnTable
from autotune.simulator.fit.performance_lab import PerformanceLab
from autotune.simulator.fit.rows import LeftOut, MeasuredRow, row_of
from autotune.simulator.fit.studies import study_rows
from autotune.space.library import Library
from autotune.study.home import Home

FORMATS: Sequence[Format] = (PerformanceLab(), DstackResults(), OwnTable())
"""The first that recognises a file reads it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What files and studies gave."""

    rows: tuple[MeasuredRow, ...]
    left_out: tuple[LeftOut, ...]


def read_file(path: Path, library: Library | None = None) -> Reading:
    """The rows of a file of measurements.

    Raises:
        BadInput: it cannot be read, is of no known format, or has a figure that cannot be right (with file and row).
    """
    content = Content(path)
    known = next((one for one in FORMATS if one.recognises(content)), None)
    if known is None:
        understood = "; ".join(f"({n}) {one.description}" for n, one in enumerate(FORMATS, start=1))
        raise MalformedFile(path, f"measurements in no format that is known: {understood}")
    return _sorted(row_of(raw, library or Library()) for raw in known.rows(content))


def read(
    files: Sequence[Path],
    studies: Sequence[str],
    home: Home,
    *,
    allow_unmeasured: bool = False,
    library: Library | None = None,
) -> Reading:
    """The rows of files and studies together; each file and study counts once.

    Raises:
        BadInput: nothing was named, something cannot be read, or no row can be used.
    """
    if not files and not studies:
        raise BadInput("nothing to learn from: name measurements with --data FILE, or a study with --study NAME")
    library = library or Library()
    readings = [read_file(path, library) for path in dict.fromkeys(path.resolve() for path in files)]
    readings += [_sorted(study_rows(home, name, allow_unmeasured)) for name in dict.fromkeys(studies)]
    found = Reading(
        tuple(row for reading in readings for row in reading.rows),
        tuple(one for reading in readings for one in reading.left_out),
    )
    if not any(row.failure is None for row in found.rows):
        first = found.left_out[0] if found.left_out else None
        why = f"; the first of {len(found.left_out)} that were left out, {first.label}: {first.reason}" if first else ""
        raise BadInput(f"no row with measured metrics can be used{why}")
    return found


def _sorted(found: Iterable[MeasuredRow | LeftOut]) -> Reading:
    rows: list[MeasuredRow] = []
    left_out: list[LeftOut] = []
    for one in found:
        if isinstance(one, MeasuredRow):
            rows.append(one)
        else:
            left_out.append(one)
    return Reading(tuple(rows), tuple(left_out))
