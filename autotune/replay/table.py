"""A table of recorded launches as values, and what the text of its cells means."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotune.errors import UnknownName
from autotune.metrics.table import METRICS
from autotune.space.library import Library
from autotune.trial import Command, Configuration, Evidence, Failure, Metrics, Scalar

ENGINE, VERSION, FAILURE = "engine", "engine_version", "failure"

UNKNOWN = "unknown"
"""The engine version of a row that names none."""

PLAIN = ""
"""Stands for the objective's workload, whatever its name, among the workloads of a row."""

FLAGS = frozenset({"client_bound"})
"""Metrics that are true or false."""

_WHOLE = re.compile(r"[-+]?(?:0|[1-9]\d{0,14})")
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9]\d*)\.\d*|\.\d+|(?:0|[1-9]\d*)(?:\.\d*)?[eE][-+]?\d{1,3})")
_EXACT = 2.0**53
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded launch.

    Attributes:
        line: of the file, from 1.
        failure: why the configuration did not run; None: it ran.
        metrics: workload to its metrics; `PLAIN` is the objective's.
        times_s: seconds per phase of the launch; empty where the file has none.
        command: what was launched; None where the file does not tell.
        evidence: how the launch was made; None where the file does not tell.
    """

    line: int
    configuration: Configuration
    engine_version: str = UNKNOWN
    failure: Failure | None = None
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    times_s: Mapping[str, float] = field(default_factory=dict)
    command: Command | None = None
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Table:
    """The rows of a file that count for or against their configurations.

    Attributes:
        columns: the knobs, in the file's order.
        metrics: workload to the names of the metrics that the file has of it; `PLAIN` is the objective's.
        workload: the name of the objective's workload, where the file names one.
        notes: sentences on how the file was read, for a person.
        of_study: they are a study's launches, whose promises are known; other rows are judged as they are.
    """

    path: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    metrics: Mapping[str, tuple[str, ...]]
    workload: str | None = None
    notes: tuple[str, ...] = ()
    of_study: bool = False

    def key(self, configuration: Configuration) -> Hashable:
        """The key of a configuration in `repeats`; cheaper than a fingerprint."""
        return (configuration.engine, *map(configuration.knobs.get, self.columns))

    @cached_property
    def repeats(self) -> dict[Hashable, list[Row]]:
        """The rows of each configuration, in the order of the file."""
        rows: dict[Hashable, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(self.key(row.configuration), []).append(row)
        return rows

    @cached_property
    def configurations(self) -> list[Configuration]:
        """Each configuration once, in the order of the file."""
        return [rows[0].configuration for rows in self.repeats.values()]

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines, in the order in which the file names them."""
        return tuple(dict.fromkeys(row.configuration.engine for row in self.rows))

    def version_of(self, engine: str) -> str:
        """The version of an engine; `UNKNOWN` where the file names none, or several."""
        versions = {row.engine_version for row in self.rows if row.configuration.engine == engine}
        return versions.pop() if len(versions) == 1 else UNKNOWN

    def key_of_workload(self, workload: str, objective: bool) -> str | None:
        """The key of a workload in the rows' metrics; None where the file has no metric of it."""
        if workload and workload in self.metrics:
            return workload
        return PLAIN if objective and PLAIN in self.metrics else None


def value_at(configuration: Configuration, column: str) -> Scalar:
    """A configuration's value in a column."""
    return configuration.engine if column == ENGINE else configuration.knobs.get(column)


def engine_name(text: str, library: Library) -> str:
    """Resolve an engine's name or alias to its own name; an unknown one stays as it is."""
    try:
        return library.engine(text).engine
    except UnknownName:
        return text


def is_metric(name: str) -> bool:
    """Whether a column of this name holds a metric: ours, or one of a named workload, ``WORKLOAD:METRIC``."""
    return name.rpartition(":")[2] in METRICS.keys() | FLAGS


def parse_value(text: str) -> Scalar:
    """Parse the cell of a knob.

    Empty is None (not set); a whole number, however it is written, an int; ``true`` and ``false`` in any case, as
    spreadsheets write them, a bool. All else is the text without the blanks around it: also ``007`` and whole numbers
    beyond 15 digits, which are names and lose nothing so.
    """
    text = text.strip()
    if not text:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        value = float(text)
        return as_integer(value) if math.isfinite(value) else text
    return _BOOLEANS.get(text.lower(), text)


def as_integer(value: float) -> int | float:
    """A whole number as an integer, where nothing is lost by that."""
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


def parse_metric(text: str) -> int | float | None:
    """Parse the cell of a metric; None where it is no number, not finite for ``nan`` and ``inf``."""
    try:
        value = float(text)
    except ValueError:
        return None
    # Python also takes 1_000 for a number; nobody who writes tables does.
    if "_" in text:
        return None
    return int(text) if text.isdecimal() and value < _EXACT else value


def comparable(values: Iterable[Scalar]) -> bool:
    """Whether the values do not mix booleans and numbers: Python, and so every look-up, takes True for 1."""
    kinds = {type(value) for value in values}
    return bool not in kinds or not kinds & {int, float}


def cell_text(value: Scalar) -> str:
    """Write a value as a cell would; ``empty`` for None."""
    if value is None:
        return "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


def same_value(one: Scalar, other: Scalar) -> bool:
    """Whether two values are equal, where True is not 1."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)
