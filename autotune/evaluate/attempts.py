"""One try at a trial: what it took and came to, and when there is another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autotune.notify import Notify, silent
from autotune.trial import Failure, FailureKind, Metrics, Resolved, State


@dataclass(slots=True)
class Phases:
    """Seconds per phase of a trial, over all its tries; the waits between them count as ``launch``."""

    times_s: dict[str, float] = field(
        default_factory=lambda: {"launch": 0.0, "ready": 0.0, "warmup": 0.0, "load": 0.0, "stop": 0.0}
    )

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        started_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self.times_s[phase] += (time.perf_counter_ns() - started_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the loads on one server came to.

    Attributes:
        invalid: why the measurement does not count, though the server did its part.
    """

    metrics: dict[str, Metrics] = field(default_factory=dict)
    failure: Failure | None = None
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one launch came to.

    Attributes:
        unfit: nothing was launched: the node would not do.
        quarantine: see `TrialResult.quarantine`.
        resolved: see `TrialResult.resolved`.
    """

    loaded: Loaded
    pids: tuple[int, ...] = ()
    emulated: bool = False
    unfit: bool = False
    quarantine: str = ""
    resolved: Resolved | None = None

    @property
    def failure(self) -> Failure | None:
        if self.loaded.failure is None and self.loaded.invalid:
            return Failure(FailureKind.INFRASTRUCTURE, self.loaded.invalid)
        return self.loaded.failure

    @property
    def blameless(self) -> bool:
        """It failed, and for a reason that is not the configuration's."""
        failure = self.loaded.failure
        return failure is not None and not failure.blames_the_configuration

    @property
    def again(self) -> bool:
        """Whether the same command may run at another time."""
        failure = self.loaded.failure
        return self.blameless and not self.quarantine and failure is not None and not failure.lasting

    @property
    def state(self) -> State:
        if self.loaded.failure is not None and not self.blameless:
            return State.FAILED
        return State.INVALID if self.failure is not None else State.COMPLETE


@dataclass(frozen=True, slots=True)
class BackOff:
    """How often a launch is tried again that failed for a reason that is not the configuration's.

    Attributes:
        waits_s: before each further try.
        pause: waits so many seconds.
        notify: called before each wait.
    """

    waits_s: tuple[float, ...] = (1.0, 10.0, 60.0)
    pause: Callable[[float], None] = time.sleep
    notify: Notify = silent
