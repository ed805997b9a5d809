"""The workload of a measured row: what a file says of it, as `autotune.loadgen` knows it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import BadInput
from autotune.loadgen.workloads import LoadPoint, Workload, load_workload, workload_names
from autotune.loadgen.workloads.arrivals import Arrival, arrival_of
from autotune.loadgen.workloads.lengths import FixedLengths, Lengths, ShareGPTLengths, TableLengths
from autotune.space.library import Library

CHAT = "sharegpt"
"""The packaged workload whose lengths stand in for the dataset of that name."""

_ENOUGH = 0.95
"""Of the requests that were sent; where fewer came back, the load was another one than was asked for."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a file says of a load.

    Attributes:
        name: a workload as ``--workload`` takes it; empty: made of the other figures.
        input_tokens: of every prompt; None together with `output_tokens`: chat prompts with ShareGPT's lengths.
        prompts: how many were asked for.
        completed: how many came back; None = all.
        concurrency, request_rate: both None = all at once.
    """

    name: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompts: int | None = None
    completed: int | None = None
    concurrency: int | None = None
    request_rate: float | None = None


def workload_of(load: Load, library: Library) -> Workload:
    """The workload that was served: one that has a name, where it is the same, else one of its own.

    Where up to one request in twenty did not come back (a client out of file descriptors), only those that did count:
    the others were no load.

    Raises:
        BadInput: an unknown name, figures that make no load, or too many requests that did not come back.
    """
    if load.name:
        workload = load_workload(load.name, library)
        if load.concurrency is not None or load.request_rate is not None:
            workload = workload.with_arrival(arrival_of(load.concurrency, load.request_rate))
    else:
        workload = _made(load, library)
    return _served(workload, load.completed)


def _made(load: Load, library: Library) -> Workload:
    if (load.input_tokens is None) != (load.output_tokens is None) or load.prompts is None:
        raise BadInput("a load needs a workload, or input_len, output_len and num_prompts")
    lengths: Lengths
    if load.input_tokens is not None and load.output_tokens is not None:
        lengths = FixedLengths(input_tokens=load.input_tokens, output_tokens=load.output_tokens)
        stem = f"random:{load.input_tokens}:{load.output_tokens}:{load.prompts}"
    else:
        lengths, stem = load_workload(CHAT, library).points[0].lengths, f"{CHAT}:{load.prompts}"
    arrival = arrival_of(load.concurrency, load.request_rate)
    point = LoadPoint(prompts=load.prompts, arrival=arrival, lengths=lengths)
    for name in workload_names(library):
        known = load_workload(name, library)
        if known.prefix is None and [one.model_copy(update={"label": ""}) for one in known.points] == [point]:
            return known
    name = f"{stem}{_suffix(arrival)}"
    return Workload(name=name, description=f"{load.prompts} prompts", origin="a measured row", points=[point])


def _served(workload: Workload, completed: int | None) -> Workload:
    sent = sum(point.prompts for point in workload.points)
    if completed is None or completed >= sent:
        return workload
    if completed < _ENOUGH * sent or len(workload.points) > 1:
        raise BadInput(f"only {completed} of {sent} requests came back, so the load was not the one that was asked for")
    return workload.model_copy(update={"points": [workload.points[0].model_copy(update={"prompts": completed})]})


def _suffix(arrival: Arrival) -> str:
    if arrival.concurrency is not None:
        return f" c{arrival.concurrency}"
    return "" if arrival.request_rate is None else f" {arrival.request_rate:g}/s"


def shape(workload: Workload) -> str:
    """The class of a workload: its lengths and how it arrives, without the figures of the arrival.

    Points of one curve, 4 at a time to 128, are one class: a fit that knows one of them knows the others.
    """
    kinds = [f"{_lengths(point.lengths)} {point.arrival.kind.replace('_', ' ')}" for point in workload.points]
    text = " + ".join(dict.fromkeys(kinds))
    return f"{text}, alike" if workload.prefix is not None else text


def _lengths(lengths: Lengths) -> str:
    if isinstance(lengths, FixedLengths):
        return f"{lengths.input_tokens}→{lengths.output_tokens}"
    if isinstance(lengths, TableLengths):
        return lengths.stand_in_for or "chat"
    return "ShareGPT" if isinstance(lengths, ShareGPTLengths) else lengths.file
