"""Launch side by side on shares of this machine's GPUs, with one process per share.

A share's process sees its GPUs alone (`CUDA_VISIBLE_DEVICES` and its kin), and so does every server
that it launches: processes, containers and the check for idle GPUs read that variable anyway. It
ends with the tuner, by ``kill -9`` too, and the watchdog of its server then ends that.

A launch has a share beside others, or the first share alone while the others idle (`study.spec`);
the study decides (`search.side_by_side`).
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from autotune.base import AutotuneError, CannotGoOn, Notify, Stage, StringDict, silent
from autotune.base.child import IMPORT_FOLDER, die_with_parent, start_python, wait_or_kill
from autotune.base.notify import on_node
from autotune.engines.command import DEVICES
from autotune.engines.machine import Gpu, gpus
from autotune.servers.preflight import why_busy
from autotune.servers.visible import VISIBLE, visible_gpus

from ..backends import EvaluationSetup, backend_of
from ..study.spec import StudySpec, alone, is_alone, most_at_once, share_name
from ..trial import Launch, Trial, TrialResult
from . import Bug, Executor, NextTrial, outcome_of

Share = tuple[int, ...]
"""GPU numbers, ascending as in the vendor's tools."""
CLOSE_S = 60.0
"""Seconds for a process to stop its server: longer than a server's own limit."""
_CHILD = "import sys; sys.path.insert(0, {folder!r}); from autotune.tuner.executors.side_by_side import main; main()"


def shares_of(
    spec: StudySpec,
    most_places: int,
    notify: Notify,
    present: Callable[[], Sequence[Gpu]] = gpus,
) -> list[Share]:
    """Divide this machine's GPUs into shares for concurrent launches; fewer than two: no
    concurrency.

    A share has as many GPUs as the study uses, next to each other. One that has a GPU which is not
    idle is left out. Of `most_places`, the most that the budget is worth, the first share takes
    two: it is measured alone too.
    """
    backend = backend_of(spec)
    if not backend.launches or spec.hardware.vendor == "cpu":
        return []
    # An emulated node's GPUs have nobody else on them.
    known = present() if backend.on_gpus else ()
    indices = [gpu.index for gpu in known] if backend.on_gpus else range(spec.hardware.gpus)
    numbers: Sequence[int] = indices
    if chosen := visible_gpus(spec.hardware.vendor):
        # Only GPUs that are named by number: a UUID does not tell which one must be idle.
        numbers = list(takewhile(indices.__contains__, chosen.indices or ()))
    count = spec.gpus
    whole = [tuple(numbers[i : i + count]) for i in range(0, len(numbers) - count + 1, count)]
    most = min(most_places - 1, most_at_once(spec.executor) or len(whole))
    if min(len(whole), most) < 2:
        return []
    idle = []
    for share in whole:
        problems = [problem for gpu in known if gpu.index in share and (problem := why_busy(gpu))]
        if problems:
            notify(f"{share_name(share)} are not used: {problems[0]}")
        else:
            idle.append(share)
    return idle[:most]


def visible_to(share: Share, vendor: str) -> StringDict:
    """Set the variables that limit a process to the GPUs of a share: those already set, or the
    vendor's."""
    chosen = visible_gpus(vendor)
    if chosen is None:
        return {DEVICES.get(vendor, VISIBLE[0]): ",".join(map(str, share))}
    places = {index: place for place, index in enumerate(chosen.indices or ())}
    return chosen.chosen([places[index] for index in share])


class _Worker:
    """The process of a share, and the parent's end of its pipe."""

    def __init__(self, setup: EvaluationSetup, share: Share) -> None:
        self.connection, theirs = Pipe()
        environment = {**os.environ, **visible_to(share, setup.spec.hardware.vendor)}
        # Pass the import path in the code: servers would inherit PYTHONPATH.
        code = _CHILD.format(folder=IMPORT_FOLDER)
        with theirs:
            self.process = start_python(
                ["-c", code, str(theirs.fileno()), str(os.getpid())], [theirs.fileno()], environment
            )
        # Messages are shown here; a worker sends them.
        self.connection.send(replace(setup, notify=silent))

    def wait(self) -> None:
        """Return after its end; it was asked to stop its server and leave."""
        wait_or_kill(self.process, CLOSE_S)
        self.connection.close()


class SideBySideExecutor(Executor):
    """An executor of two or more disjoint shares of the GPUs."""

    def __init__(self, setup: EvaluationSetup, shares: Sequence[Share]) -> None:
        self._setup = setup
        self._alone = alone(share_name(shares[0]))
        self._shares = {self._alone: shares[0], **{share_name(share): share for share in shares}}
        """Shares by the name of the place."""
        # Start all at once: the control's launches are to begin together.
        self._workers = {share: _Worker(setup, share) for share in shares}
        self._running: dict[str, Trial] = {}
        self._waiting: list[Trial] = []
        self._retired: set[str] = set()

    def places(self) -> Mapping[str, bool]:
        return {place: self._is_free(place) for place in (self._alone, *self._used)}

    @property
    def _used(self) -> list[str]:
        return [
            place for place in self._shares if place != self._alone and place not in self._retired
        ]

    def _is_free(self, place: str) -> bool:
        """Return whether a launch there starts at once: alone on an idle node, beside others if
        none is alone."""
        if is_alone(place):
            return not self._running
        return not {place, self._alone} & self._running.keys()

    def launches(self, ask: NextTrial) -> Iterator[Launch]:
        while True:
            while self.nodes and (trial := ask()):
                self._waiting.append(trial)
                self._begin()
            if not self._running:
                return
            yield self._next_finished()
            self._begin()

    def _begin(self) -> None:
        """Start the trials that wait for a place that is free now."""
        for trial in list(self._waiting):
            # A trial without a place may run beside others.
            known = trial.node == self._alone or trial.node in self._used
            places = [trial.node] if known else self._used or [self._alone]
            place = next(filter(self._is_free, places), None)
            if place:
                self._waiting.remove(trial)
                self._running[place] = trial
                # A dead process is noticed when its answer is awaited.
                with suppress(ConnectionError):
                    self._worker(place).connection.send(trial)

    def _worker(self, place: str) -> _Worker:
        return self._workers[self._shares[place]]

    def _next_finished(self) -> Launch:
        while True:
            places = {self._worker(place).connection: place for place in self._running}
            for connection in wait(list(places)):
                assert isinstance(connection, Connection)
                if launch := self._heard(places[connection]):
                    return launch

    def _heard(self, place: str) -> Launch | None:
        """Read a message of a place's process; returns its launch at its end."""
        try:
            message = self._worker(place).connection.recv()
        except (EOFError, ConnectionError):
            return self._lost(place)
        if isinstance(message, str | Stage):
            self._setup.notify(on_node(message, place))
            return None
        trial = self._running.pop(place)
        if isinstance(message, TrialResult):
            return self._launch(place, trial, message)
        if isinstance(message, Bug):
            raise message.error(trial, place)
        assert isinstance(message, AutotuneError)
        # Leave GPUs that somebody else took meanwhile, as long as there are others.
        if (
            not isinstance(message, CannotGoOn)
            or is_alone(place)
            or not self.retire(place, str(message))
        ):
            raise message
        self._waiting.insert(0, trial)
        self._begin()
        return None

    def _launch(self, place: str, trial: Trial, result: TrialResult) -> Launch:
        gpu_ids = tuple(map(str, self._shares[place]))
        return Launch(trial, replace(result, node=place, gpu_ids=gpu_ids))

    def _lost(self, place: str) -> Launch:
        """Return a launch whose process was killed from outside; the next one gets a new
        process."""
        share, trial = self._shares[place], self._running.pop(place)
        worker = self._workers[share]
        worker.process.terminate()
        worker.wait()
        self._workers[share] = _Worker(self._setup, share)
        lost = self._setup.lost(
            f"The process that measured on {place} was killed from outside (code "
            f"{worker.process.returncode})."
        )
        return self._launch(place, trial, lost)

    def retire(self, node: str, why: str) -> bool:
        if node in self._used:
            self._retired.add(node)
            self._setup.notify(f"{node} are excluded: {why}")
        return node != self._alone and bool(self._used)

    def close(self) -> None:
        """End the running trials and their servers."""
        workers = self._workers
        self._workers = {}
        for worker in workers.values():
            worker.process.terminate()
        for worker in workers.values():
            worker.wait()


def _leave(*_: object) -> None:
    """Leave as by Ctrl-C, which stops the running server; once, because stopping takes time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Evaluate the trials from a pipe, whose number is the first argument, until it is closed or
    SIGTERM."""
    descriptor, tuner = map(int, sys.argv[1:3])
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # The tuner may have ended before `die_with_parent`.
    if os.getppid() != tuner:
        return
    with (
        suppress(EOFError, ConnectionError, KeyboardInterrupt),
        Connection(descriptor) as connection,
    ):
        setup: EvaluationSetup = _received(connection)
        evaluate = replace(setup, notify=connection.send).evaluator()
        while True:
            trial: Trial = _received(connection)
            connection.send(outcome_of(evaluate, trial))


def _received(connection: Connection) -> Any:
    """Return the next message; raises `EOFError` also where the tuner has ended in the middle of
    one."""
    try:
        return connection.recv()
    except OSError as error:
        raise EOFError from error
