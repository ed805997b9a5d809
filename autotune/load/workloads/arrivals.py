"""Arrival times of the requests of a load."""

from __future__ import annotations

import math
import zlib
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt, ValidationError, model_validator

from autotune.base import BadInput
from autotune.base.arrays import Floats
from autotune.engines import Entry

_STREAM = 4  # Separates these random numbers from those of lengths and prompts

_KINDS_OF = {
    "concurrency": ("closed_loop",),
    "request_rate": ("constant", "poisson", "gamma"),
    "burstiness": ("gamma",),
    "speedup": ("trace",),
    "ramp_s": ("closed_loop",),
}
"""Kinds of arrival with each number; the first two numbers are required."""


class Arrival(Entry):
    """Times at which requests are sent; rates are in requests per second.

    ``all_at_once``: all in the same instant. ``closed_loop``: `concurrency` in flight, the next one
    when one ends; its streams begin evenly over `ramp_s` seconds, so that no burst of first prompts
    is taken for the load itself. ``constant``: `request_rate`, evenly spaced. ``poisson``:
    `request_rate` with exponentially distributed gaps. ``gamma``: gaps of a gamma distribution
    whose shape is `burstiness`: below 1 is burstier than Poisson, above 1 more even. ``trace``: at
    the times of a trace, `speedup` times as fast.

    Names and meaning are those of ``vllm bench serve`` (``--request-rate``, ``--burstiness``).
    """

    kind: Literal["all_at_once", "closed_loop", "constant", "poisson", "gamma", "trace"] = (
        "all_at_once"
    )
    concurrency: PositiveInt | None = None
    request_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    burstiness: float = Field(default=1.0, ge=0.001, allow_inf_nan=False)
    speedup: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    ramp_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Arrival:
        for name, kinds in _KINDS_OF.items():
            value = getattr(self, name)
            default = type(self).model_fields[name].default
            if value != default and self.kind not in kinds:
                raise ValueError(f"{self.kind} has no {name}; {' and '.join(kinds)} may have one")
            if value is None and self.kind in kinds:
                raise ValueError(f"{self.kind} needs {name}")
        return self

    @property
    def open_loop(self) -> bool:
        """True if requests are sent at fixed times, independent of the server."""
        return self.request_rate is not None or self.kind == "trace"

    def describe(self) -> str:
        """Return its name in reports."""
        faster = "" if self.speedup == 1 else f", {self.speedup:g} times as fast"
        bursts = "" if self.burstiness == 1 else f" with burstiness {self.burstiness:g}"
        begun = f", begun over {self.ramp_s:.3g} s" if self.ramp_s else ""
        rate = f"{self.request_rate or 0:g} requests per second"
        return {
            "all_at_once": "all at once",
            "closed_loop": f"{self.concurrency} at a time{begun}",
            "constant": f"{rate}, evenly spaced",
            "poisson": f"{rate}, Poisson arrivals",
            "gamma": f"{rate}, gamma arrivals{bursts}",
            "trace": f"at the times of the trace{faster}",
        }[self.kind]


def arrival_of(
    concurrency: int | None = None, request_rate: float | None = None, burstiness: float = 1.0
) -> Arrival:
    """Return the arrival process for the numbers of a command line; none = all at once.

    Args:
        burstiness: 1 = Poisson; infinite = evenly spaced, as in ``vllm bench serve``.

    Raises `BadInput`: numbers that exclude each other or are out of range.
    """
    if request_rate is None:
        if burstiness != 1:
            raise BadInput("burstiness belongs to a request rate: give one")
        kind = "all_at_once" if concurrency is None else "closed_loop"
    else:
        if concurrency is not None:
            raise BadInput(
                "a concurrency and a request rate are mutually exclusive: a load is closed or open"
            )
        kind = {1: "poisson", math.inf: "constant"}.get(burstiness, "gamma")
    fields = {"kind": kind, "concurrency": concurrency, "request_rate": request_rate}
    if kind == "gamma":
        fields["burstiness"] = burstiness
    try:
        return Arrival.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{first['loc'][0]} {first['input']}: " if first["loc"] else ""
        raise BadInput(f"{where}{first['msg'].removeprefix('Value error, ')}") from error


def send_times(arrival: Arrival, requests: int, workload: str, point: int, seed: int) -> Floats:
    """Return the send times, seconds after the first, shape (requests,), ascending; zeros for a
    closed loop.

    The same for the same (seed, workload, load point). Random gaps are stretched so that together
    they take as long as the rate asks for, as ``vllm bench serve`` does: a seed moves the bursts,
    not the mean rate.
    """
    rate = arrival.request_rate
    if rate is None:
        return np.zeros(requests)
    if arrival.kind == "constant":
        return np.arange(requests) / rate
    means = np.full(requests - 1, 1 / rate)
    generator = np.random.default_rng([seed, zlib.crc32(workload.encode()), point, _STREAM])
    gaps = means * generator.gamma(arrival.burstiness, 1 / arrival.burstiness, len(means))
    if (total := float(gaps.sum())) > 0:
        gaps *= means.sum() / total
    return np.concatenate([[0.0], np.cumsum(gaps)])
