"""The callback that shows a message to whoever watches, and the one that shows nothing."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str], None]
"""Shows one line to a person while something takes long."""


def silent(*_: object) -> None:
    """Show nothing."""
