"""What a person sees while a study runs: launches done, phase, best so far, time left. All on stderr."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.status import Status

from autotune.metrics.formulas import METRICS
from autotune.search.objective import achieved
from autotune.search.study import Study
from autotune.study.spec import StudySpec
from autotune.trial import Launch, Trial


class Progress:
    """One line per launch and, on a terminal, a status line that is kept up to date."""

    def __init__(self, spec: StudySpec, console: Console) -> None:
        self._spec, self._console = spec, console
        self._status: Status | None = console.status("") if console.is_terminal else None
        self._started_s = time.monotonic()
        self._done_before: int | None = None

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def opened(self, folder: Path) -> None:
        """Say where everything will lie."""
        self._console.print(f"study {self._spec.study} in {folder}", highlight=False, soft_wrap=True)

    def phase(self, text: str) -> None:
        """Show a phase that is no launch."""
        if self._status is not None:
            self._status.update(text)

    def note(self, text: str) -> None:
        """Print a line: about what takes care of itself, or what is done before the first launch and may take long."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def started(self, trial: Trial, study: Study) -> None:
        """Show what is being launched."""
        if self._done_before is None:
            self._done_before = len(study.launches)
        done = len(study.launches)
        self.phase(
            f"launch {done + 1} of at most {self._spec.launches} · {trial.role.value} · "
            f"{trial.configuration.engine} · {self._best(study)} · {self._time_left(done)}"
        )

    def finished(self, launch: Launch, study: Study) -> None:
        """Print one line."""
        number = f"{len(study.launches):>3}/{self._spec.launches}"
        trial, result = launch.trial, launch.result
        head = f"{number}  {trial.role.value:<8}  {trial.configuration.engine:<12}"
        value = achieved(self._spec, launch)
        if value is not None:
            outcome = f"{value:>10,.1f}  {result.evidence.value}"
        else:
            kind = result.failure.kind.value if result.failure else "unknown"
            phase = f" ({result.failure.phase.value})" if result.failure and result.failure.phase else ""
            outcome = f"{result.state.value:>10}  {kind}{phase}"
        node = "" if self._spec.executor == "local" else f"  on {result.node}"
        self._console.print(f"{head}{outcome}{node}  {self._best(study)}", highlight=False, soft_wrap=True)

    def _best(self, study: Study) -> str:
        values = [value for launch in study.launches if (value := achieved(self._spec, launch)) is not None]
        if not values:
            return "no launch has run yet"
        best = max(values) if METRICS[self._spec.objective].maximise else min(values)
        return f"best {best:,.1f}"

    def _time_left(self, done: int) -> str:
        here = done - (self._done_before or 0)
        if here <= 0:
            return "time left unknown"
        left_s = (time.monotonic() - self._started_s) / here * (self._spec.launches - done)
        return f"at most {left_s / 60:.0f} min left" if left_s >= 90 else f"at most {left_s:.0f} s left"
