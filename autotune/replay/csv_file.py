"""Reads a CSV of recorded launches.

A column is ``engine``, ``failure``, a metric by its name (``WORKLOAD:METRIC`` where it is of a workload of its own),
or else a knob. ``engine_version`` is a knob that also names the version.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from autotune.replay.reader import FLAGS, Reader, is_metric
from autotune.replay.table import (
    ENGINE,
    FAILURE,
    PLAIN,
    UNKNOWN,
    VERSION,
    Row,
    Table,
    comparable,
    parse_metric,
    parse_value,
)
from autotune.trial import Configuration, Failure, Metrics, Scalar

WORKLOAD = "workload"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}

Cells = list[str]


def read_csv(reader: Reader, text: str) -> Table:
    """Read the table of a CSV; raises `MalformedFile`."""
    header, lines, body = _parsed(reader, text)
    positions = {name: i for i, name in enumerate(header) if name}
    engines = _engines(reader, lines, [cells[positions[ENGINE]] for cells in body])
    knobs = tuple(name for name in positions if name not in (ENGINE, FAILURE) and not is_metric(name))
    values = {name: _values(name, [cells[positions[name]] for cells in body]) for name in knobs}
    reader.check_cardinality({name: set(column) for name, column in values.items()})
    _check_workload(reader, values.get(WORKLOAD, []))
    measured = _metrics(reader, lines, body, positions)
    failures = _failures(reader, lines, body, positions, engines)
    rows = []
    for i, line in enumerate(lines):
        knobs_of = {name: column[i] for name, column in values.items()}
        version = str(knobs_of.get(VERSION) or UNKNOWN)
        rows.append(Row(line, Configuration(engines[i], knobs_of), version, failures[i], measured[i]))
    named: dict[str, list[str]] = {}
    for column in filter(is_metric, positions):
        workload, _, metric = column.rpartition(":")
        named.setdefault(workload, []).append(metric)
    kept, notes = reader.usable(rows)
    first = next((name for name in named if name), None) if PLAIN not in named else None
    metrics_of = {name: tuple(metrics) for name, metrics in named.items()}
    return Table(str(reader.path), knobs, kept, metrics_of, first, notes)


def _parsed(reader: Reader, text: str) -> tuple[Cells, list[int], list[Cells]]:
    """Split into the header, and the line numbers and cells of all rows that are not empty."""
    lines, body, line = [], [], 1
    parser = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: Cells = []
    try:
        for cells in parser:
            if any(map(str.strip, cells)):
                if not header:
                    header = _header(reader, cells, line)
                else:
                    lines.append(line)
                    body.append(_row(reader, header, cells, line))
            line = parser.line_num + 1
    except csv.Error as error:
        raise reader.refuse(f"not a CSV ({error}); is a quote left open?", line) from error
    if not body:
        raise reader.refuse("there is no row below the header; a row is one recorded launch")
    return header, lines, body


def _header(reader: Reader, cells: Cells, line: int) -> Cells:
    names = [cell.strip() for cell in cells]
    if ENGINE not in names:
        for sign, word in _SEPARATORS.items():
            if len(names) == 1 and sign in names[0]:
                raise reader.refuse(f"the columns are separated by {word}; save the table with commas", line)
        columns = ", ".join(filter(None, names))
        raise reader.refuse(f"there is no column {ENGINE!r}, which names the engine of a row; columns: {columns}", line)
    for name in names:
        if name and names.count(name) > 1:
            raise reader.refuse(f"there are {names.count(name)} columns {name!r}; a column has a name of its own", line)
    return names


def _row(reader: Reader, header: Cells, cells: Cells, line: int) -> Cells:
    if len(cells) != len(header):
        raise reader.refuse(
            f"{len(cells)} cells, and the header has {len(header)}; a cell with a comma in it needs quotes", line
        )
    unnamed = (cell for name, cell in zip(header, cells, strict=True) if not name and cell.strip())
    if "" in header and (cell := next(unnamed, None)) is not None:
        raise reader.refuse(f"{cell!r} stands in a column without a name; the header names every column", line)
    return cells


def _engines(reader: Reader, lines: Sequence[int], column: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in column]
    for line, name in zip(lines, names, strict=True):
        if not name:
            raise reader.refuse("the engine is missing", line)
    return [reader.engine(name) for name in names]


def _values(name: str, column: Sequence[str]) -> list[Scalar]:
    """Parse a knob's column; booleans beside numbers stay words, and a version is never a number."""
    if name == VERSION:
        return [cell.strip() or None for cell in column]
    parsed = {cell: parse_value(cell) for cell in set(column)}
    if not comparable(parsed.values()):
        parsed = {cell: str(v).lower() if isinstance(v, bool) else v for cell, v in parsed.items()}
    return [parsed[cell] for cell in column]


def _check_workload(reader: Reader, column: Sequence[Scalar]) -> None:
    if len(set(column)) > 1:
        raise reader.refuse(
            "the column 'workload' has several values: figures of different loads cannot be compared. Keep the rows "
            "of one, or write one row per launch and a column per metric and workload, e.g. long:total_token_throughput"
        )


def _metrics(
    reader: Reader, lines: Sequence[int], body: Sequence[Cells], positions: dict[str, int]
) -> list[dict[str, Metrics]]:
    """Parse each row's metrics by workload: none where it failed; an empty cell was not measured."""
    metrics: list[dict[str, Metrics]] = [{} for _ in body]
    failed = positions.get(FAILURE)
    for name in filter(is_metric, positions):
        workload, _, metric = name.rpartition(":")
        position = positions[name]
        for line, cells, row in zip(lines, body, metrics, strict=True):
            text = cells[position].strip()
            if not text or (failed is not None and cells[failed].strip()):
                continue
            value = parse_value(text) if metric in FLAGS else parse_metric(text)
            if value is None:
                raise reader.refuse(f"{name} is {text!r}, not a number such as 1234.5", line)
            # Looked at here, because it is called for each of a million cells.
            if not (type(value) is float and 0.0 <= value < math.inf):
                reader.check_figure(metric, value, line)
            row.setdefault(workload, {})[metric] = value
    return metrics


def _failures(
    reader: Reader, lines: Sequence[int], body: Sequence[Cells], positions: dict[str, int], engines: Sequence[str]
) -> list[Failure | None]:
    if FAILURE not in positions:
        return [None] * len(body)
    position = positions[FAILURE]
    return [
        reader.failure(engine, text, line) if (text := cells[position].strip()) else None
        for line, cells, engine in zip(lines, body, engines, strict=True)
    ]
