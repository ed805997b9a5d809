"""Reads a study's ``results.jsonl`` as recorded launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from autotune.metrics.formulas import METRICS
from autotune.replay.reader import FLAGS, Reader
from autotune.replay.table import PLAIN, UNKNOWN, VERSION, Row, Table, as_integer, comparable
from autotune.study.results import parse_rows
from autotune.trial import Configuration, Launch, Metrics, Scalar, State


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
    rows = _with_versions([_row(reader, line, launch) for line, launch in complete])
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


def _with_versions(rows: list[Row]) -> list[Row]:
    """Make the version a knob where an engine has several: rows of two versions are no repeats."""
    versions: dict[str, set[str]] = {}
    for row in rows:
        versions.setdefault(row.configuration.engine, set()).add(row.engine_version)
    if all(len(of_engine) == 1 for of_engine in versions.values()):
        return rows
    return [replace(row, configuration=row.configuration.with_knobs(**{VERSION: row.engine_version})) for row in rows]
