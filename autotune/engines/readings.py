"""Check the options that an engine's knobs are read from against the options of its versions."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from autotune.base.errors import MalformedFile

from .engine import Engine
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
                version
                for version in card.versions
                if reading.is_for(version) and knob.exists_in(version)
            ]
            known = set[str]().union(*(options[version] for version in versions))
            unknown = (
                sorted(set(re.findall(r"\bargs\.(\w+)", reading.value)) - known) if versions else []
            )
            if unknown:
                near = difflib.get_close_matches(unknown[0], known, n=1)
                meant = f"; did you mean args.{near[0]}?" if near else ""
                problem = (
                    f"args.{unknown[0]} is no option of {card.title} {', '.join(versions)}{meant}"
                )
                raise MalformedFile(
                    file, problem, line_of(file, ("knobs", name, "read", number, "value"))
                )
