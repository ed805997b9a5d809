"""Knobs that the simulated node does not read: its figures say nothing of their values."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from autotune.base import BadInput
from autotune.engines import Configuration, EngineSpace
from autotune.load.workloads import load_workload

from .calibration import ServerSetup
from .simulate import knobs_read

_LOAD = "random:64:4:4"


def with_unread(space: EngineSpace, configurations: Iterable[Configuration]) -> EngineSpace:
    """Return a space with the knobs that are read in none of these configurations.

    A knob in a condition of the engine's card counts as read. The unread knobs of an engine or a
    model without figures are unknown: none.
    """
    context = space.context
    read = set[str]()
    node = context.model, context.hardware, context.gpus
    with suppress(BadInput):
        for one in dict.fromkeys(configurations):
            setup = ServerSetup(one.engine, context.version, one.knobs, *node)
            read |= knobs_read(setup, load_workload(_LOAD))
    if not read:
        return replace(space, unread=frozenset())
    return replace(space, unread=frozenset(space.card.knobs) - read - space.chosen)


def with_unread_settings(
    configurations: Mapping[int, Configuration], spaces: Mapping[str, EngineSpace]
) -> frozenset[int]:
    """Return the positions of configurations with a setting that the simulated node does not
    read."""
    blind = {name: space for name, space in spaces.items() if space.unread}
    return frozenset(
        position
        for position, one in configurations.items()
        if one.engine in blind and blind[one.engine].seen(one) != one
    )
