"""Read a file of recorded launches: a CSV, or a study's ``results.jsonl``.

In a CSV a column is ``engine``, ``failure``, a metric by its name (``WORKLOAD:METRIC`` where it is of a workload of
its own), or else a knob. ``engine_version`` is a knob that also names the version.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.metrics.formulas import METRICS
from autotune.replay.reader import FLAGS, Reader, is_metric
from autotune.replay.table import (
    ENGINE,
    FAILURE,
    PLAIN,
    UNKNOWN,
    VERSION,
    Row,
    Table,
    as_integer,
    comparable,
    parse_metric,
    parse_value,
)
from autotune.study.results import parse_rows
from autotune.trial import Configuration, Failure, Launch, Metrics, Scalar, State

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
    if len(set(values.get("workload", []))) > 1:
        raise reader.refuse(
            "the column 'workload' has several values: figures of different loads cannot be compared. Keep the rows "
            "of one, or write one row per launch and a column per metric and workload, e.g. long:total_token_throughput"
        )
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
                    body.append(_cells_of(reader, header, cells, line))
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


def _cells_of(reader: Reader, header: Cells, cells: Cells, line: int) -> Cells:
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


def read_rows(reader: Reader, text: str) -> Table:
    """Read the table of a study's rows; raises `MalformedFile`.

    Left out is what says nothing of a configuration: measurements that did not count, failures of the machine, and
    loads that an older version cut short (`TrialResult.shortened`).
    """
    parsed = parse_rows(reader.path, text.encode())
    if parsed.torn and not parsed.launches:
        raise parsed.torn
    launches = enumerate(parsed.launches, start=1)
    counted = [(line, launch) for line, launch in launches if launch.result.state is not State.INVALID]
    notes = ["the last line is cut off and left out"] if parsed.torn else []
    if len(counted) < len(parsed.launches):
        notes.append(f"{len(parsed.launches) - len(counted)} rows are left out: their measurements did not count")
    complete = [(line, launch) for line, launch in counted if not launch.result.shortened]
    if len(complete) < len(counted):
        notes.append(f"{len(counted) - len(complete)} rows are left out: their loads were cut short")
    rows = [_row(reader, line, launch) for line, launch in complete]
    versions = {(row.configuration.engine, row.engine_version) for row in rows}
    if len(versions) > len(dict(versions)):
        # Rows of two versions of an engine are no repeats: the version becomes a knob.
        rows = [replace(r, configuration=r.configuration.with_knobs(**{VERSION: r.engine_version})) for r in rows]
    kept, more = reader.usable(rows)
    values: dict[str, set[Scalar]] = {}
    metrics: dict[str, dict[str, None]] = {}
    for row in kept:
        for knob, value in row.configuration.knobs.items():
            values.setdefault(knob, set()).add(value)
        for workload, measured in row.metrics.items():
            metrics.setdefault(workload, {}).update(dict.fromkeys(measured))
    reader.check_cardinality(values)
    for knob, used in values.items():
        if not comparable(used):
            raise reader.refuse(f"{knob} is a number in some rows and true or false in others")
    first = next((launch.trial.workloads[0] for _, launch in counted if launch.trial.workloads), None)
    known = {workload: tuple(name for name in names if name in METRICS) for workload, names in metrics.items()}
    return Table(str(reader.path), tuple(values), kept, known, first, (*notes, *more))


def _row(reader: Reader, line: int, launch: Launch) -> Row:
    trial, result = launch.trial, launch.result
    knobs = {name: _value(reader, name, value, line) for name, value in trial.configuration.knobs.items()}
    metrics: dict[str, Metrics] = {}
    if result.failure is None:
        metrics = {workload: _checked(reader, line, measured) for workload, measured in result.metrics.items()}
        if trial.workloads and trial.workloads[0] in metrics:
            metrics[PLAIN] = metrics[trial.workloads[0]]
    return Row(
        line=line,
        configuration=Configuration(reader.engine(trial.configuration.engine), knobs),
        engine_version=trial.engine_version or UNKNOWN,
        failure=result.failure,
        metrics=metrics,
        times_s=result.times_s,
    )


def _value(reader: Reader, name: str, value: object, line: int) -> Scalar:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise reader.refuse(f"{name} is {value}, which is no value of a knob", line)
        return as_integer(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise reader.refuse(f"{name} is {value!r}, not a plain value", line)


def _checked(reader: Reader, line: int, metrics: Mapping[str, object]) -> Metrics:
    for name, value in metrics.items():
        if (name in METRICS or name in FLAGS) and value is not None:
            reader.check_figure(name, value, line)
    return {name: value for name, value in metrics.items() if value is not None}
