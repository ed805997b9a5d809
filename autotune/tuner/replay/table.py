"""Table of recorded launches from a file: a CSV, or a study's ``results.jsonl``.

The rows of a table are the only candidates, and each is taken as it is: no rule judges it. Rows of
one engine and equal knobs are repeats of one configuration.

In a CSV a column is ``engine``, ``failure``, a metric by its name (``WORKLOAD:METRIC`` where it is
of a workload of its own), or else a knob. ``engine_version`` is a knob that also names the version.
"""

import hashlib
import math
import re
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from autotune.base import (
    BadInput,
    Evidence,
    FloatMap,
    MalformedFile,
    Strings,
    UnknownName,
    by_key,
    frozen,
)
from autotune.base.csv_table import csv_table
from autotune.engines import Command, Configuration, Failure, FailureKind, Library, Scalar
from autotune.engines.command import plain
from autotune.load.metrics.table import METRICS, Metrics
from autotune.load.metrics.tools import LOAD, role_of, tool_of
from autotune.servers.logs import LogPatterns, failure_in, patterns_of

from ..study.results import RESULTS, parse_rows
from ..trial import Launch
from .bundle import ZIP_BEGINNING, unpack

ENGINE = "engine"
VERSION = "engine_version"
FAILURE = "failure"

UNKNOWN = "unknown"
"""Engine version of a row without one."""

PLAIN = ""
"""Name of the objective's workload, whatever its own name, among the workloads of a row."""

FLAGS = frozenset({"client_bound"})
"""Metrics that are true or false."""

_WHOLE = re.compile(r"[-+]?(?:0|[1-9]\d{0,14})")
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9]\d*)\.\d*|\.\d+|(?:0|[1-9]\d*)(?:\.\d*)?[eE][-+]?\d{1,3})")
_EXACT = 2.0**53
_BOOLEANS = {"true": True, "false": False}
_KINDS = {kind.value: kind for kind in FailureKind}
_COMMON = (
    (r"out[ _-]of[ _-]memory|\boom\b", FailureKind.OUT_OF_MEMORY),
    (r"\btimed?[ _-]?out\b", FailureKind.TIMEOUT),
    (r"unsupported|not (?:yet )?supported", FailureKind.UNSUPPORTED),
)
"""Words with one meaning for all engines."""

_RAN = "false none no 0 nan null n/a -"
"""Words that mean no failure; an empty cell means the same."""

_EXCERPT_CHARACTERS = 500

MOST_VALUES = 4096
"""Most values of one knob. The search compares all pairs of values, so memory grows with the
square."""
REPLAY = "replay:"
"""Prefix of `StudySpec.on` for a replay; the file's path follows."""


@frozen
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
    engine_version: str
    failure: Failure | None
    metrics: Mapping[str, Metrics]
    times_s: FloatMap = {}
    command: Command | None = None
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Table:
    """Rows of a file that are evidence about their configurations.

    Attributes:
        columns: the knobs, in the file's order.
        metrics: workload to the names of the metrics that the file has of it; `PLAIN` is the
            objective's.
        workload: the name of the objective's workload, where the file names one.
        notes: sentences on how the file was read, for a person.
        of_study: they are a study's launches, whose promises are known; other rows are judged as
            they are.
    """

    path: str
    columns: Sequence[str]
    rows: Sequence[Row]
    metrics: Mapping[str, Sequence[str]]
    workload: str | None = None
    notes: Strings = ()
    of_study: bool = False

    def key(self, configuration: Configuration) -> Hashable:
        """Return the key of a configuration in `repeats`; cheaper than a fingerprint."""
        return (configuration.engine, *map(configuration.knobs.get, self.columns))

    @cached_property
    def repeats(self) -> dict[Hashable, list[Row]]:
        """Group the rows by configuration, in the order of the file."""
        return by_key((self.key(row.configuration), row) for row in self.rows)

    @cached_property
    def configurations(self) -> list[Configuration]:
        """List each configuration once, in the order of the file."""
        return [rows[0].configuration for rows in self.repeats.values()]

    @property
    def engines(self) -> Strings:
        """List the engines, in the order of the file."""
        return tuple(dict.fromkeys(row.configuration.engine for row in self.rows))

    def version_of(self, engine: str) -> str:
        """Return the version of an engine; `UNKNOWN` if the file names none, or several."""
        versions = {row.engine_version for row in self.rows if row.configuration.engine == engine}
        return versions.pop() if len(versions) == 1 else UNKNOWN

    def key_of_workload(self, workload: str, objective: bool) -> str | None:
        """Return the key of a workload in the rows' metrics; None if the file has no metric of
        it."""
        if workload and workload in self.metrics:
            return workload
        return PLAIN if objective and PLAIN in self.metrics else None


def value_at(configuration: Configuration, column: str) -> Scalar:
    """Return a configuration's value in a column."""
    return configuration.engine if column == ENGINE else configuration.knobs.get(column)


def engine_name(text: str, library: Library) -> str:
    """Resolve an engine's name or alias to its own name; an unknown one is unchanged."""
    try:
        return library.engine(text).engine
    except UnknownName:
        return text


def is_metric(name: str) -> bool:
    """Return whether a column holds a metric: ours, or one of a named workload,
    ``WORKLOAD:METRIC``."""
    return name.rpartition(":")[2] in METRICS.keys() | FLAGS


def parse_value(text: str) -> Scalar:
    """Parse the cell of a knob.

    Empty is None (not set); a whole number, however it is written, an int; ``true`` and ``false``
    in any case, as spreadsheets write them, a bool. All else is the text without the blanks around
    it: also ``007`` and whole numbers beyond 15 digits, which are names and lose nothing so.
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
    """Return a whole number as an integer if that is lossless."""
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


def parse_metric(text: str) -> int | float | None:
    """Parse the cell of a metric; None if it is no number, not finite for ``nan`` and ``inf``."""
    try:
        value = float(text)
    except ValueError:
        return None
    # Refuse 1_000, which only Python takes for a number.
    if "_" in text:
        return None
    return int(text) if text.isdecimal() and value < _EXACT else value


def comparable(values: Iterable[Scalar]) -> bool:
    """Return False if booleans are mixed with numbers: Python, and so every look-up, equates True
    and 1."""
    kinds = {type(value) for value in values}
    return bool not in kinds or not kinds & {int, float}


def cell_text(value: Scalar) -> str:
    """Format a value as in a cell; ``empty`` for None."""
    return "empty" if value is None else plain(value)


def same_value(one: Scalar, other: Scalar) -> bool:
    """Return whether two values are equal; True is not 1."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


class TableReader:
    """Interpret the content of one file; its path is for messages, the library has the known
    engines."""

    def __init__(self, path: Path, library: Library) -> None:
        self.path = path
        self.library = library
        self._failures: dict[tuple[str, str], Failure] = {}

    def refuse(self, problem: str, line: int | None = None) -> MalformedFile:
        """Make the error that names file and line."""
        return MalformedFile(self.path, problem, line)

    def failure(self, engine: str, text: str, line: int) -> Failure:
        """Parse the cell of a failed launch: a kind and an optional message, or words of a log."""
        if text.lower() in _RAN.split():
            raise self.refuse(f"failure is {text!r}; leave the cell empty if the launch ran", line)
        if (engine, text) in self._failures:
            return self._failures[engine, text]
        head, _, message = text.partition(":")
        name = re.sub(r"[\s-]+", "_", head.strip().lower())
        if name in _KINDS:
            failure = Failure(_KINDS[name], message.strip() or f"The table only says {name}.")
        else:
            kinds = (kind for words, kind in _COMMON if re.search(words, text, re.IGNORECASE))
            kind = next(kinds, FailureKind.CRASHED)
            patterns = self._patterns.get(engine, LogPatterns(()))
            failure = failure_in(text, patterns) or Failure(kind, text, text[:_EXCERPT_CHARACTERS])
        self._failures[engine, text] = failure
        return failure

    @cached_property
    def _patterns(self) -> dict[str, LogPatterns]:
        return {name: patterns_of(card) for name, card in self.library.engines.items()}

    def check_figure(self, name: str, value: Any, line: int) -> None:
        """Raise `MalformedFile` unless a metric's value is valid: finite, and not negative."""
        if name in FLAGS and isinstance(value, bool):
            return
        if type(value) not in (int, float):
            raise self.refuse(f"{name} is {value!r}, not a number", line)
        if not 0 <= value <= sys.float_info.max:
            raise self.refuse(f"{name} is {value}; a metric is a finite number of at least 0", line)

    def check_cardinality(self, columns: Mapping[str, Collection[object]]) -> None:
        """Raise `MalformedFile` for a knob with more than `MOST_VALUES` values."""
        for name, values in columns.items():
            if len(values) > MOST_VALUES:
                raise self.refuse(
                    f"column {name!r} has {len(values):,} different values, more than the {MOST_VALUES:,} that the "
                    "search can compare; remove the column if it only numbers the rows"
                )

    def usable(self, rows: Sequence[Row]) -> tuple[list[Row], Strings]:
        """Return the rows that ran or failed by their configuration; with a note on the others."""
        kept = [row for row in rows if not row.failure or row.failure.blames_the_configuration]
        if not kept:
            raise self.refuse(
                "no row has information about a configuration: no launch ran, or failed because of it"
            )
        skipped = len(rows) - len(kept)
        note = f"{skipped} rows are skipped: the machine failed, not the configuration"
        return kept, (note,) if skipped else ()


def read_csv(reader: TableReader, text: str) -> Table:
    """Read the table of a CSV; raises `MalformedFile`."""
    header, body = csv_table(reader.path, text, {ENGINE: ", which names the engine of a row"})
    if not body:
        raise reader.refuse("there is no row below the header; a row is one recorded launch")
    lines = [line for line, _ in body]
    columns = {name: [cells[i] for _, cells in body] for i, name in enumerate(header) if name}
    columns, told = _of_launches(reader, text, columns)
    for line, name in zip(lines, columns[ENGINE], strict=True):
        if not name:
            raise reader.refuse("the engine is missing", line)
    names = {name: engine_name(name, reader.library) for name in set(columns[ENGINE])}
    engines = [names[name] for name in columns[ENGINE]]
    failures = columns.get(FAILURE, [""] * len(body))
    knobs = [name for name in columns if name not in (ENGINE, FAILURE) and not is_metric(name)]
    values = {name: _values(name, columns[name]) for name in knobs}
    reader.check_cardinality({name: set(column) for name, column in values.items()})
    if len(set(values.get("workload", []))) > 1:
        raise reader.refuse(
            "the column 'workload' has several values: figures of different loads cannot be compared. Keep the rows "
            "of one, or write one row per launch and a column per metric and workload, e.g. long:total_token_throughput"
        )
    metrics: dict[str, list[str]] = {}
    measured: list[dict[str, Metrics]] = [{} for _ in body]
    for column in filter(is_metric, columns):
        workload, _, metric = column.rpartition(":")
        metrics.setdefault(workload, []).append(metric)
        for line, cell, failure, row in zip(
            lines, columns[column], failures, measured, strict=True
        ):
            # Skip an empty cell, which was not measured, and a failed row, which has no metrics.
            if cell and not failure:
                row.setdefault(workload, {})[metric] = _figure(reader, column, cell, line)
    rows = []
    for i, line in enumerate(lines):
        settings = {name: column[i] for name, column in values.items()}
        version = str(settings.get(VERSION) or UNKNOWN)
        failed = reader.failure(engines[i], failures[i], line) if failures[i] else None
        rows.append(Row(line, Configuration(engines[i], settings), version, failed, measured[i]))
    kept, notes = reader.usable(rows)
    first = None if PLAIN in metrics else next(iter(metrics), None)
    return Table(str(reader.path), knobs, kept, metrics, first, (*told, *notes))


def _of_launches(
    reader: TableReader, text: str, columns: dict[str, list[str]]
) -> tuple[dict[str, list[str]], Strings]:
    """Return the columns that tell launches apart, with a note; in a load generator's table there
    are others."""
    if not (tool := tool_of(text)):
        return columns, ()
    roles = {name: role_of(name) for name in columns if name not in (ENGINE, VERSION, FAILURE)}
    differ = [
        name
        for name, role in roles.items()
        if role in (*LOAD, "fact") and len(set(columns[name])) > 1
    ]
    if differ:
        raise reader.refuse(
            f"a table of {tool}, whose rows differ in {', '.join(differ)}: another load is no better configuration; "
            "keep the rows of one"
        )
    other = [name for name, role in roles.items() if role and not is_metric(name)]
    note = f"a table of {tool}: {', '.join(other)} are of the client and its load, no knobs"
    return {name: cells for name, cells in columns.items() if name not in other}, (note,)


def _values(name: str, column: Sequence[str]) -> list[Scalar]:
    """Parse a knob's column; booleans next to numbers stay words, and a version is never a
    number."""
    if name == VERSION:
        return [cell or None for cell in column]
    parsed = {cell: parse_value(cell) for cell in set(column)}
    if not comparable(parsed.values()):
        parsed = {cell: plain(v) if isinstance(v, bool) else v for cell, v in parsed.items()}
    return [parsed[cell] for cell in column]


def _figure(reader: TableReader, column: str, text: str, line: int) -> Any:
    metric = column.rpartition(":")[2]
    value = parse_value(text) if metric in FLAGS else parse_metric(text)
    if value is None:
        raise reader.refuse(f"{column} is {text!r}, not a number such as 1234.5", line)
    # Look at the ordinary case here, because this is called for each of a million cells.
    if not (type(value) is float and 0.0 <= value < math.inf):
        reader.check_figure(metric, value, line)
    return value


def read_rows(reader: TableReader, text: str) -> Table:
    """Read a study's rows with information about a configuration; raises `MalformedFile`."""
    parsed = parse_rows(reader.path, text.encode())
    if parsed.torn and not parsed.launches:
        raise parsed.torn
    counted = [
        (line, launch)
        for line, launch in enumerate(parsed.launches, start=1)
        if not launch.without_meaning
    ]
    notes = ["the last line is incomplete and skipped"] if parsed.torn else []
    if skipped := len(parsed.launches) - len(counted):
        notes.append(f"{skipped} rows are skipped: their measurements are invalid")
    rows = [_row(reader, line, launch) for line, launch in counted]
    versions = {(row.configuration.engine, row.engine_version) for row in rows}
    if len(versions) > len(dict(versions)):
        # Make the version a knob, because rows of two versions of an engine are no repeats.
        rows = [
            replace(r, configuration=r.configuration.with_knobs(**{VERSION: r.engine_version}))
            for r in rows
        ]
    kept, more = reader.usable(rows)
    values = by_key(pair for row in kept for pair in row.configuration.knobs.items())
    metrics = by_key(
        (workload, name)
        for row in kept
        for workload, measured in row.metrics.items()
        for name in measured
        if name in METRICS
    )
    reader.check_cardinality({knob: set(used) for knob, used in values.items()})
    for knob, used in values.items():
        if not comparable(used):
            raise reader.refuse(f"{knob} is a number in some rows and true or false in others")
    workloads = chain.from_iterable(launch.trial.workloads for _, launch in counted)
    known = {workload: list(dict.fromkeys(names)) for workload, names in metrics.items()}
    first = next(workloads, None)
    return Table(str(reader.path), list(values), kept, known, first, (*notes, *more), of_study=True)


def _row(reader: TableReader, line: int, launch: Launch) -> Row:
    trial = launch.trial
    result = launch.result
    knobs = {}
    for name, value in trial.configuration.knobs.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise reader.refuse(f"{name} is {value}, which is not a knob's value", line)
        if not isinstance(value, Scalar):
            raise reader.refuse(f"{name} is {value!r}, not a plain value", line)
        knobs[name] = as_integer(value) if isinstance(value, float) else value
    metrics = {}
    for workload, measured in () if result.failure else result.metrics.items():
        metrics[workload] = {name: value for name, value in measured.items() if value is not None}
        for name, value in metrics[workload].items():
            if is_metric(name):
                reader.check_figure(name, value, line)
        if (workload,) == trial.workloads[:1]:
            metrics[PLAIN] = metrics[workload]
    return Row(
        line=line,
        configuration=Configuration(engine_name(trial.configuration.engine, reader.library), knobs),
        engine_version=trial.engine_version or UNKNOWN,
        failure=result.failure,
        metrics=metrics,
        times_s=result.times_s,
        command=trial.command,
        evidence=None if result.origin is Evidence.REPLAYED else result.origin,
    )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content; raises `BadInput` if it is not readable."""
    return hashlib.sha256(content_of(path)).hexdigest()


def read_table(path: Path, library: Library) -> Table:
    """Read the table in a study's rows, a bundle's, or a CSV; raises `BadInput`, `MalformedFile`
    with the line."""
    content = content_of(path)
    reader = TableReader(path, library)
    if content.startswith(ZIP_BEGINNING):
        return read_rows(reader, unpack(path, content)[1].get(RESULTS, b"").decode())
    if b"\0" in content or content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise MalformedFile(
            path, "is no text; a table is a CSV in UTF-8, or a study's results.jsonl"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MalformedFile(
            path, "is not UTF-8 text; spreadsheets save it as 'CSV UTF-8'", line
        ) from error
    if not text.strip():
        raise MalformedFile(
            path, "the file is empty; a table has a header line and a line per launch"
        )
    rows_follow = path.suffix == ".jsonl" or text.lstrip().startswith(("{", "["))
    if (rows_follow or text.startswith("Metric,")) and (tool := tool_of(text.lstrip())):
        raise MalformedFile(
            path,
            f"is a result of {tool}, which tells no configuration: see `autotune compare`, or `autotune calibrate "
            f"--data`; --on {REPLAY} takes a CSV with a row for each launch and a column for each knob",
        )
    return read_rows(reader, text) if rows_follow else read_csv(reader, text)


def check_unchanged(path: Path, content: str, sha256: str | None) -> None:
    """Raise `BadInput` if a file's digest differs from that at the study's start; None: it starts
    now."""
    if sha256 and content != sha256:
        raise BadInput(
            f"{path} has changed since the study began, so its figures cannot be mixed with the earlier ones: restore "
            "the file, or start a new study"
        )


def content_of(path: Path) -> bytes:
    """Read a replayed file; raises `BadInput` if it is not readable."""
    if path.is_dir():
        raise BadInput(
            f"--on {REPLAY}{path}: this is a folder; give a CSV, or a study's results.jsonl"
        )
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"--on {REPLAY}{path}: this file does not exist") from None
    except OSError as error:
        raise BadInput(f"--on {REPLAY}{path}: cannot be read ({error.strerror})") from error
