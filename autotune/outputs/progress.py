"""What a person sees while a study runs: launches done, phase, best so far, time left. All on stderr."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.status import Status

from autotune.outputs.report import text
from autotune.search import objective
from autotune.space.enumeration import CandidateSet
from autotune.study.spec import StudySpec
from autotune.trial import Configuration, Launch, Role, Scalar, Trial

_MOST_KNOBS = 3
"""That a line names; of more it says how many."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The best configuration so far, by the mean over its launches and not by its luckiest one."""

    configuration: Configuration
    score: float


class Progress:
    """One line per launch and, on a terminal, a status line that is kept up to date."""

    def __init__(self, spec: StudySpec, console: Console) -> None:
        self._spec, self._console = spec, console
        self._status: Status | None = console.status("") if console.is_terminal else None
        self._started_s = 0.0
        self._done_before: int | None = None
        self._defaults: Mapping[str, Configuration] = {}

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def opened(self, folder: Path, candidates: CandidateSet) -> None:
        """Say where everything will lie, and take up what the engines do by default."""
        self._defaults = defaults_of(candidates)
        self._console.print(f"study {self._spec.study} in {folder}", highlight=False, soft_wrap=True)

    def phase(self, text: str) -> None:
        """Show a phase that is no launch."""
        if self._status is not None:
            self._status.update(text)

    def note(self, text: str) -> None:
        """Print a line: about what takes care of itself, or what is done before the first launch and may take long."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def started(self, trial: Trial, launches: Sequence[Launch]) -> None:
        """Show what is being launched after the finished launches."""
        done = len(launches)
        if self._done_before is None:
            self._done_before, self._started_s = done, time.monotonic()
        self.phase(
            f"launch {done + 1} of at most {self._spec.launches} · {trial.role.value} · "
            f"{trial.configuration.engine} · {self._best_line(launches)} · {self._time_left(done)}"
        )

    def finished(self, launch: Launch, launches: Sequence[Launch]) -> None:
        """Print one line: what was tried, what came of it, and the best so far.

        Args:
            launches: all that are finished, this one too.
        """
        trial, result = launch.trial, launch.result
        best = self._best([row for row in launches if row.trial.number != trial.number])
        tried = described(trial.configuration, best.configuration if best else None, self._defaults)
        parts = [f"{trial.role.value:<8}", f"{trial.configuration.engine:<12}", tried, *self._outcome(launch, launches)]
        parts.append(text.seconds(sum(result.times_s.values())))
        parts += [] if self._spec.executor == "local" else [f"on {result.node}"]
        line = "  ".join([f"{len(launches):>3}/{self._spec.launches}", *parts, self._best_line(launches)])
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _outcome(self, launch: Launch, launches: Sequence[Launch]) -> list[str]:
        """The value with its evidence, the gain over the baseline, the limits that are broken; or how it failed."""
        result, value = launch.result, objective.achieved(self._spec, launch)
        if value is None:
            failure = result.failure
            kind = failure.kind.value if failure else "unknown"
            return [result.state.value, f"{kind} ({failure.phase.value})" if failure and failure.phase else kind]
        return [f"{value:,.1f} {result.evidence.value}", *self._gain(launch, launches), *self._broken(launch)]

    def _gain(self, launch: Launch, launches: Sequence[Launch]) -> list[str]:
        base = next((row.trial.configuration for row in launches if row.trial.role is Role.BASELINE), None)
        scores = [objective.score(self._spec, row) for row in launches if row.trial.configuration == base]
        measured = [score for score in scores if score is not None]
        mine = objective.score(self._spec, launch)
        if mine is None or not measured or launch.trial.configuration == base:
            return []
        return [text.percent(100 * math.expm1(mine - fmean(measured)))]

    def _broken(self, launch: Launch) -> list[str]:
        """Each limit that a launch breaks, by how much, and its value."""
        broken = []
        for slo in self._spec.slos:
            value = objective.value(launch, slo.metric, self._spec.workloads[0])
            if value is None:
                broken.append(f"breaks {slo} (not measured)")
            elif slo.excess(value) > 0:
                broken.append(f"breaks {slo} by {100 * slo.excess(value):.0f} % ({text.number(value)})")
        return broken

    def _best(self, launches: Sequence[Launch]) -> _Best | None:
        """The best configuration that keeps the limits; None while there is none."""
        groups: dict[Configuration, list[Launch]] = {}
        for row in launches:
            groups.setdefault(row.trial.configuration, []).append(row)
        found = []
        for configuration, rows in groups.items():
            scores = [score for row in rows if (score := objective.score(self._spec, row)) is not None]
            if scores and not any(map(objective.broke, rows)) and self._keeps_limits(rows):
                found.append(_Best(configuration, fmean(scores)))
        return max(found, key=lambda one: one.score, default=None)

    def _keeps_limits(self, launches: Sequence[Launch]) -> bool:
        """Whether every limit is kept in the mean over a configuration's launches."""
        rows = [beyond for row in launches if (beyond := objective.violations(self._spec, row))]
        names = [str(slo) for slo in self._spec.slos]
        return all(values and fmean(values) <= 0 for values in ([row[n] for row in rows if n in row] for n in names))

    def _best_line(self, launches: Sequence[Launch]) -> str:
        best = self._best(launches)
        if best is not None:
            return f"best {objective.from_score(self._spec, best.score):,.1f}"
        ran = any(objective.score(self._spec, row) is not None for row in launches)
        return "nothing keeps the limits yet" if ran and self._spec.slos else "no launch has run yet"

    def _time_left(self, done: int) -> str:
        here = done - (self._done_before or 0)
        if here <= 0:
            return "time left unknown"
        left_s = (time.monotonic() - self._started_s) / here * (self._spec.launches - done)
        return f"at most {left_s / 60:.0f} min left" if left_s >= 90 else f"at most {left_s:.0f} s left"


def defaults_of(candidates: CandidateSet) -> dict[str, Configuration]:
    """What each engine does by default, where that is a candidate; the baseline stands in for its engine's."""
    listed = (candidates.items[position].configuration for position in (candidates.baseline, *candidates.defaults))
    return {configuration.engine: configuration for configuration in listed}


def described(tried: Configuration, best: Configuration | None, defaults: Mapping[str, Configuration]) -> str:
    """The knobs in which a configuration differs from the best one, else from its engine's defaults."""
    if tried == best:
        return "the best again"
    reference = best if best is not None and best.engine == tried.engine else defaults.get(tried.engine)
    usual: Mapping[str, Scalar] = reference.knobs if reference is not None else {}
    # Of an engine without a reference only what is set at all.
    changes = [f"{n}={text.scalar(v)}" for n, v in tried.knobs.items() if v != usual.get(n)]
    if not changes:
        return "its defaults"
    more = len(changes) - _MOST_KNOBS
    return " ".join([*changes[:_MOST_KNOBS], *([f"+{more} more"] if more > 0 else [])])
