"""Traces, ``trace:FILE``: when requests came, how long they were and which prefixes they shared.

Mooncake's form (https://github.com/kvcache-ai/Mooncake, FAST25-release) has ``timestamp`` in ms,
``input_length``, ``output_length`` and ``hash_ids``: each id stands for one block of prompt tokens,
the last one for what is left, and equal ids are equal blocks. AIPerf adds prompts' texts; Alibaba's
Bailian traces count seconds. Azure's and BurstGPT's are tables without prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from autotune.base import MalformedFile
from autotune.base.arrays import Floats

from ..tokenizers import Approximate
from .prompt_files import (
    KEYS,
    FileRequest,
    Half,
    Reading,
    RequestLine,
    Said,
    kept,
    row_config,
    session_of,
)

BLOCK_TOKENS = 512
"""Prompt tokens of one of Mooncake's hash ids."""

_MOST = 1e13  # 300 years of ms: larger values are no times of a trace
_SLOW, _FAST = 0.02, 0.5
"""Requests per unit of time: fewer are 20 or less a second if the unit is 1 ms, and one in 50 s or
less if it is 1 s; more are 500 or more a second in ms."""


class Trace(NamedTuple):
    """Requests of a trace, in its order, and what of it is not sent.

    Attributes:
        unit_s: unit of the requests' times, in seconds.
        block_tokens: tokens of one hash id.
    """

    rows: Sequence[FileRequest]
    said: Said
    unit_s: float
    block_tokens: int

    @property
    def send_s(self) -> Floats:
        """Return the times in seconds after the first, shape (n,), ascending."""
        begin = self.rows[0].at
        return np.array([(row.at - begin) * self.unit_s for row in self.rows])

    @property
    def rate(self) -> float:
        """Return requests per second, from the first to the last; at most one per millisecond (the
        resolution)."""
        return len(self.rows) / max(float(self.send_s[-1]), 1e-3 * len(self.rows))

    def part(self, half: Half | None) -> Trace:
        """Return one half of the requests, by time; all of them without a half."""
        middle = len(self.rows) // 2
        if half is None or not middle:
            return self
        return self._replace(rows=self.rows[(half - 1) * middle : half * middle])


class _TraceLine(RequestLine):
    model_config = row_config("trace")
    timestamp: Annotated[float, Field(ge=0, le=_MOST, allow_inf_nan=False)] | None = None
    date: datetime | None = None
    hash_ids: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = None

    @property
    def time(self) -> float | None:
        """Return the time as it is written; of a date, seconds since 1970 (in UTC, which only some
        of Azure's files name)."""
        if self.date is None:
            return self.timestamp
        return self.date.replace(tzinfo=self.date.tzinfo or UTC).timestamp()


@kept
def waits(path: Path) -> bool:
    """Return whether a trace's rows are turns that wait for the previous answer: some have a
    session, and no time."""
    rows = (row for _, row in Reading(path, "trace").rows())
    return any(session_of(row) is not None and row.get("timestamp") is None for row in rows)


@kept
def read_trace(path: Path, output_len: int | None = None, unit: str = "") -> Trace:
    """Read the requests of a trace.

    Args:
        output_len: the length of answers that the file lacks.
        unit: of its times, ``s`` or ``ms``; empty = by the form, or as `_unit_s` says.

    Raises `BadInput`; `MalformedFile`: another form, or decreasing times.
    """
    reading = Reading(path, "trace", output_len)
    timed: list[FileRequest] = []
    in_seconds = False
    for number, row in reading.rows():
        if isinstance(row, dict):
            in_seconds = in_seconds or not row.keys().isdisjoint(KEYS["seconds"])
            if "0" in map(row.get, KEYS["none if failed"]):
                reading.said["failed calls (0 tokens) not sent"] += 1
                continue
        line = reading.checked(number, row, _TraceLine)
        if line.time is None:
            raise reading.refused(number, "timestamp: Field required", row)
        if timed and line.time < timed[-1].at:
            problem = f"its time is before that of line {timed[-1].line}; sort the trace by time"
            raise MalformedFile(path, problem, number)
        if (request := reading.request(number, line)) is not None:
            blocks = tuple(line.hash_ids or ())
            timed.append(request._replace(at=line.time, blocks=blocks))
    rows, said = reading.ended(timed)
    unit_s = {"s": 1.0, "ms": 1e-3}.get(unit) or (1.0 if in_seconds else _unit_s(path, rows))
    return Trace(rows, said, unit_s, _block_tokens(reading, rows))


def _unit_s(path: Path, rows: Sequence[FileRequest]) -> float:
    """Return the unit of times of no known form, in seconds, by the rate that it would mean.

    Mooncake's are whole milliseconds; GuideLLM and ``vllm bench serve`` read seconds.

    Raises `MalformedFile`: either would be an ordinary rate.
    """
    rate = (len(rows) - 1) / ((rows[-1].at - rows[0].at) or math.inf)
    whole = all(row.at.is_integer() for row in rows)
    if rate <= _SLOW or (whole and rate < _FAST):
        return 1e-3
    if not whole and rate >= _FAST:
        return 1.0
    problem = (
        f"its times are {1e3 * rate:.3g} requests a second in milliseconds, {rate:.3g} in seconds"
    )
    raise MalformedFile(path, f"{problem}: write trace:{path}:ms or trace:{path}:s")


def _block_tokens(reading: Reading, rows: Sequence[FileRequest]) -> int:
    """Return the tokens of one hash id: a size that fits all rows, Mooncake's or a power of two if
    there is one.

    Raises `MalformedFile`: a row to which no size of the rows before it fits.
    """
    least = 1
    most = 2**31
    size = BLOCK_TOKENS
    for row in rows:
        if not (count := len(row.blocks)):
            continue
        tokens = row.input_tokens(Approximate())
        least = max(least, -(-tokens // count))
        most = min(most, (tokens - 1) // (count - 1) if count > 1 else most)
        if least > most:
            problem = f"{count} hash_ids for {tokens} prompt tokens; in the lines above each is {size} tokens"
            raise reading.refused(row.line, f"{problem}, so {-(-tokens // size)} are expected")
        usual = (BLOCK_TOKENS, 1 << (least - 1).bit_length(), least)
        size = next(one for one in usual if least <= one <= most)
    return size
