"""What a person sees while a load runs, on stderr: how far it is, and how fast the answers come."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from autotune.loadgen import Progress as LoadProgress

_PLAIN_EVERY_NS = 5_000_000_000
_WINDOW_NS = 1_000_000_000


class Throughput:
    """Chunks per second of one load, from counts that are told now and then."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None
        self._recent: deque[tuple[int, int]] = deque()

    def tell(self, now_ns: int, chunks: int) -> None:
        """Take the count of a moment; moments ascend."""
        self._first = self._first or (now_ns, chunks)
        self._recent.append((now_ns, chunks))
        while len(self._recent) > 2 and now_ns - self._recent[1][0] >= _WINDOW_NS:
            self._recent.popleft()

    @property
    def last_second(self) -> float | None:
        """Over the second before the last count, or what comes nearest; None before there are two counts."""
        return self._rate(self._recent[0]) if self._recent else None

    @property
    def overall(self) -> float | None:
        """Since the first count; None before there are two counts."""
        return self._rate(self._first) if self._first else None

    def _rate(self, since: tuple[int, int]) -> float | None:
        now_ns, chunks = self._recent[-1]
        return (chunks - since[1]) / (now_ns - since[0]) * 1e9 if now_ns > since[0] else None


def progress_line(label: str, progress: LoadProgress, speed: Throughput) -> str:
    """One line, e.g. ``c8: 412 of 1000 done, 588 in flight, 6,120 chunks/s (5,980 overall)``."""
    name = f"{label}: " if label else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    now, overall = speed.last_second, speed.overall
    rate = f"{progress.chunks:,} chunks" if now is None else f"{now:,.0f} chunks/s"
    rate += "" if overall is None else f" ({overall:,.0f} overall)"
    in_flight = progress.sent - progress.finished
    return f"{name}{progress.finished} of {progress.total} done, {in_flight} in flight{failed}, {rate}"


class LiveLine:
    """Shows the loads of a bench while it is a context: a bar on a terminal, else a line about every 5 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        if console.is_terminal:
            words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
            columns = (words, BarColumn(bar_width=12), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None
        self._load, self._sent = "", 0
        self._speed = Throughput()
        self._printed_ns = perf_counter_ns()

    def __enter__(self) -> LiveLine:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("warming up", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, label: str, progress: LoadProgress) -> None:
        """Show how far the load of this label is; another label, or fewer requests sent, is another load."""
        now_ns = perf_counter_ns()
        if label != self._load or progress.sent < self._sent:
            self._speed = Throughput()
        self._load, self._sent = label, progress.sent
        self._speed.tell(now_ns, progress.chunks)
        if self._bar is not None and self._task is not None:
            line = progress_line(label, progress, self._speed)
            self._bar.update(self._task, description=line, completed=progress.finished, total=progress.total)
        elif now_ns - self._printed_ns >= _PLAIN_EVERY_NS:
            self._printed_ns = now_ns
            self._console.print(progress_line(label, progress, self._speed), highlight=False, markup=False)
