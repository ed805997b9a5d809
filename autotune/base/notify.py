"""Callbacks that show a message to the user, and one that shows nothing."""

from collections.abc import Callable
from dataclasses import replace

from .values import frozen


@frozen
class Stage:
    """Stage of the trial of a number, and its node (if known): shown while it lasts, without a log
    line."""

    number: int
    doing: str
    node: str = ""


Notify = Callable[[str], None]
"""Show one line to a person during a long step."""
Watch = Callable[[str | Stage], None]
"""Show lines, and the stages of launches."""


def on_node(message: str | Stage, node: str) -> str | Stage:
    """Add the node to a stage, which its evaluator does not know."""
    return replace(message, node=node) if isinstance(message, Stage) else message


def silent(*_: object) -> None:
    """Show nothing."""
