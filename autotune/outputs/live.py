"""A study at a glance on a terminal: a few rows below its lines, kept up to date.

The cursor is not hidden and the screen is the usual one, so that a tuner that was killed leaves nothing to repair.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from autotune.notify import Stage
from autotune.outputs.report import text

_MOST_RUNNING = 8
"""Launches that are shown; of those beyond it the number."""
_OTHER_ROWS = 6
"""Of the terminal that launches leave free: for the other rows of the block, and one line of the log."""
_LABEL = 12
_PER_SECOND = 4


@dataclass(slots=True)
class _Running:
    """A launch under way.

    Attributes:
        what: the configuration, in words.
        since_s: it is doing what it does, by `time.monotonic`.
    """

    what: str
    doing: str
    node: str
    since_s: float


class LiveBlock:
    """The rows, drawn while the block is a context; what was printed above them stays.

    Attributes:
        phase: of the study, in words.
        facts: about it, the most important first.
        ends_s: when the budget is spent at the latest, by `time.monotonic`; None: not known.
        best: the best configuration so far, its value first.
    """

    def __init__(self, console: Console) -> None:
        self.phase = ""
        self.facts: Sequence[str] = ()
        self.ends_s: float | None = None
        self.best: Sequence[str] = ()
        self._running: dict[int, _Running] = {}
        self._console = console
        self._live = Live(self, console=console, transient=True, refresh_per_second=_PER_SECOND)

    def __enter__(self) -> LiveBlock:
        self._live.start()
        # Live has hidden it, and a killed tuner could not bring it back.
        self._console.show_cursor(True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def enter_phase(self, phase: str) -> None:
        """Show a phase in which nothing is launched."""
        self.phase, self.facts, self.ends_s = phase, (), None
        self._running.clear()

    def begin(self, number: int, what: str, doing: str, node: str) -> None:
        """Show a launch from now on."""
        self._running[number] = _Running(what, doing, node, time.monotonic())

    def reach(self, stage: Stage) -> None:
        """Show what a launch does now, if it has not ended meanwhile."""
        running = self._running.get(stage.number)
        if running is not None:
            node = stage.node or running.node
            self._running[stage.number] = _Running(running.what, stage.doing, node, time.monotonic())

    def end(self, number: int) -> None:
        """Show a launch no longer."""
        self._running.pop(number, None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [(self.phase, self._facts()), *self._launches(options.size.height)]
        rows += [("best", self.best)] if self.best else []
        for label, parts in rows[: max(1, options.size.height - 2)]:
            line = Text(f"{label:<{_LABEL}}{' · '.join(filter(None, parts))}", no_wrap=True, overflow="ellipsis")
            line.stylize("bold", 0, len(label))
            yield line
        # The cursor's own: ^C and the prompt after a kill -9 begin here, and spoil no row.
        yield Text("")

    def _facts(self) -> Sequence[str]:
        if self.ends_s is None:
            return self.facts
        return [*self.facts, text.time_left(max(0.0, self.ends_s - time.monotonic()))]

    def _launches(self, height: int) -> list[tuple[str, Sequence[str]]]:
        """A row per launch, of as many as a terminal of this height has room for."""
        # Copied at once: the main thread goes on while this one draws.
        running, now_s = list(self._running.values()), time.monotonic()
        if not running and self.facts:
            return [("next", ["is being chosen"])]
        room = max(1, min(_MOST_RUNNING, height - _OTHER_ROWS))
        rows: list[tuple[str, Sequence[str]]] = []
        for one in running[:room]:
            state = f"{one.doing} {text.seconds(now_s - one.since_s)}".lstrip()
            rows.append(("running", [state, one.node, one.what]))
        left = len(running) - room
        return [*rows, ("", [f"and {left} more"])] if left > 0 else rows
