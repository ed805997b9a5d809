"""Check the options that an engine's knobs are read from against the options of its versions."""

from __future__ import annotations

import difflib
from pathlib import Path

from autotune.base.errors import MalformedFile

from .engine import Engine
from .entry import in_range
from .expression import attributes
from .library import line_of


def check_readings(file: Path, kind: Engine) -> None:
    """Raise `MalformedFile` for a knob that is read from an option that no version of the reading
    has.

    Such a knob would never be read from a command, and count as left at its default.
    """
    card = kind.card
    options = {
        version: {name for one in kind.table(version).options for name in one.names}
        for version in card.versions
    }
    for name, knob in card.knobs.items():
        for number, reading in enumerate(knob.read):
            versions = [
                v for v in card.versions if in_range(v, reading.versions) and knob.exists_in(v)
            ]
            known = set[str]().union(*(options[version] for version in versions))
            unknown = sorted(attributes(reading.value, "args") - known) if versions else []
            if unknown:
                near = difflib.get_close_matches(unknown[0], known, n=1)
                meant = f"; did you mean args.{near[0]}?" if near else ""
                told = (
                    f"args.{unknown[0]} is no option of {card.title} {', '.join(versions)}{meant}"
                )
                raise MalformedFile(
                    file, told, line_of(file, ("knobs", name, "read", number, "value"))
                )
