"""A node without GPUs, for every engine's own command line. `predict` simulates one command.

node/                 memory plan, step time, batching: `simulate`
fit/                  ``autotune calibrate``: measurements to the simulator's figures
emulator/             the same node behind HTTP, by the wall clock: ``autotune emulate``
resolve_command       a command line to the server that it starts
prediction_intervals  90 % intervals of predictions and of comparisons
"""

from __future__ import annotations

from typing import Any

from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.machine import node as node_card
from autotune.engines.registry import split_command
from autotune.load.workloads import load_workload

from .resolve_command import model_of, prediction, resolve_command

__all__ = ["predict"]


def predict(
    command: str,
    workload: str = "sharegpt",
    *,
    hardware: str,
    gpus: int | None = None,
    version: str | None = None,
    seed: int = 0,
    library: Library | None = None,
) -> dict[str, Any]:
    """Simulate an engine's command line, as typed: the object that ``autotune simulate --json``
    prints.

    By default on all GPUs of the node (a name, or a YAML file), in the newest version known. Raises
    `BadInput` as it.
    """
    library = library or Library()
    parsed, card, load = (
        split_command(command),
        node_card(hardware, library),
        load_workload(workload, library),
    )
    model = model_of(parsed, library, version)
    context = Context(model, card, gpus or card.gpus, "", load.longest_request)
    return prediction(resolve_command(parsed, library, context, version), load, seed)
