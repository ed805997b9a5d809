"""A row as a file gives it, before anything is understood, and the checks that its numbers are what they should be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import MalformedFile
from autotune.metrics.records import LATENCIES
from autotune.simulator.fit.loads import Load
from autotune.trial import Command

_NEVER_ZERO = re.compile(r"duration|completed|(request|output|total_token)_throughput|(?!std).*_(ttft|e2el)_ms")
_MAY_BE_ZERO = re.compile(r"failed|cache_hit_rate|request_goodput|std_.*")
_SAME = math.log(1.1)
"""Throughput times duration is the tokens, but for rounding and a client's own idea of when a run begins."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands, for messages.

    Attributes:
        row: in words, where lines mean nothing.
    """

    path: Path
    line: int | None = None
    row: str = ""

    def wrong(self, problem: str) -> MalformedFile:
        """An error that names file and row."""
        return MalformedFile(self.path, f"{self.row}: {problem}" if self.row else problem, self.line)


@dataclass(frozen=True, slots=True)
class RawRow:
    """One benchmark of a file.

    Attributes:
        label: short; unique within its file.
        engine_version: as the engine tells it; words behind the number are allowed.
        hardware: a node by name, ``8xH200`` or ``MI300X``.
        gpus: None: as `hardware` says, else all of the node.
        model: its id; None: as the command names it.
        metrics: under the names of `autotune.metrics.formulas`, checked; empty when it failed.
    """

    label: str
    place: Place
    command: Command
    engine_version: str
    hardware: str
    load: Load
    metrics: Mapping[str, float]
    failure: str | None = None
    gpus: int | None = None
    model: str | None = None


def number(place: Place, name: str, value: Any) -> float | None:
    """A figure of a file; None where there is none.

    Raises:
        MalformedFile: text, NaN, infinity or a negative number.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        figure = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        figure = math.nan
    if not math.isfinite(figure) or figure < 0:
        raise place.wrong(f"{name} is {value!r}; a finite number of at least 0 is needed, or nothing")
    return figure


def whole(place: Place, name: str, value: Any) -> int | None:
    """A whole number above 0 of a file; None where there is none."""
    figure = number(place, name, value)
    if figure is not None and (figure != int(figure) or figure < 1):
        raise place.wrong(f"{name} is {value!r}; a whole number above 0 is needed")
    return None if figure is None else int(figure)


def checked(place: Place, given: Mapping[str, Any], needed: tuple[str, ...]) -> dict[str, float]:
    """The metrics of a row that ran.

    Args:
        given: metric name to what stands in the file.
        needed: metrics without which the row is of no use.

    A gap between tokens of 0 ms is one that nobody measured, and left out.

    Raises:
        MalformedFile: a metric that is missing, no number, or in another unit than its name says.
    """
    metrics: dict[str, float] = {}
    for name, value in given.items():
        figure = number(place, name, value)
        if figure is None:
            continue
        if figure == 0 and _NEVER_ZERO.fullmatch(name):
            raise place.wrong(f"{name} is 0; write tokens or requests per second, ms or s, or say why it failed")
        if figure > 0 or _MAY_BE_ZERO.fullmatch(name):
            metrics[name] = figure
    missing = [name for name in needed if name not in metrics]
    if missing:
        raise place.wrong(f"no {missing[0]}; a row that ran needs {', '.join(needed)}, one that did not its failure")
    _check_units(place, metrics)
    return metrics


def _check_units(place: Place, metrics: Mapping[str, float]) -> None:
    duration = metrics.get("duration")
    if duration is None:
        return
    tokens = {
        "total_token_throughput": ("total_input_tokens", "total_output_tokens"),
        "output_throughput": ("total_output_tokens",),
    }
    for rate, counted in tokens.items():
        if rate not in metrics or not all(name in metrics for name in counted):
            continue
        expected = sum(metrics[name] for name in counted) / duration
        if expected <= 0 or abs(math.log(metrics[rate] / expected)) > _SAME:
            raise place.wrong(
                f"{rate} is {metrics[rate]:g}, but the tokens over the duration ({duration:g} s) are {expected:g} "
                "per second; check the units"
            )
    for name in (f"mean_{latency}_ms" for latency in LATENCIES):
        if metrics.get(name, 0.0) > duration * 1e3 * 1.01:
            raise place.wrong(f"{name} is {metrics[name]:g} ms, longer than the run of {duration:g} s; check the units")
