"""Common values of search, evaluation and recommendation.

A trial is a value and evaluating it is a function: everything here is immutable, picklable and
JSON. A configuration that cannot run is a `Failure` inside a `TrialResult`, never an exception.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

Scalar = bool | int | float | str | None
"""A knob's value; ``None`` means the engine's choice."""

Metrics = dict[str, Any]
"""Metrics of one workload under the names of `autotune.metrics.formulas`."""

EMULATOR_NAME = "autotune-emulate"
"""The ``Server`` header of an emulated engine, which distinguishes its numbers from measured
ones."""

PORT = 8000
"""Port of the first server of a command in files for people."""


def port_of_gpus(first: int) -> str:
    """Return the port of each of several servers in a shell's loop over their GPUs: `first` plus
    its first GPU."""
    return f'"$(({first} + ${{gpus%%,*}}))"'


def numbers_of(servers: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the GPUs of each of several servers, or without GPUs its own number, for such a
    loop."""
    return [next(iter(own.values()), str(i)) for i, own in enumerate(servers)]


_ADDED = {("replicas", 1), ("api_server_count", None)}
"""Knobs added later, with the value of all earlier configurations: omitted from the fingerprint, so
that recorded launches keep theirs."""


SURE_TO_START = 0.9
"""Least odds of starting for a recommended command that has not started itself."""


class Role(StrEnum):
    """Reason of a launch; a control is a baseline launch during the search.

    What is launched for the screen has random weights: it ranks candidates, and its figures are
    told nowhere.
    """

    BASELINE = "baseline"
    DEFAULT = "default"
    START = "start"
    SEARCH = "search"
    FINAL = "final"
    CONTROL = "drift"
    SCREEN = "screen"


class State(StrEnum):
    """End of a launch. ``invalid``: the measurement failed, so it has no information about the
    configuration."""

    COMPLETE = "complete"
    FAILED = "failed"
    INVALID = "invalid"


class Evidence(StrEnum):
    """Source of a number; shown next to the number everywhere."""

    MEASURED = "measured"
    EMULATED = "emulated"
    SIMULATED = "simulated"
    REPLAYED = "replayed"

    @property
    def predicted(self) -> bool:
        """Return whether the figures come from the simulated node."""
        return self in (Evidence.SIMULATED, Evidence.EMULATED)


class Evidenced:
    """Mixin of records with an `evidence`, and of replayed ones the `evidence_of` the recording."""

    __slots__ = ()

    if TYPE_CHECKING:
        evidence: Evidence
        evidence_of: Evidence | None

    @property
    def origin(self) -> Evidence:
        """Return the evidence of the launches themselves; `Evidence.REPLAYED` if a recording does
        not name it."""
        return self.evidence_of or self.evidence

    @property
    def label(self) -> str:
        """Return the evidence as shown next to numbers: ``measured``, or e.g. ``REPLAYED, of
        SIMULATED launches``."""
        measured = Evidence.MEASURED
        now, then = (
            of if of in (None, measured) else of.upper() for of in (self.evidence, self.evidence_of)
        )
        return f"{now}, of {then} launches" if then else str(now)


class FailureKind(StrEnum):
    """The closed list of failure kinds of a configuration or its launch."""

    RULE = "rule"
    BAD_ARGUMENT = "bad_argument"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    PORT = "port"
    LOAD_ERRORS = "load_errors"
    ACCURACY = "accuracy"
    INFRASTRUCTURE = "infrastructure"


class Phase(StrEnum):
    """Phase of a server at a failure; the remedy of out of memory depends on it."""

    LOAD = "load"
    KV_CACHE = "kv_cache"
    GRAPH_CAPTURE = "graph_capture"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a configuration did not run.

    Attributes:
        message: what failed, why, and what to do; one or two sentences.
        log_excerpt: the first telling line of the engine's log.
        phase: what the server was doing, where that is known.
        lasting: another try would fail in the same way until somebody puts something right.
        unexplained: no pattern knows the log's words, so they may be the machine's fault as well.
    """

    kind: FailureKind
    message: str
    log_excerpt: str = ""
    phase: Phase | None = None
    lasting: bool = False
    unexplained: bool = False

    @property
    def blames_the_configuration(self) -> bool:
        """False for kinds independent of the configuration: the same command may run a minute
        later."""
        return self.kind not in (FailureKind.PORT, FailureKind.INFRASTRUCTURE)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with ``phase``, ``lasting`` and ``unexplained`` only if set."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value or key in ("kind", "message", "log_excerpt")
        }


@dataclass(frozen=True, slots=True)
class Configuration:
    """One engine and a value for each of its knobs, defaults spelled out.

    Two spellings of one effective configuration become equal through `space.context.effective`;
    `fingerprint` identifies a configuration by its content.
    """

    engine: str
    knobs: Mapping[str, Scalar]
    _fingerprint: str = field(
        default="", init=False, repr=False, compare=False
    )  # once it was asked for

    @property
    def fingerprint(self) -> str:
        """Return 12 hex digits that depend on the engine and the knobs, not on their order."""
        if not self._fingerprint:
            knobs = sorted(item for item in self.knobs.items() if item not in _ADDED)
            text = json.dumps([self.engine, knobs], separators=(",", ":"))
            object.__setattr__(self, "_fingerprint", hashlib.sha256(text.encode()).hexdigest()[:12])
        return self._fingerprint

    def with_knobs(self, **changes: Scalar) -> Configuration:
        return Configuration(self.engine, {**self.knobs, **changes})

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.fingerprint == other.fingerprint


_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def referenced(value: str) -> str | None:
    """Return the environment variable that a value refers to, ``KEY`` for ``${KEY}``; None for a
    plain value."""
    match = _REFERENCE.fullmatch(value)
    return match[1] if match else None


def reference_in(word: str) -> tuple[str, str | None]:
    """Split off a reference's variable: ``--key=${A}`` is ``("--key=", "A")``; None without one."""
    option, equals, value = word.rpartition("=")
    name = referenced(value)
    return (f"{option}{equals}", name) if name else (word, None)


def written(word: str, plain: Callable[[str], str], reference: Callable[[str], str]) -> str:
    """Write a word in the notation of `plain` text, and of the `reference` to a variable at its
    end."""
    prefix, variable = reference_in(word)
    if variable is None:
        return plain(word)
    return f"{plain(prefix) if prefix else ''}{reference(variable)}"


def _quoted(word: str) -> str:
    """Quote a word for a shell; a reference stays one."""
    return written(word, shlex.quote, '"${{{}}}"'.format)


@dataclass(frozen=True, slots=True)
class Command:
    """Command line that a person would type to start a server, and the files that it needs.

    Attributes:
        argv: program and arguments.
        env: the environment variables to set, besides the inherited ones.
        files: file name (relative, as it stands in ``argv``) to content.
        container: the words in front that run it in a container, ``docker run … IMAGE``; they set
            `env` there. Empty for a process of this machine.
        servers: where several are started, what each sets besides: which GPUs are its own. Empty:
            one server.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    container: tuple[str, ...] = ()
    servers: tuple[Mapping[str, str], ...] = ()

    @property
    def replicas(self) -> int:
        return len(self.servers) or 1

    @property
    def words(self) -> tuple[str, ...]:
        """Return all words of the command line, the container's words first."""
        return (*self.container, *self.argv)

    def on_loopback(self) -> Command:
        """Return the command with ``--host 127.0.0.1`` unless it sets the address: vLLM listens on
        all by default.

        What stands for somebody else's server, or for a replayed row, stays as it is.
        """
        named = any(word.partition("=")[0] == "--host" for word in self.argv)
        is_none = self.argv[0].startswith(("external:", "replayed:"))
        return self if named or is_none else replace(self, argv=(*self.argv, "--host", "127.0.0.1"))

    def apart_from_port(self) -> tuple[Command, int]:
        """Return the command without ``--port``, and the port that it gives; `PORT` where it gives
        none."""
        words, kept, port = iter(self.argv), list[str](), PORT
        for word in words:
            flag, equals, value = word.partition("=")
            if flag == "--port":
                given = value if equals else next(words, "")
                port = int(given) if given.isdecimal() else port
            else:
                kept.append(word)
        return replace(self, argv=tuple(kept)), port

    def typed(self) -> list[str]:
        """Return the words of the command line, ``NAME=value`` settings first."""
        return [*(f"{name}={value}" for name, value in self.env.items()), *self.argv]

    def shell(self) -> str:
        """Return one copyable block for a POSIX shell; here-documents write its files."""
        lines = []
        for name, text in self.files.items():
            lines.append(
                f"cat > {shlex.quote(name)} <<'AUTOTUNE_EOF'\n{text.rstrip()}\nAUTOTUNE_EOF"
            )
        # A container's words set its variables; a reference they name without a value, which comes
        # from outside.
        settings = {
            name: value
            for name, value in self.env.items()
            if not self.container or referenced(value)
        }
        words = [f"{name}={_quoted(value)}" for name, value in settings.items()]
        command, first_port = self.apart_from_port() if self.servers else (self, PORT)
        typed = " ".join([*words, *map(_quoted, command.words)])
        if self.servers:
            chosen = "".join(f"{name}=$gpus " for name in self.servers[0])
            lines.append(
                f"# {self.replicas} servers; put a load balancer in front, with the least-requests policy:"
            )
            lines.append(f"for gpus in {' '.join(numbers_of(self.servers))}; do")
            lines.append(f"  {chosen}{typed} --port {port_of_gpus(first_port)} &")
            lines.append("done; wait")
        else:
            lines.append(typed)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
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
            `autotune.loadgen.loads`.
        wants_answers: whether the check of answers is run on the warm server.
    """

    number: int
    role: Role
    configuration: Configuration
    engine_version: str
    command: Command
    workloads: tuple[str, ...]
    launch_index: int = 0
    node: str = ""
    rungs: tuple[int, ...] = ()
    wants_answers: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """Configuration that the engine reports for its arguments.

    Attributes:
        fingerprint: of the effective configuration with the knobs that the engine says it has; a
            knob that it does not tell is taken as it was asked for.
        differs: knob to what was asked for and what the engine has, where these differ.
        source: what it was read from.
        notes: knob to one sentence on the difference, for people (Markdown).
    """

    fingerprint: str
    differs: Mapping[str, tuple[Scalar, Scalar]] = field(default_factory=dict)
    source: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Example:
    """A question with different answers of finalist and baseline."""

    prompt: str
    baseline: str
    finalist: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Result of the check of a launch's answers.

    Attributes:
        kind: ``builtin``, ``tasks`` or ``command``.
        score: in percent, or as the command printed it; None: of what others are compared with.
        baseline: the baseline's score, where the launch was compared with it.
        threshold: the score below which it would fail.
        passed: None: not compared, as the baseline's own launches are not.
        note: what the check could not see.
    """

    kind: str
    score: float | None
    ci95: tuple[float, float] | None = None
    baseline: float | None = None
    baseline_ci95: tuple[float, float] | None = None
    threshold: float | None = None
    passed: bool | None = None
    reasons: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Acceptance of drafted tokens in a launch, in tokens per sequence and step.

    Attributes:
        drafted: tokens that are drafted per step.
        stated: what the model's card says of text, by its `source`.
        random: whether the prompts are random tokens, of whose drafts next to none is right.
        forced: what a switch of the engine was set to, as they are; None: nothing was forced.
        accepted: what came, by workload; without those of which nobody told.
    """

    drafted: int
    stated: float
    source: str
    random: bool
    forced: float | None = None
    accepted: Mapping[str, float] = field(default_factory=dict)

    def told(self, metrics: Mapping[str, Metrics]) -> Speculation:
        """Return a copy with the measured acceptance, from the workloads' metrics."""
        name = "spec_decode_acceptance_length"
        return replace(
            self, accepted={one: row[name] for one, row in metrics.items() if name in row}
        )


@dataclass(frozen=True, slots=True)
class TrialResult(Evidenced):
    """Result of a trial; the same shape for measured, emulated, simulated and replayed launches.

    Attributes:
        metrics: workload name to metrics; empty unless the state is ``complete`` or ``invalid``.
        times_s: seconds per phase (``launch, ready, warmup, load, stop``), of the node's clock:
            virtual seconds when the evidence is simulated; of all tries together.
        resolved: what the engine made of the configuration; None where nobody told.
        quarantine: why nothing more may be launched on this node; empty where it is as clean as
            before.
        node: where it ran, by the name that the executor gives its nodes.
        gpu_ids: the GPUs of that node that were reserved for it, where an executor reserves them.
        answers: what the check of its answers was told, on the way to the tuner; in no row.
        evidence_of: the evidence of a replayed launch when it was recorded; None: not told, or not
            replayed.
        kv_cache_tokens: tokens that one replica's KV cache holds; None where nobody told.
        longest_request_tokens: input and output of the longest request that it serves; None where
            that is not known.
        odds_of_starting: 1 where a server ran; by the memory plan where it was simulated.
        ranking: the metrics of a launch with random weights, which has no others: for its rank
            among candidates alone.
    """

    state: State
    evidence: Evidence
    failure: Failure | None = None
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    times_s: Mapping[str, float] = field(default_factory=dict)
    gpus: int = 0
    node: str = ""
    pids: tuple[int, ...] = ()
    started_at: str = ""
    resolved: Resolved | None = None
    quarantine: str = ""
    gpu_ids: tuple[str, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    evidence_of: Evidence | None = None
    kv_cache_tokens: int | None = None
    longest_request_tokens: int | None = None
    odds_of_starting: float | None = None
    speculation: Speculation | None = None
    ranking: Mapping[str, Metrics] = field(default_factory=dict)

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

    @property
    def answers_checked(self) -> bool:
        """Return whether the check of its answers has a result, even without a comparison."""
        return self.accuracy is not None

    @property
    def answers_right(self) -> bool | None:
        """Return whether its answers are as good as the baseline's; None without a comparison."""
        return None if self.accuracy is None else self.accuracy.passed

    def to_json(self) -> dict[str, Any]:
        """Return its part of a row: without the answers and without empty optional keys."""
        told = {**asdict(self), "failure": self.failure.to_json() if self.failure else None}
        del told["answers"]
        optional = ("accuracy", "gpu_ids", "quarantine", "speculation", "ranking")
        return {key: value for key, value in told.items() if value or key not in optional}

    def without_prompts(self) -> TrialResult:
        """Return a copy without the examples of answers, whose prompts may be private; our own
        prompts remain."""
        if self.accuracy is None or self.accuracy.kind == "builtin":
            return self
        return replace(self, accuracy=replace(self.accuracy, examples=()))


@dataclass(frozen=True, slots=True)
class Launch:
    """A finished trial with its result: one row of ``results.jsonl``."""

    trial: Trial
    result: TrialResult
