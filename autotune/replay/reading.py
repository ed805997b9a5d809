"""What the readers of both kinds of files share: names, metrics, failures, and the rows that say nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.errors import MalformedFile, UnknownName
from autotune.metrics.formulas import METRICS
from autotune.replay.failures import RAN, failure_of
from autotune.replay.table import Row
from autotune.serving.logs import LogPatterns, patterns_of
from autotune.space.library import Library
from autotune.trial import Failure

FLAGS = frozenset({"client_bound"})
"""Metrics that are true or false."""

MOST_VALUES = 4096
"""Of one knob. The search compares each value of a knob with each other one: as many squared are kept."""


class Reader:
    """Reads one file.

    Args:
        path: for messages.
        library: the engines that are known.
    """

    def __init__(self, path: Path, library: Library) -> None:
        self.path, self.library = path, library
        self._engines: dict[str, str] = {}
        self._failures: dict[tuple[str, str], Failure] = {}

    def refuse(self, problem: str, line: int | None = None) -> MalformedFile:
        """The error that names file and line."""
        return MalformedFile(self.path, problem, line)

    def engine(self, text: str) -> str:
        """An engine's name: ours where the text is one of ours or an alias of it, else as it is written."""
        if text not in self._engines:
            self._engines[text] = engine_name(text, self.library)
        return self._engines[text]

    def failure(self, engine: str, text: str, line: int) -> Failure:
        """What a cell says of a launch that failed."""
        if text.lower() in RAN:
            raise self.refuse(f"failure is {text!r}; leave the cell empty where the launch ran", line)
        if (engine, text) not in self._failures:
            self._failures[engine, text] = failure_of(text, self._patterns.get(engine, LogPatterns(())))
        return self._failures[engine, text]

    @cached_property
    def _patterns(self) -> dict[str, LogPatterns]:
        return {name: patterns_of(card) for name, card in self.library.engines.items()}

    def check_figure(self, name: str, value: Any, line: int) -> None:
        """Raise `MalformedFile` unless a metric's value is one: finite, and not negative."""
        if name in FLAGS and isinstance(value, bool):
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(f"{name} is {value!r}, not a number", line)
        if not math.isfinite(value) or value < 0:
            raise self.refuse(f"{name} is {value}; a metric is a finite number of at least 0", line)

    def check_spread(self, columns: Mapping[str, Collection[object]]) -> None:
        """Raise `MalformedFile` for a knob with more values than can be compared with each other."""
        for name, values in columns.items():
            if len(values) > MOST_VALUES:
                raise self.refuse(
                    f"column {name!r} has {len(values):,} different values, more than the {MOST_VALUES:,} that the "
                    "search can compare; leave the column out if it only numbers the rows"
                )

    def told(self, rows: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
        """The rows that say something of their configurations, and a note on the others."""
        kept = [row for row in rows if row.failure is None or row.failure.blames_the_configuration]
        if not kept:
            raise self.refuse("no row says anything of a configuration: there is no launch that ran, or failed by it")
        left = len(rows) - len(kept)
        note = f"{left} rows are left out: the machine failed there, not the configuration"
        return kept, (note,) if left else ()


def engine_name(text: str, library: Library) -> str:
    """An engine's own name where a text is one that we know, or an alias of it; else the text."""
    try:
        return library.engine(text).engine
    except UnknownName:
        return text


def is_metric(name: str) -> bool:
    """Whether a column of this name holds a metric: ours, or one of a named workload, ``WORKLOAD:METRIC``."""
    return name.rpartition(":")[2] in METRICS.keys() | FLAGS
