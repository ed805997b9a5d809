"""The callbacks that show a message to whoever watches, and the one that shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stage:
    """What the trial of a number does, and on which node (if known): shown while it lasts, and no line of its own."""

    number: int
    doing: str
    node: str = ""


Notify = Callable[[str], None]
"""Shows one line to a person while something takes long."""
Watch = Callable[[str | Stage], None]
"""Shows lines, and the stages of launches."""


def on_node(message: str | Stage, node: str) -> str | Stage:
    """Add the node to a stage, which whoever evaluates there does not know."""
    return replace(message, node=node) if isinstance(message, Stage) else message


def silent(*_: object) -> None:
    """Show nothing."""
