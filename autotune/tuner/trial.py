"""Common values of search, evaluation and recommendation.

A trial is a value and evaluating it is a function: everything here is immutable, picklable and
JSON. A configuration that cannot run is a `Failure` inside a `TrialResult`, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from autotune.base import (
    Evidence,
    Evidenced,
    FloatMap,
    Interval,
    Json,
    JsonObject,
    StringDict,
    Strings,
    frozen,
)
from autotune.engines import Command, Configuration, Failure, Resolved
from autotune.load.metrics.table import Metrics, curve_of

DRAFTED = "speculative_tokens"
"""Knob of the tokens that are drafted per step."""
IN_A_ROW = 3
"""Consecutive failures attributed to the node: one may be chance, and each costs a start."""
AFTER_RUNNING = 2
"""`IN_A_ROW` of configurations that have run before, whose crashes are a clearer sign."""
SURE_TO_START = 0.9
"""Least odds of starting for a recommended command that has not started itself."""
_RANDOM = "random_weights"
Rungs = tuple[int, ...]
"""Requests in flight of each load of a ladder, ascending."""
Side = Literal["baseline", "recommended"]
CommandRole = Literal[Side, "next best"]
"""Role of a command in the study that predicted it."""


class Role(StrEnum):
    """Reason of a launch; a control is a baseline launch during the search.

    A launch with random weights ranks candidates; its figures are never reported.
    """

    BASELINE = "baseline"
    DEFAULT = "default"
    START = "start"
    SEARCH = "search"
    FINAL = "final"
    CONTROL = "drift"
    RANDOM_WEIGHTS = "screen"

    def to_json(self) -> StringDict:
        """Return its part of a row: random weights are a fidelity of the search's launches."""
        if self is Role.RANDOM_WEIGHTS:
            return {"role": Role.SEARCH, "fidelity": _RANDOM}
        return {"role": self, "fidelity": "full"}

    @classmethod
    def from_json(cls, row: JsonObject) -> Role:
        """Parse the result of `to_json`; a row without a fidelity had its own weights."""
        return cls.RANDOM_WEIGHTS if row.get("fidelity") == _RANDOM else cls(row["role"])


class State(StrEnum):
    """End of a launch. ``invalid``: the measurement failed, so it has no information about the
    configuration."""

    COMPLETE = "complete"
    FAILED = "failed"
    INVALID = "invalid"


@frozen
class Retry:
    """Reason of another launch of a configuration: an earlier one failed without an explanation.

    Attributes:
        of: number of the launch that failed.
        reason: its failure's message.
    """

    of: int
    reason: str


@frozen
class Trial:
    """A planned launch of an effective configuration.

    Attributes:
        number: position in the study, from 0; an interrupted trial keeps it.
        engine_version: the version whose parser and defaults hold.
        workloads: names of the workloads to measure on this launch, the objective's first.
        launch_index: how many earlier launches this configuration had; with the seed it fixes noise
            and prompts.
        node: the one of the executor's nodes on which it must run; empty: any.
        rungs: requests in flight with which the first workload is measured besides, see
            `autotune.tuner.study.loads`.
        wants_answers: whether the check of answers is run on the warm server.
        retry: the failure without an explanation for which it is launched once more.
    """

    number: int
    role: Role
    configuration: Configuration
    engine_version: str
    command: Command
    workloads: Strings
    launch_index: int = 0
    node: str = ""
    rungs: Rungs = ()
    wants_answers: bool = False
    retry: Retry | None = None


@frozen
class Example:
    """A question with different answers of finalist and baseline."""

    prompt: str
    baseline: str
    finalist: str


@frozen
class Accuracy:
    """Result of the check of a launch's answers.

    Attributes:
        kind: ``builtin``, ``tasks`` or ``command``.
        score: in percent, or as the command printed it; None for the baseline,
            which is the reference.
        baseline: the baseline's score, where the launch was compared with it.
        threshold: the score below which it would fail.
        passed: None if it was not compared, as the baseline's own launches.
        note: what the check could not see.
    """

    kind: str
    score: float | None
    ci95: Interval | None = None
    baseline: float | None = None
    baseline_ci95: Interval | None = None
    threshold: float | None = None
    passed: bool | None = None
    reasons: Strings = ()
    examples: tuple[Example, ...] = ()
    note: str = ""
    seconds: float = 0.0


@frozen
class Speculation:
    """Acceptance of drafted tokens in a launch, in tokens per sequence and step.

    Attributes:
        drafted: tokens that are drafted per step.
        stated: what the model's card says of text, by its `source`.
        random: whether the prompts are random tokens, whose drafts are almost never right.
        forced: the setting of the engine's switch; None: nothing was forced.
        accepted: measured acceptance by workload; workloads without a report are missing.
    """

    drafted: int
    stated: float
    source: str
    random: bool
    forced: float | None = None
    accepted: FloatMap = {}

    def with_acceptance(self, metrics: Mapping[str, Metrics]) -> Speculation:
        """Return a copy with the measured acceptance, from the workloads' metrics."""
        name = "spec_decode_acceptance_length"
        return replace(
            self, accepted={one: row[name] for one, row in metrics.items() if name in row}
        )


@frozen
class TrialResult(Evidenced):
    """Result of a trial; the same shape for measured, emulated, simulated and replayed launches.

    Attributes:
        metrics: workload name to metrics; empty unless the state is ``complete`` or ``invalid``.
        times_s: seconds per phase (``launch, ready, warmup, load, stop``), of the node's clock:
            virtual seconds when the evidence is simulated; of all tries together.
        resolved: the configuration that the engine reports; None without a report.
        quarantine: why nothing more may be launched on this node; empty where it is as clean as
            before.
        node: where it ran, by the name that the executor gives its nodes.
        gpu_ids: the GPUs of that node that were reserved for it, where an executor reserves them.
        answers: the answers to be checked, on the way to the tuner; in no row.
        evidence_of: the evidence of a replayed launch when it was recorded; None: not recorded, or
            not replayed.
        kv_cache_tokens: tokens that one replica's KV cache holds; None without a report.
        longest_request_tokens: input and output of the longest request that it serves; None where
            that is not known.
        odds_of_starting: 1 where a server ran; by the memory plan where it was simulated.
        remarks: what the engine's log says of its speed.
        ranking: the metrics of a launch with random weights, which has no others; they rank it
            among candidates.
    """

    state: State
    evidence: Evidence
    failure: Failure | None = None
    metrics: Mapping[str, Metrics] = {}
    times_s: FloatMap = {}
    gpus: int = 0
    node: str = ""
    pids: tuple[int, ...] = ()
    started_at: str = ""
    resolved: Resolved | None = None
    quarantine: str = ""
    gpu_ids: Strings = ()
    answers: JsonObject = {}
    accuracy: Accuracy | None = None
    evidence_of: Evidence | None = None
    kv_cache_tokens: int | None = None
    longest_request_tokens: int | None = None
    odds_of_starting: float | None = None
    speculation: Speculation | None = None
    remarks: Strings = ()
    ranking: Mapping[str, Metrics] = {}

    @property
    def measurements(self) -> Mapping[str, Metrics]:
        """Return its metrics, or those for its rank."""
        return self.ranking or self.metrics

    @property
    def seconds(self) -> float:
        return sum(self.times_s.values())

    @property
    def began_s(self) -> float | None:
        """Return its start by the clock of its node, seconds since the epoch; None if unknown."""
        try:
            return datetime.fromisoformat(self.started_at).timestamp()
        except ValueError:
            return None

    @property
    def broke(self) -> bool:
        """Return whether the configuration itself failed (a port in use or a lost node is not its
        fault)."""
        return self.state is State.FAILED and (
            self.failure is None or self.failure.blames_the_configuration
        )

    def curve(self, workload: str) -> Sequence[Metrics]:
        """Return the rows of a workload's curve; none without one."""
        return curve_of(self.metrics.get(workload, {}))

    @property
    def answers_checked(self) -> bool:
        """Return whether the check of its answers has a result, even without a comparison."""
        return self.accuracy is not None

    @property
    def answers_right(self) -> bool | None:
        """Return whether its answers are as good as the baseline's; None without a comparison."""
        return None if self.accuracy is None else self.accuracy.passed

    def to_json(self) -> Json:
        """Return its part of a row: without the answers and without empty optional keys."""
        row = {**asdict(self), "failure": self.failure.to_json() if self.failure else None}
        del row["answers"]
        optional = ["accuracy", "gpu_ids", "quarantine", "speculation", "remarks", "ranking"]
        return {key: value for key, value in row.items() if value or key not in optional}

    def without_prompts(self) -> TrialResult:
        """Return a copy without the examples of answers, whose prompts may be private; our own
        prompts remain."""
        if self.accuracy is None or self.accuracy.kind == "builtin":
            return self
        return replace(self, accuracy=replace(self.accuracy, examples=()))


@frozen
class Launch:
    """A finished trial with its result: one row of ``results.jsonl``."""

    trial: Trial
    result: TrialResult

    @property
    def ranks_only(self) -> bool:
        """Return whether it had random weights: its figures rank candidates and are not reported."""
        return self.trial.role is Role.RANDOM_WEIGHTS

    @property
    def without_meaning(self) -> str:
        """Return why it has no information about the configuration with its weights; empty where it
        may have some."""
        if self.ranks_only:
            return "its weights were random"
        if self.result.state is not State.INVALID:
            return ""
        message = f" ({self.result.failure.message})" if self.result.failure else ""
        return f"its measurement is invalid{message}"

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def role(self) -> Role:
        return self.trial.role

    @property
    def engine(self) -> str:
        return self.trial.configuration.engine

    @property
    def fingerprint(self) -> str:
        return self.trial.configuration.fingerprint


Launches = Sequence[Launch]


def retry_of(fingerprint: str, launches: Iterable[Launch]) -> Retry | None:
    """Return the failure without an explanation that ended the configuration's latest launch; None
    where it ended otherwise."""
    latest = max(
        (one for one in launches if one.fingerprint == fingerprint),
        key=lambda one: one.number,
        default=None,
    )
    failure = None if latest is None else latest.result.failure
    if latest is None or failure is None or not failure.unexplained:
        return None
    return Retry(latest.number, failure.message)


def named(numbers: Sequence[int]) -> str:
    """Name launches by their numbers, e.g. ``launches 1, 2 and 5``."""
    *first, last = map(str, numbers)
    return f"launches {', '.join(first)} and {last}" if first else f"launch {last}"
