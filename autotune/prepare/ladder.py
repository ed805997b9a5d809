"""Which concurrencies of a ladder a study measures: those of its workload, or of its table of recorded launches."""

from __future__ import annotations

from typing import Any

from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.loadgen.workloads.ladder import how_fixed
from autotune.prepare.goals import Goals
from autotune.replay import file_of, table_of
from autotune.replay.ladder import on_ladder
from autotune.space.library import Library
from autotune.study.options import RunOptions


def ladder_of(
    goals: Goals, options: RunOptions, asked: dict[str, Any], library: Library
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ladder, and notes on it.

    One that comes with ``--pareto`` alone is left out where it cannot be measured.

    Args:
        asked: the fields of a `StudySpec` that say where trials run and under which workloads.

    Raises:
        BadInput: it was asked for, and the workload says itself how it is sent, or the table has no such loads.
    """
    if not goals.ladder:
        return (), ()
    try:
        if file_of(asked["on"]) is None:
            return _of_workload(goals.ladder, asked["workloads"][0], library), ()
        table = table_of(asked["on"], asked["table_sha256"], library)
        laddered, there = on_ladder(table, goals.ladder)
        return there, tuple(f"{table.path}: {note}" for note in laddered.notes if note not in table.notes)
    except BadInput as error:
        if options.ladder is not None:
            raise
        return (), (f"the front is of one load only, not over a ladder. {error}",)


def _of_workload(ladder: tuple[int, ...], name: str, library: Library) -> tuple[int, ...]:
    if fixed := how_fixed(load_workload(name, library)):
        raise BadInput(
            f"--ladder: {name} {fixed}, so no other concurrency can be set; a ladder needs one load that is sent all "
            "at once, such as sharegpt or random:3200:800. The loads of such a workload are measured without --ladder"
        )
    return ladder
