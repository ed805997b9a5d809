"""Reads a study's ``results.jsonl`` as recorded launches."""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.metrics.formulas import METRICS
from autotune.replay.cells import unmixed, whole
from autotune.replay.reading import FLAGS, Reader
from autotune.replay.table import PLAIN, UNKNOWN, VERSION, Row, Table
from autotune.study.results import parse_rows
from autotune.trial import Configuration, Launch, Metrics, Scalar, State


def read_rows(reader: Reader, text: str) -> Table:
    """The table of a study's rows; raises `MalformedFile`.

    What says nothing of a configuration is left out: measurements that did not count, failures of the machine, and
    loads that an older version cut short (`TrialResult.shortened`).
    """
    found = parse_rows(reader.path, text.encode())
    if found.torn and not found.launches:
        raise found.torn
    launches = enumerate(found.launches, start=1)
    counted = [(line, launch) for line, launch in launches if launch.result.state is not State.INVALID]
    notes = ["the last line is cut off and left out"] if found.torn else []
    if len(counted) < len(found.launches):
        notes.append(f"{len(found.launches) - len(counted)} rows are left out: their measurements did not count")
    whole = [(line, launch) for line, launch in counted if not launch.result.shortened]
    if len(whole) < len(counted):
        notes.append(f"{len(counted) - len(whole)} rows are left out: their loads were cut short")
    rows = _versions_told_apart([_row(reader, line, launch) for line, launch in whole])
    kept, more = reader.told(rows)
    values: dict[str, set[Scalar]] = {}
    metrics: dict[str, dict[str, None]] = {}
    for row in kept:
        for knob, value in row.configuration.knobs.items():
            values.setdefault(knob, set()).add(value)
        for workload, measured in row.metrics.items():
            metrics.setdefault(workload, {}).update(dict.fromkeys(measured))
    reader.check_spread(values)
    for knob, seen in values.items():
        if not unmixed(seen):
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
        return whole(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise reader.refuse(f"{name} is {value!r}, not a plain value", line)


def _checked(reader: Reader, line: int, metrics: Mapping[str, object]) -> Metrics:
    for name, value in metrics.items():
        if (name in METRICS or name in FLAGS) and value is not None:
            reader.check_figure(name, value, line)
    return {name: value for name, value in metrics.items() if value is not None}


def _versions_told_apart(rows: list[Row]) -> list[Row]:
    """Where an engine has several versions they become a knob: rows of two versions are no repeats."""
    versions: dict[str, set[str]] = {}
    for row in rows:
        versions.setdefault(row.configuration.engine, set()).add(row.engine_version)
    if all(len(told) == 1 for told in versions.values()):
        return rows
    return [_with_version(row) for row in rows]


def _with_version(row: Row) -> Row:
    configuration = row.configuration.with_knobs(**{VERSION: row.engine_version})
    return Row(row.line, configuration, row.engine_version, row.failure, row.metrics, row.times_s)
