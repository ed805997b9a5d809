"""A table of recorded launches, as values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotune.replay.cells import same
from autotune.trial import Configuration, Failure, Metrics, Scalar

ENGINE, VERSION, FAILURE = "engine", "engine_version", "failure"

UNKNOWN = "unknown"
"""The engine version of a row that does not tell it."""

PLAIN = ""
"""Stands for the objective's workload, whatever its name, among the workloads of a row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded launch.

    Attributes:
        line: of the file, from 1.
        failure: why the configuration did not run; None: it ran.
        metrics: workload to its metrics; `PLAIN` is the objective's.
        times_s: seconds per phase of the launch; empty where the file does not tell them.
    """

    line: int
    configuration: Configuration
    engine_version: str = UNKNOWN
    failure: Failure | None = None
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    times_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """The rows of a file that say something of their configurations.

    Attributes:
        columns: the knobs, in the file's order.
        metrics: workload to the names of the metrics that the file has of it; `PLAIN` is the objective's.
        workload: the name of the objective's workload, where the file tells one.
        notes: what a person should know of how the file was read.
    """

    path: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    metrics: Mapping[str, tuple[str, ...]]
    workload: str | None = None
    notes: tuple[str, ...] = ()

    def key(self, configuration: Configuration) -> Hashable:
        """What tells one configuration from another; cheaper than a fingerprint."""
        return (configuration.engine, *map(configuration.knobs.get, self.columns))

    @cached_property
    def repeats(self) -> dict[Hashable, list[Row]]:
        """The rows of each configuration, in the order of the file."""
        found: dict[Hashable, list[Row]] = {}
        for row in self.rows:
            found.setdefault(self.key(row.configuration), []).append(row)
        return found

    @property
    def engines(self) -> tuple[str, ...]:
        """In the order in which the file names them."""
        return tuple(dict.fromkeys(row.configuration.engine for row in self.rows))

    def version_of(self, engine: str) -> str:
        """The version of an engine; `UNKNOWN` where the file tells none, or several."""
        told = {row.engine_version for row in self.rows if row.configuration.engine == engine}
        return told.pop() if len(told) == 1 else UNKNOWN

    def answers_for(self, workload: str, objective: bool) -> str | None:
        """The key of a workload in the rows' metrics; None where the file says nothing of it."""
        if workload and workload in self.metrics:
            return workload
        return PLAIN if objective and PLAIN in self.metrics else None


def at(configuration: Configuration, column: str) -> Scalar:
    """A configuration's value in a column."""
    return configuration.engine if column == ENGINE else configuration.knobs.get(column)


def matches(configuration: Configuration, wanted: Mapping[str, Scalar]) -> bool:
    """Whether a configuration has these values."""
    return all(same(at(configuration, column), value) for column, value in wanted.items())
