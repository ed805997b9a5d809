"""What is sent to a server: `Workload` and the names by which users know them.

A workload is a list of load points, measured one after the other on one server. The named ones are
documents of ``search_spaces/workloads/``; ``random:IN:OUT[:N]`` and ``jsonl:FILE`` are made on the spot.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotune.client.requests import Requests
from autotune.errors import BadInput, UnknownName
from autotune.load.datasets import FileLengths, FixedLengths, Lengths, Part
from autotune.space.library import Library, load

_RANDOM = re.compile(r"random:([1-9]\d{0,8}):([1-9]\d{0,8})(?::([1-9]\d{0,8}))?")
_DEFAULT_PROMPTS = 1000
_HINT = "Or random:IN:OUT[:N], or jsonl:FILE; others are described in search_spaces/workloads/<name>.yaml."


class Arrival(Part):
    """When requests are sent.

    ``all_at_once``: all in the same instant. ``closed_loop``: `concurrency` in flight, the next one when one ends.
    ``rate``: `request_rate` per second with gamma-distributed gaps; `burstiness` is the gamma's shape, 1 = Poisson,
    as in ``vllm bench serve``.
    """

    kind: Literal["all_at_once", "closed_loop", "rate"] = "all_at_once"
    concurrency: int | None = Field(default=None, gt=0)
    request_rate: float | None = Field(default=None, gt=0)
    burstiness: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Arrival:
        needs = {"closed_loop": self.concurrency, "rate": self.request_rate}
        if self.kind in needs and needs[self.kind] is None:
            raise ValueError("closed_loop needs concurrency, rate needs request_rate")
        return self

    def describe(self) -> str:
        """How a report names it."""
        if self.kind == "closed_loop":
            return f"{self.concurrency} at a time"
        if self.kind == "rate":
            return f"{self.request_rate:g} requests per second"
        return "all at once"


class Prefix(Part):
    """Prompts that begin alike: the first `tokens` are the same within each of `groups` groups."""

    tokens: int = Field(gt=0)
    groups: int = Field(gt=0)


class LoadPoint(Part):
    """One load: so many prompts of such lengths, sent so."""

    label: str = ""
    prompts: int = Field(gt=0)
    arrival: Arrival = Arrival()
    lengths: Lengths


class Workload(BaseModel):
    """``search_spaces/workloads/<name>.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str
    origin: str = Field(description="who uses it, and which of its figures are choices of this project")
    points: list[LoadPoint] = Field(min_length=1)
    prefix: Prefix | None = None
    streaming: bool = True

    @model_validator(mode="after")
    def _check(self) -> Workload:
        if self.prefix is not None:
            shortest = min(p.lengths.input_tokens if isinstance(p.lengths, FixedLengths) else 0 for p in self.points)
            if shortest < self.prefix.tokens:
                raise ValueError("prefix.tokens must not exceed the input tokens of a load point of fixed lengths")
        return self

    @property
    def longest_request(self) -> int:
        """Input + output tokens of the longest request that may be drawn."""
        return max(point.lengths.longest for point in self.points)

    def with_concurrency(self, concurrency: int) -> Workload:
        """The same prompts with so many in flight, as ``--concurrency`` asks."""
        return self._with_arrival(Arrival(kind="closed_loop", concurrency=concurrency))

    def with_request_rate(self, request_rate: float) -> Workload:
        """The same prompts arriving at random at that rate per second, as ``--request-rate`` asks."""
        return self._with_arrival(Arrival(kind="rate", request_rate=request_rate))

    def _with_arrival(self, arrival: Arrival) -> Workload:
        points = [point.model_copy(update={"arrival": arrival}) for point in self.points]
        return self.model_copy(update={"points": points})

    def draw(self, position: int, seed: int) -> Requests:
        """The requests of one load point: the same for one seed, new prompts for another seed or point."""
        point = self.points[position]
        generator = np.random.default_rng([seed, position])
        read, written = point.lengths.draw(point.prompts, generator)
        group = np.full(point.prompts, -1)
        if self.prefix is not None:
            group = generator.permutation(np.arange(point.prompts) % self.prefix.groups)
        return Requests(
            input_tokens=read,
            output_tokens=written,
            send_s=_send_times(point, generator),
            group=group,
            prefix_tokens=self.prefix.tokens if self.prefix else 0,
            concurrency=point.arrival.concurrency or point.prompts,
            texts=point.lengths.texts(point.prompts) if isinstance(point.lengths, FileLengths) else (),
        )


def _send_times(point: LoadPoint, generator: np.random.Generator) -> NDArray[np.float64]:
    arrival = point.arrival
    if arrival.kind != "rate" or arrival.request_rate is None:
        return np.zeros(point.prompts)
    scale = 1.0 / (arrival.request_rate * arrival.burstiness)
    gaps = generator.gamma(arrival.burstiness, scale, point.prompts)
    times: NDArray[np.float64] = np.cumsum(gaps) - gaps[0]
    return times


def load_workload(text: str, library: Library | None = None) -> Workload:
    """A workload by name, or by ``random:IN:OUT[:N]`` or ``jsonl:FILE``.

    Args:
        library: where the named ones are looked up; None = the packaged ones.

    Raises `UnknownName` for a name that does not exist, `BadInput` for a form that is not right.
    """
    if text.startswith("random:"):
        return _random(text)
    if text.startswith("jsonl:"):
        return _jsonl(text)
    known = _named(library or Library())
    if text not in known:
        raise UnknownName("workload", text, known, _HINT)
    return known[text]


def workload_names(library: Library | None = None) -> list[str]:
    """The names that `load_workload` knows."""
    return sorted(_named(library or Library()))


def _named(library: Library) -> dict[str, Workload]:
    return {workload.name: workload for workload in map(_read, library.paths("workloads"))}


@lru_cache(maxsize=256)
def _read(path: Path) -> Workload:
    return load(path, Workload)


def _random(text: str) -> Workload:
    match = _RANDOM.fullmatch(text)
    if match is None:
        raise BadInput(f"malformed workload {text!r}: write random:IN:OUT or random:IN:OUT:N with whole numbers > 0")
    read, written, count = (int(part) if part else _DEFAULT_PROMPTS for part in match.groups())
    point = LoadPoint(prompts=count, lengths=FixedLengths(input_tokens=read, output_tokens=written))
    description = f"{count} prompts of {read} random tokens with answers of {written} tokens, all at once"
    return Workload(name=text, description=description, origin="asked for by this form", points=[point])


def _jsonl(text: str) -> Workload:
    file = text.removeprefix("jsonl:")
    if not file:
        raise BadInput(f"malformed workload {text!r}: write jsonl:FILE")
    lengths = FileLengths(kind="jsonl", file=file)
    point = LoadPoint(prompts=lengths.rows, lengths=lengths)
    description = f"the {lengths.rows} requests of {file}, all at once"
    return Workload(name=text, description=description, origin=f"the file {file}", points=[point])
