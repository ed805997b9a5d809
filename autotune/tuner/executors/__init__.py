"""Executors evaluate trials: the contract, and the executor of this process.

An executor asks for trials while it has room, and yields launches in the order in which they end.
It knows neither the search nor what an evaluation does.
"""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from autotune.base import AutotuneError, CannotGoOn, frozen
from autotune.engines import without_numbers

from ..backends import Evaluator
from ..trial import AFTER_RUNNING, IN_A_ROW, Launch, State, Trial, TrialResult


@frozen
class Bug:
    """Traceback of an unexpected exception."""

    traceback: str

    def error(self, trial: Trial, node: str) -> RuntimeError:
        """Return it as an exception of the tuner's process."""
        return RuntimeError(
            f"the evaluation of trial {trial.number} on {node} failed:\n{self.traceback}"
        )


Outcome = TrialResult | AutotuneError | Bug


def outcome_of(evaluate: Evaluator, trial: Trial) -> Outcome:
    """Evaluate a trial in a separate process: exceptions are returned, because only values can be
    sent."""
    try:
        return evaluate(trial)
    except AutotuneError as error:
        return error
    except Exception:
        return Bug(traceback.format_exc())


NextTrial = Callable[[], Trial | None]
"""Ask for the next trial; None where there is none before another launch ends."""


class Executor(ABC):
    """Run as many concurrent trials as there is capacity for."""

    @abstractmethod
    def places(self) -> Mapping[str, bool]:
        """Return whether another trial would start at once, by node; empty: one node without a
        name."""

    @property
    def nodes(self) -> Sequence[str]:
        """Return the nodes on which another trial would start at once."""
        return [node for node, is_free in self.places().items() if is_free]

    @property
    def busy(self) -> Sequence[str]:
        """Return the nodes on which another trial would wait."""
        return [node for node, is_free in self.places().items() if not is_free]

    @abstractmethod
    def launches(self, ask: NextTrial) -> Iterator[Launch]:
        """Run trials, each on its named node or on another if that is gone; yields them as they
        end.

        Raises what an evaluator raises, `BadInput` or `CannotGoOn`, where nothing more can be
        launched. Where no launch is under way `ask` returns None at the study's end.
        """

    @abstractmethod
    def retire(self, node: str, why: str) -> bool:
        """Launch nothing more on a node, and report why; returns whether another node remains."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; unfinished trials are aborted. May be called again."""


@frozen
class LocalExecutor(Executor):
    """Evaluate one trial at a time, in this process."""

    evaluator: Evaluator

    def places(self) -> Mapping[str, bool]:
        return {}

    def launches(self, ask: NextTrial) -> Iterator[Launch]:
        while trial := ask():
            yield Launch(trial, self.evaluator(trial))

    def retire(self, node: str, why: str) -> bool:
        """Return False: there is no other node than this machine."""
        return False

    def close(self) -> None:
        """Do nothing: no trial runs between two launches."""


def retire_bad_node(
    launches: Sequence[Launch], executor: Executor, earlier: Sequence[Launch] = ()
) -> None:
    """Retire the latest launch's node if its next launch would not count; raises `CannotGoOn` if
    none remains.

    Args:
        launches: those of this run, in the order in which they ended.
        earlier: other launches of the study, of the configurations that are known to run.
    """
    latest = launches[-1].result
    if latest.quarantine and not executor.retire(latest.node, latest.quarantine):
        raise CannotGoOn(latest.quarantine)
    ran = {one.fingerprint for one in (*earlier, *launches) if one.result.metrics}
    here = [one for one in launches if one.result.node == latest.node]
    on_node = _failures_in_a_row(here, ran)
    count = on_node or _failures_in_a_row(launches, ran)
    if not count:
        return
    message = latest.failure.message if latest.failure else ""
    cause = "for reasons that are not their configurations'"
    if latest.state is State.FAILED:
        cause = "with the same words, which no rule explains"
        if count < IN_A_ROW:
            cause += ", though their configurations have run before"
    why = f"{count} launches in a row failed {cause}. {message}"
    # Failures on one node blame it; on several, something else.
    if not on_node or not executor.retire(latest.node, why):
        raise CannotGoOn(why)


def _failures_in_a_row(launches: Sequence[Launch], ran: set[str]) -> int:
    """Count the latest launches that all failed for reasons other than their configurations; 0 for
    too few.

    Two suffice where both configurations ran before.
    """
    for count in (AFTER_RUNNING, IN_A_ROW):
        latest = launches[-count:]
        results = [one.result for one in latest]
        # A measurement that does not count has metrics: that server ran.
        if len(latest) < count or any(result.metrics for result in results):
            return 0
        if count < IN_A_ROW and not ran.issuperset(one.fingerprint for one in latest):
            continue
        if count == IN_A_ROW and all(result.state is State.INVALID for result in results):
            return count
        # Servers that ended with the same words, which no pattern knows.
        failures = [r.failure for r in results if r.failure and r.failure.unexplained]
        texts = {without_numbers(one.log_excerpt) for one in failures}
        if len(failures) == count and len(texts) == 1:
            return count
    return 0
