"""Where trials are evaluated: the contract, and the executor of this process.

An executor takes trials and returns finished launches in the order in which they end. It knows neither the search nor
what an evaluation does.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.errors import BadInput, CannotGoOn
from autotune.evaluate import Evaluator
from autotune.evaluate.checked import Checked
from autotune.notify import Notify
from autotune.space.library import Library
from autotune.study.spec import StudySpec, check_executor
from autotune.trial import Launch, State, Trial, TrialResult

_IN_A_ROW = 3
_ALWAYS = {
    # No usage statistics are sent.
    "RAY_USAGE_STATS_ENABLED": "0",
    # What Ray says of a lost node goes to stdout, which is ours; the executor says it in a line.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
_UNLESS_SET = {
    # No files beside those that we write, and no state to restore a tuner from: the study is that state.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    # As many trials may wait for their node as are submitted.
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",
    "TUNE_WARN_THRESHOLD_S": "1000000",
    # The study loop handles interruptions.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Ray would hide a node's GPUs from tasks that ask for none in a coming version; it warns of that.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LONGEST_TMPDIR = 40
"""Characters of a folder below which the paths of Ray's sockets, 107 at most, still fit."""
_NO_SERVERS = ("simulator", "emulator", "replay")


@dataclass(frozen=True, slots=True)
class EvaluationSetup:
    """What a study's evaluators are made from; it can be pickled, so that nodes make their own.

    Attributes:
        make: makes one; arguments as of `autotune.run.evaluator_for`.
        folder: the study's folder on this machine; made by whoever opens the study.
        notify: shows messages while trials run.
    """

    make: Callable[..., Evaluator]
    spec: StudySpec
    library: Library
    folder: Path
    notify: Notify

    def evaluator(self) -> Evaluator:
        """Make the study's evaluator, whose results are checked."""
        return Checked(self.make(self.spec, self.library, self.folder, self.notify), self.spec)


class Executor(Protocol):
    """Runs as many trials at a time as it has room for."""

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the nodes on which another trial would start at once; empty: one node without a name."""
        ...

    @property
    def busy(self) -> Sequence[str]:
        """Names of the nodes on which another trial would wait."""
        ...

    def has_room(self) -> bool:
        """Whether another trial would start at once."""
        ...

    def submit(self, trial: Trial) -> None:
        """Accept a trial. It runs on the node that it names, or on another one where that node is gone."""
        ...

    def next_finished(self) -> Launch:
        """Wait for the next trial to end.

        Raises what an evaluator raises, `autotune.errors.BadInput` or `CannotGoOn`, where nothing more can be launched.
        """
        ...

    def retire(self, node: str, why: str) -> bool:
        """Launch nothing more on a node, and say why; returns whether another node is left."""
        ...

    def close(self) -> None:
        """Release all resources; unfinished trials are given up. May be called again."""
        ...


class LocalExecutor:
    """Evaluates one trial at a time, in this process, when its result is waited for."""

    nodes: Sequence[str] = ()
    busy: Sequence[str] = ()

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._waiting: Trial | None = None

    def has_room(self) -> bool:
        """Whether no trial waits."""
        return self._waiting is None

    def submit(self, trial: Trial) -> None:
        """Accept a trial; raises ``RuntimeError`` when one is waiting already."""
        if self._waiting is not None:
            raise RuntimeError("the local executor runs one trial at a time")
        self._waiting = trial

    def next_finished(self) -> Launch:
        """Evaluate the waiting trial; raises ``RuntimeError`` when there is none."""
        if self._waiting is None:
            raise RuntimeError("no trial was submitted")
        trial, self._waiting = self._waiting, None
        return Launch(trial, self._evaluator(trial))

    def retire(self, node: str, why: str) -> bool:
        """Return False: there is no other node than this machine."""
        del node, why
        return False

    def close(self) -> None:
        """Forget a trial that was not evaluated."""
        self._waiting = None


def retire_bad_node(results: Sequence[TrialResult], executor: Executor) -> None:
    """Retire the node of the latest result where its next launch could not be trusted, or would fail as the last did.

    Raises `CannotGoOn` where no other node is left, or launches fail on all of them.

    Args:
        results: in the order in which they came.
    """
    latest = results[-1]
    if latest.quarantine and not executor.retire(latest.node, latest.quarantine):
        raise CannotGoOn(latest.quarantine)
    node_fails = _keeps_failing([result for result in results if result.node == latest.node])
    if not node_fails and not _keeps_failing(results):
        return
    message = latest.failure.message if latest.failure else ""
    why = f"{_IN_A_ROW} launches in a row failed for reasons that are not their configurations'. {message}"
    # Of several nodes one is bad; where launches on different ones fail, something else is.
    if not node_fails or not executor.retire(latest.node, why):
        raise CannotGoOn(why)


def _keeps_failing(results: Sequence[TrialResult]) -> bool:
    """Whether the latest launches failed one after the other, none of them by its configuration."""
    latest = results[-_IN_A_ROW:]
    # A measurement that does not count has metrics: that server ran.
    return len(latest) == _IN_A_ROW and all(r.state is State.INVALID and not r.metrics for r in latest)


def executor_for(name: str, setup: EvaluationSetup, needs: Sequence[int], most_nodes: int) -> Executor:
    """Make the executor of a name.

    Args:
        name: ``local``, ``ray`` or ``ray:HOST:PORT``.
        needs: the numbers of GPUs that candidates need, each once.
        most_nodes: the most nodes to use.

    Raises `UnknownName` where no executor has this name, `BadInput` where Ray is not installed or no node fits.
    """
    check_executor(name)
    if name == "local":
        return LocalExecutor(setup.evaluator())
    address = name.partition(":")[2] or os.environ.get("RAY_ADDRESS", "")
    address = "" if address in ("auto", "local") else address
    own_cluster = not address and setup.spec.on.partition(":")[0] in _NO_SERVERS
    prepare_environment(own_cluster)
    try:
        # Imported when asked for: it takes seconds.
        from autotune.executors.ray import RayExecutor
    except ImportError as error:
        raise BadInput(
            f"--executor {name} needs Ray Tune ({error}); install it with: pip install 'autotune[ray]'"
        ) from error
    return RayExecutor(address, own_cluster, setup, needs, most_nodes)


def prepare_environment(own_cluster: bool) -> None:
    """Set Ray's environment variables; to be called before ray is imported. Harmless settings of the user's stay.

    Args:
        own_cluster: whether a Ray cluster of this machine alone is started for the study. It gets a token that nobody
            else has; Ray would leave one in the user's home, which changes how clusters that are started later behave.
            Source: https://docs.ray.io/en/latest/ray-security/token-auth.html.
    """
    os.environ.update(_ALWAYS)
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)
    if own_cluster and len(tempfile.gettempdir()) > _LONGEST_TMPDIR:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    if own_cluster and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
