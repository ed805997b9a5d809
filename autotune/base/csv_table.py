"""Rows of a user's CSV, checked while they are read."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from .errors import MalformedFile
from .values import StringMap

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def csv_table(
    path: Path, text: str, needed: StringMap
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Split into the header, and the line number and the cells, without blanks around them, of all
    non-empty rows.

    Raises `MalformedFile` with the line. `needed` says of each column that must be there what it is
    for.
    """
    header: list[str] = []
    body = []
    line = 1
    parser = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in parser:
            cells = [cell.strip() for cell in row]
            if any(cells) and not header:
                _check_header(path, cells, line, needed)
                header = cells
            elif any(cells):
                _check_cells(path, header, cells, line)
                body.append((line, cells))
            line = parser.line_num + 1
        if not header:
            _check_header(path, header, 1, needed)
    except csv.Error as error:
        raise MalformedFile(path, f"not a CSV ({error}); is a quote left open?", line) from error
    return header, body


def _check_header(path: Path, names: Sequence[str], line: int, needed: StringMap) -> None:
    for column, what in needed.items():
        if column in names:
            continue
        for sign, word in _SEPARATORS.items():
            if len(names) == 1 and sign in names[0]:
                raise MalformedFile(
                    path, f"the columns are separated by {word}; save the table with commas", line
                )
        columns = ", ".join(filter(None, names)) or "none"
        raise MalformedFile(path, f"there is no column {column!r}{what}; columns: {columns}", line)
    for name in names:
        if name and names.count(name) > 1:
            raise MalformedFile(
                path,
                f"there are {names.count(name)} columns {name!r}; column names must be unique",
                line,
            )


def _check_cells(path: Path, header: Sequence[str], cells: Sequence[str], line: int) -> None:
    if len(cells) != len(header):
        raise MalformedFile(
            path,
            f"{len(cells)} cells, and the header has {len(header)}; a cell with a comma in it needs quotes",
            line,
        )
    named = list(zip(header, cells, strict=True))
    # A first column without a name that numbers the rows is pandas' index.
    index = not header[0] and cells[0].isdecimal()
    unnamed = (cell for name, cell in named[index:] if not name and cell)
    if "" in header and (cell := next(unnamed, None)) is not None:
        raise MalformedFile(
            path, f"{cell!r} is in a column without a name; the header must name every column", line
        )
