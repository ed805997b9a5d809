"""A table of launches at several concurrencies as one of launches with a curve each.

A study's rows have their curves. In a CSV the column ``concurrency`` (or ``max_concurrency``, as vLLM calls it) says at
which one a row was measured; rows that differ in nothing else are one configuration. Where it is empty the row is of
the workload as it is; where it never is, the highest concurrency of the ladder stands for the workload.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from autotune.errors import BadInput
from autotune.metrics.table import CURVE
from autotune.replay import table_of
from autotune.replay.table import Row, Table
from autotune.space.library import Library
from autotune.study.spec import StudySpec
from autotune.trial import Configuration, Metrics

COLUMNS = ("concurrency", "max_concurrency")


def study_table(spec: StudySpec, library: Library) -> Table:
    """The table of a study, as `table_of` reads it, with curves where the study has a ladder."""
    table = table_of(spec.on, spec.table_sha256, library)
    return _cached(_ById(table), spec.ladder)[0] if spec.ladder else table


def on_ladder(table: Table, ladder: Sequence[int]) -> tuple[Table, tuple[int, ...]]:
    """The table with curves, and those concurrencies of the ladder that it has.

    Raises:
        BadInput: the table does not say at which concurrency its rows were measured, or at none of the ladder's.
    """
    return _cached(_ById(table), tuple(ladder))


class _ById:
    """A table that is looked up by being the same one."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.table is other.table


@lru_cache(maxsize=2)
def _cached(key: _ById, ladder: tuple[int, ...]) -> tuple[Table, tuple[int, ...]]:
    """Make the curves once for the specification, its candidates and all launches."""
    table = key.table
    return _of_study(table, ladder) if table.of_study else _of_csv(table, ladder)


def _of_study(table: Table, ladder: tuple[int, ...]) -> tuple[Table, tuple[int, ...]]:
    rows = [replace(row, metrics={w: _narrowed(m, ladder) for w, m in row.metrics.items()}) for row in table.rows]
    curves = (curve for row in rows for m in row.metrics.values() for curve in m.get(CURVE, ()))
    there = {int(point["concurrency"]) for point in curves}
    if not there:
        raise BadInput(f"--ladder: no launch in {table.path} was measured at concurrency {_listed(ladder)}")
    return replace(table, rows=rows, notes=(*table.notes, *_missing(ladder, there))), _those(ladder, there)


def _narrowed(metrics: Metrics, ladder: tuple[int, ...]) -> Metrics:
    rows = [row for row in metrics.get(CURVE, ()) if row.get("concurrency") in ladder]
    rest = {name: value for name, value in metrics.items() if name != CURVE}
    return {**rest, CURVE: rows} if rows else rest


def _of_csv(table: Table, ladder: tuple[int, ...]) -> tuple[Table, tuple[int, ...]]:
    column = next((name for name in COLUMNS if name in table.columns), None)
    if column is None:
        raise BadInput(
            f"--ladder: {table.path} does not say at which concurrency a row was measured; a CSV has a column "
            f"{COLUMNS[0]!r} for it, a study's results.jsonl the curves of its finals"
        )
    loads = {row.configuration.knobs.get(column) for row in table.rows}
    there = _those(ladder, loads)
    if not there:
        has = _listed(sorted(load for load in loads if isinstance(load, int)))
        raise BadInput(f"--ladder {_listed(ladder)}: {table.path} has no row at these; its {column}: {has}")
    whole = None if None in loads else there[-1]
    columns = tuple(name for name in table.columns if name != column)
    rows, left_out = [], 0
    for group in _groups(table, column).values():
        mine = group.get(whole, [])
        left_out += not mine
        rows += [_with_curve(row, number, group, there) for number, row in enumerate(mine)]
    notes = [*table.notes, *_missing(ladder, there)]
    if whole is not None:
        notes.append(f"every row names its {column}: the objective is that at {whole}")
    if left_out:
        notes.append(f"{left_out} configurations are left out: they have no row at that load")
    if not rows:
        raise BadInput(f"--ladder: no configuration of {table.path} has a row at {column} {whole}")
    return replace(table, columns=columns, rows=rows, notes=tuple(notes)), there


def _groups(table: Table, column: str) -> dict[Hashable, dict[object, list[Row]]]:
    """Group a table's rows: configuration without the concurrency column → concurrency → rows."""
    groups: dict[Hashable, dict[object, list[Row]]] = {}
    for row in table.rows:
        knobs = dict(row.configuration.knobs)
        load = knobs.pop(column)
        group = groups.setdefault((row.configuration.engine, *knobs.values()), {})
        group.setdefault(load, []).append(replace(row, configuration=Configuration(row.configuration.engine, knobs)))
    return groups


def _with_curve(row: Row, number: int, group: Mapping[object, Sequence[Row]], ladder: tuple[int, ...]) -> Row:
    """A row with the curve of its repeat; of a load that has fewer repeats they come in turn."""
    if row.failure is not None:
        return row
    metrics = {}
    for workload, measured in row.metrics.items():
        curve = []
        for concurrency in ladder:
            turn = [r for r in group.get(concurrency, ()) if r.failure is None and workload in r.metrics]
            if turn:
                curve.append({"concurrency": concurrency, **turn[number % len(turn)].metrics[workload]})
        metrics[workload] = {**measured, CURVE: curve}
    return replace(row, metrics=metrics)


def _those(ladder: tuple[int, ...], loads: Collection[object]) -> tuple[int, ...]:
    return tuple(c for c in ladder if c in loads)


def _missing(ladder: tuple[int, ...], there: Collection[int]) -> list[str]:
    missing = [c for c in ladder if c not in there]
    rest = _listed(_those(ladder, there))
    return [f"--ladder: no row is of concurrency {_listed(missing)}, so it is {rest}"] if missing else []


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
