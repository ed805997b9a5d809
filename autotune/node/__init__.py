"""A node without GPUs, in virtual time and behind HTTP.

It hides the physics of a server. Public: `predict`, `simulate.simulate`, `resolve_command`,
``fit/`` (``autotune calibrate``) and ``emulator/`` (``autotune emulate``).

>>> from autotune.node import predict
>>> predict("vllm serve Qwen/Qwen3-32B", hardware="h200", gpus=1)["evidence"]
'simulated'
"""

from autotune.base import Json
from autotune.engines import Context, Library, split_command
from autotune.engines.machine import node as node_card
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
) -> Json:
    """Simulate an engine's command line, as typed: the object that ``autotune simulate --json``
    prints.

    By default on all GPUs of the node (a name, or a YAML file), in the newest version known. Raises
    `BadInput` as it.
    """
    library = library or Library()
    parsed = split_command(command)
    card = node_card(hardware, library)
    load = load_workload(workload, library)
    model = model_of(parsed, library, version)
    context = Context(model, card, gpus or card.gpus, "", load.longest_request)
    return prediction(resolve_command(parsed, library, context, version), load, seed)
