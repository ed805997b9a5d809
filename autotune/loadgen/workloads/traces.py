"""Traces: ``trace:FILE`` replays when requests came, how long they were and which prefixes they shared.

Two published forms are read, told apart by the file's first line:

Mooncake (https://github.com/kvcache-ai/Mooncake, FAST25-release), one JSON object per line: ``timestamp`` in ms,
``input_length``, ``output_length``, ``hash_ids``. Each id stands for one block of 512 prompt tokens, the last one for
what is left; equal ids are equal blocks.

Azure's LLM inference traces (https://github.com/Azure/AzurePublicDataset), CSV: ``TIMESTAMP`` (date and time),
``ContextTokens``, ``GeneratedTokens``. They say nothing of prefixes.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.workloads.prompt_files import file_version, json_object

BLOCK_TOKENS = 512
"""Prompt tokens of one of Mooncake's hash ids."""

TRACE_FORM = re.compile(r"trace:(.+?)(?::x(\d+(?:\.\d+)?(?:e[+-]?\d+)?))?")
"""A trace as a workload, with how many times as fast it is replayed."""

_MOST = 2**31
_MOST_MS = 1e13
"""300 years: what is beyond is no time of a trace."""

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_AZURE_FORM = f"a header {','.join(_AZURE)} and rows such as 2023-11-16 18:15:46.6805900,374,44"
_MOONCAKE_FORM = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}'


class Trace(NamedTuple):
    """Requests of a trace, in its order.

    Attributes:
        send_s: seconds after the first, shape (n,), ascending.
        input_tokens: shape (n,).
        output_tokens: shape (n,), at least 1.
        blocks: hash ids of each prompt's blocks of `BLOCK_TOKENS`; None where the trace tells none.
        lines: where each stands in the file, from 1.
    """

    send_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    blocks: Sequence[tuple[int, ...] | None]
    lines: Ints

    @property
    def rate(self) -> float:
        """Requests per second, from the first to the last; at most one a millisecond, as times are in such."""
        return len(self.lines) / max(float(self.send_s[-1]), 1e-3 * len(self.lines))


class _Row(NamedTuple):
    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None


def read_trace(path: Path) -> Trace:
    """The requests of a trace; kept until the file changes.

    Raises:
        BadInput: the file cannot be read as text.
        MalformedFile: it has neither form, a line is broken, or its time is before the line's above.
    """
    try:
        return _read_trace(path, *file_version(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"trace {path} cannot be read as UTF-8 text: {error}") from error


@lru_cache(maxsize=4)
def _read_trace(path: Path, *_: int) -> Trace:
    rows: list[_Row] = []
    lines: list[int] = []
    parse: Callable[[Path, int, str], _Row] | None = None
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if parse is None:
                parse, is_header = _parser(path, number, line)
                if is_header:
                    continue
            row = parse(path, number, line)
            if rows and row.at_s < rows[-1].at_s:
                problem = f"its time is before that of line {lines[-1]}; sort the trace by time"
                raise MalformedFile(path, problem, number)
            rows.append(row)
            lines.append(number)
    if not rows:
        raise MalformedFile(path, f"holds no request; a line per request: {_MOONCAKE_FORM}, or {_AZURE_FORM}", 1)
    at_s = np.array([row.at_s for row in rows])
    return Trace(
        send_s=at_s - at_s[0],
        input_tokens=np.array([row.input_tokens for row in rows], dtype=np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], dtype=np.int64),
        blocks=[row.blocks for row in rows],
        lines=np.array(lines, dtype=np.int64),
    )


def _parser(path: Path, number: int, line: str) -> tuple[Callable[[Path, int, str], _Row], bool]:
    """Choose the parser of a file's lines by its first one; with True if that is a header."""
    if line.lstrip().startswith("{"):
        return _mooncake, False
    columns = [name.strip() for name in _cells(line)]
    if all(name in columns for name in _AZURE):
        places = [columns.index(name) for name in _AZURE]
        return lambda path, number, line: _azure(path, number, line, places), True
    problem = f"neither form of a trace: write {_MOONCAKE_FORM} (Mooncake), or {_AZURE_FORM} (Azure)"
    raise MalformedFile(path, problem, number)


def _mooncake(path: Path, number: int, line: str) -> _Row:
    row = json_object(path, number, line, f"write {_MOONCAKE_FORM}")
    at_ms = row.get("timestamp")
    if not isinstance(at_ms, int | float) or isinstance(at_ms, bool) or not 0 <= at_ms < _MOST_MS:
        problem = f"timestamp {_told(at_ms)} is no number of milliseconds from 0 on; write {_MOONCAKE_FORM}"
        raise MalformedFile(path, problem, number)
    read, written = (_length(path, number, name, row.get(name)) for name in ("input_length", "output_length"))
    return _Row(at_ms / 1e3, read, written, _blocks(path, number, row.get("hash_ids"), read))


def _blocks(path: Path, number: int, ids: Any, read: int) -> tuple[int, ...] | None:
    """The hash ids of a prompt of so many tokens, checked."""
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**63 for one in ids):
        raise MalformedFile(path, f"hash_ids must be a list of whole numbers; write {_MOONCAKE_FORM}", number)
    expected = math.ceil(read / BLOCK_TOKENS)
    if len(ids) != expected:
        problem = (
            f"{len(ids)} hash_ids for {read} prompt tokens; in Mooncake's form each stands for {BLOCK_TOKENS} tokens, "
            f"so that there are {expected}"
        )
        raise MalformedFile(path, problem, number)
    return tuple(ids)


def _azure(path: Path, number: int, line: str, places: Sequence[int]) -> _Row:
    cells = _cells(line)
    try:
        at, read, written = (cells[place].strip() for place in places)
        time = datetime.fromisoformat(at)
        counts = int(read), int(written)
    except (ValueError, IndexError) as error:
        raise MalformedFile(path, f"no row of an Azure trace: write {_AZURE_FORM}", number) from error
    lengths = [_length(path, number, name, count) for name, count in zip(_AZURE[1:], counts, strict=True)]
    # Some of the published files name the zone, which is UTC, and others do not.
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return _Row((zoned - _EPOCH).total_seconds(), lengths[0], lengths[1], None)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error:
        return []


def _length(path: Path, number: int, name: str, value: Any) -> int:
    """A number of tokens; an answer of none, which no engine can be asked for, becomes one of one."""
    is_answer = name in ("output_length", "GeneratedTokens")
    if isinstance(value, int) and not isinstance(value, bool) and (not is_answer) <= value < _MOST:
        return max(value, 1)
    raise MalformedFile(path, f"{name} {_told(value)} is no whole number above 0", number)


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def with_speedup(names: Sequence[str], speedup: float | None) -> tuple[str, ...]:
    """The workloads' names, with the traces among them replayed so many times as fast; None: as they are.

    Raises `BadInput` for a number that is none above 0, or where nothing is a trace or one has its speed already.
    """
    traces = [name for name in names if name.startswith("trace:")]
    if speedup is None:
        return tuple(names)
    if not 0 < speedup < math.inf:
        raise BadInput(f"--speedup {speedup:g}: write a number above 0, such as 10 for ten times as fast")
    if not traces:
        raise BadInput(f"--speedup {speedup:g} is for a trace: give one with --workload trace:FILE")
    for name in traces:
        match = TRACE_FORM.fullmatch(name)
        if match is not None and match[2]:
            raise BadInput(f"--speedup {speedup:g}: {name} says already how fast it is replayed")
    return tuple(f"{name}:x{speedup:.12g}" if name in traces else name for name in names)
