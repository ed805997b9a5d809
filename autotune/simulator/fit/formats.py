"""What a format of measurements is: it recognises a file by its content, and reads rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from autotune.errors import BadInput, MalformedFile
from autotune.simulator.fit.raw import Place, RawRow


class Content:
    """A file of measurements, looked at in the ways in which formats need it.

    Raises:
        BadInput: it cannot be read, or is no text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise BadInput(f"--data {path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise MalformedFile(path, "is not UTF-8 text") from error

    @cached_property
    def document(self) -> Any:
        """The whole file as JSON; None where it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    @cached_property
    def first_object(self) -> Mapping[str, Any]:
        """The first line as a JSON object; empty where it is none."""
        try:
            found = json.loads(self.text.lstrip().partition("\n")[0])
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The first line's words between commas; empty where the file is empty."""
        first = next(csv.reader(io.StringIO(self.text, newline="")), [])
        return tuple(name.strip() for name in first)

    def table(self) -> Iterator[tuple[Place, dict[str, str]]]:
        """The rows of a CSV file with its columns' names, and where they end.

        Raises:
            MalformedFile: two columns of one name, a row with more or fewer cells, or a quote that is not closed.
        """
        twice = [name for name in self.columns if self.columns.count(name) > 1]
        if twice:
            raise MalformedFile(self.path, f"two columns are called {twice[0]!r}", 1)
        reader = csv.reader(io.StringIO(self.text, newline=""), strict=True)
        try:
            for cells in reader:
                place = Place(self.path, reader.line_num)
                if reader.line_num == 1 or not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(self.columns):
                    raise place.wrong(f"{len(cells)} cells, but the first line names {len(self.columns)} columns")
                yield place, dict(zip(self.columns, (cell.strip() for cell in cells), strict=True))
        except csv.Error as error:
            raise MalformedFile(self.path, f"not CSV: {error}", reader.line_num) from error

    def lines(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The rows of a file with one JSON object per line."""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if not line.strip():
                continue
            place = Place(self.path, number)
            try:
                found = json.loads(line)
            except ValueError as error:
                raise place.wrong(f"not JSON ({error})") from error
            if not isinstance(found, dict):
                raise place.wrong("not an object of column to value")
            yield place, found


class Format(Protocol):
    """One way in which measurements are written down."""

    @property
    def description(self) -> str:
        """What it is and how it is recognised, for a message."""
        ...

    def recognises(self, content: Content) -> bool:
        """Whether a file is of this format; by its content, not by its name."""
        ...

    def rows(self, content: Content) -> Iterator[RawRow]:
        """The rows, in the file's order; raises `MalformedFile` for what cannot be right."""
        ...
