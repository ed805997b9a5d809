"""What the readers of both kinds of files share: engine names, metrics, failures, and the choice of usable rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.errors import MalformedFile, UnknownName
from autotune.metrics.formulas import METRICS
from autotune.replay.table import Row
from autotune.serving.logs import LogPatterns, failure_in, patterns_of
from autotune.space.library import Library
from autotune.trial import Failure, FailureKind

FLAGS = frozenset({"client_bound"})
"""Metrics that are true or false."""

_KINDS = {kind.value: kind for kind in FailureKind}
_COMMON = (
    (re.compile(r"out[ _-]of[ _-]memory|\boom\b", re.IGNORECASE), FailureKind.OUT_OF_MEMORY),
    (re.compile(r"\btimed?[ _-]?out\b", re.IGNORECASE), FailureKind.TIMEOUT),
    (re.compile(r"unsupported|not (?:yet )?supported", re.IGNORECASE), FailureKind.UNSUPPORTED),
)
"""Words that mean one thing whatever the engine."""

_RAN = frozenset({"false", "none", "no", "0", "nan", "null", "n/a", "-"})
"""What people write who mean that nothing failed; an empty cell says that."""

_EXCERPT_CHARACTERS = 500

MOST_VALUES = 4096
"""Of one knob. The search compares each value of a knob with each other one: as many squared are kept."""


class Reader:
    """Interprets the content of one file.

    Args:
        path: for messages.
        library: the engines that are known.
    """

    def __init__(self, path: Path, library: Library) -> None:
        self.path, self.library = path, library
        self._engines: dict[str, str] = {}
        self._failures: dict[tuple[str, str], Failure] = {}

    def refuse(self, problem: str, line: int | None = None) -> MalformedFile:
        """Make the error that names file and line."""
        return MalformedFile(self.path, problem, line)

    def engine(self, text: str) -> str:
        """An engine's own name; see `engine_name`."""
        if text not in self._engines:
            self._engines[text] = engine_name(text, self.library)
        return self._engines[text]

    def failure(self, engine: str, text: str, line: int) -> Failure:
        """Parse the cell of a launch that failed: a kind and perhaps a message, or words of a log."""
        if text.lower() in _RAN:
            raise self.refuse(f"failure is {text!r}; leave the cell empty where the launch ran", line)
        if (engine, text) not in self._failures:
            self._failures[engine, text] = _parse_failure(text, self._patterns.get(engine, LogPatterns(())))
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

    def check_cardinality(self, columns: Mapping[str, Collection[object]]) -> None:
        """Raise `MalformedFile` for a knob with more than `MOST_VALUES` values."""
        for name, values in columns.items():
            if len(values) > MOST_VALUES:
                raise self.refuse(
                    f"column {name!r} has {len(values):,} different values, more than the {MOST_VALUES:,} that the "
                    "search can compare; leave the column out if it only numbers the rows"
                )

    def usable(self, rows: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
        """The rows that ran or failed by their configuration, and a note on the others."""
        kept = [row for row in rows if row.failure is None or row.failure.blames_the_configuration]
        if not kept:
            raise self.refuse("no row says anything of a configuration: there is no launch that ran, or failed by it")
        left = len(rows) - len(kept)
        note = f"{left} rows are left out: the machine failed there, not the configuration"
        return kept, (note,) if left else ()


def engine_name(text: str, library: Library) -> str:
    """Resolve an engine's name or alias to its own name; an unknown one stays as it is."""
    try:
        return library.engine(text).engine
    except UnknownName:
        return text


def is_metric(name: str) -> bool:
    """Whether a column of this name holds a metric: ours, or one of a named workload, ``WORKLOAD:METRIC``."""
    return name.rpartition(":")[2] in METRICS.keys() | FLAGS


def _parse_failure(text: str, patterns: LogPatterns) -> Failure:
    """Parse a failure: a kind, with or without a message behind a colon, or words of a log.

    Args:
        patterns: of the row's engine; empty where it is not known.
    """
    head, _, message = text.partition(":")
    kind = _KINDS.get(re.sub(r"[\s-]+", "_", head.strip().lower()))
    if kind is not None:
        return Failure(kind, message.strip() or f"The table says {kind.value}, and nothing else.")
    if (failure := failure_in(text, patterns)) is not None:
        return failure
    common = next((kind for pattern, kind in _COMMON if pattern.search(text)), FailureKind.CRASHED)
    return Failure(common, text, text[:_EXCERPT_CHARACTERS])
