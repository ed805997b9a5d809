"""Options of the command line, declared by the fields of dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

FIRST = "Common options"
GOAL = "Goals and measurement"
SPACE = "Search space"
PLACE = "Where launches run"
STUDY = "The study"
GROUPS = (FIRST, GOAL, SPACE, PLACE, STUDY)
"""Headings of ``autotune run --help``, in their order."""


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option declared by a field.

    Attributes:
        least, most: bounds of a whole number.
        existing: True if a path must name a file that is there.
        needs: ``launch``: means nothing where a file answers; ``search``: nor where a bundle does.
        again: what asks for it again, of a study; None: the study's field of the same name.
        row: heading and form of its row in a report's table of what was asked; empty: it has none
            of its own.
    """

    flag: str
    help: str
    group: str = ""
    least: int | None = None
    most: int | None = None
    existing: bool = False
    needs: Literal["launch", "search"] | None = None
    again: Callable[[Any], object] | None = None
    row: tuple[str, str] | None = None


def not_again(study: object) -> None:
    """Omit an option when a study is asked again: other options imply it."""


def option(flag: str, help: str, group: str = "", *, default: Any = None, **more: Any) -> Any:
    """Declare a field that is an option of the command line."""
    return field(default=default, metadata={"option": Option(flag, help, group, **more)})


def repeatable(flag: str, help: str, group: str = "", **more: Any) -> Any:
    """Declare a field that is an option with any number of values."""
    return option(flag, help, group, default=(), **more)


def typed_word(value: object) -> str:
    """Format a value as typed: a number in its shortest form."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def declared_options(kind: type) -> list[tuple[Field[Any], Option]]:
    """List the fields of a dataclass that are options, with their declarations."""
    return [(one, one.metadata["option"]) for one in fields(kind) if "option" in one.metadata]


def same(kind: type, name: str) -> Any:
    """Declare a field that is also an option of another command, whose options are `kind`."""
    one = next(one for one in fields(kind) if one.name == name)
    return field(default=one.default, metadata=one.metadata)
