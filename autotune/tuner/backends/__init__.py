"""Backends run trials: their contract, and `backend_of`, which chooses one by ``--on``.

A backend says what candidates there are, who evaluates them, and what its launches need. It is
chosen once; nobody else asks which one it is. `ValidatedEvaluator` is around each evaluator, so
that no figure leaves it that cannot be: one that is not finite, or below zero where nothing can be,
comes from a fault of the engine's own counts, of a replay file, of somebody else's evaluator.

servers      backends with servers, loaded by HTTP: `Process`, `Docker`, `Emulator`, `External`
simulator    the simulated node in virtual time
recorded     recorded launches: a table in the search's order, or a bundled study in its own
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from numbers import Integral, Real
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np

from autotune.base import (
    BadInput,
    Evidence,
    JsonObject,
    Notify,
    StringMap,
    Strings,
    Watch,
    frozen,
    silent,
)
from autotune.engines import (
    Candidate,
    CandidateSet,
    Command,
    Context,
    Engine,
    EngineCard,
    Failure,
    FailureKind,
    HardwareCard,
    Library,
    Scalar,
)
from autotune.engines.library import packaged
from autotune.load.capacity.judge import LOOKS
from autotune.load.metrics.table import GOODPUT, METRICS, Metrics
from autotune.load.workloads import load_workload
from autotune.servers.command import read_secret

from ..study.loads import check_free
from ..study.options import RunOptions, VerifyOptions
from ..study.recommendation import Exclusion, Recommendation
from ..study.spec import StudySpec
from ..trial import DRAFTED, Launch, Role, Rungs, Speculation, State, Trial, TrialResult

BACKENDS = {
    "process": "autotune.tuner.backends.servers:Process",
    "docker": "autotune.tuner.backends.servers:Docker",
    "emulator": "autotune.tuner.backends.servers:Emulator",
    "external": "autotune.tuner.backends.servers:External",
    "simulator": "autotune.tuner.backends.simulator:Simulator",
    "replay": "autotune.tuner.backends.recorded:RecordedBundle",
}
"""``--on`` up to its colon to the class. By name, so that its readers do not import the load
generator."""

Images = dict[str, tuple[str, str]]
"""Version and container image by engine."""
AskedOptions = RunOptions | VerifyOptions | None
"""Options of a study that begins; None for an earlier one."""
PHASES = ("launch", "ready", "warmup", "load", "stop")
"""Keys of `TrialResult.times_s`, in order."""
_VIRTUAL = (Evidence.SIMULATED, Evidence.REPLAYED)


Evaluator = Callable[[Trial], TrialResult]
"""Launch, load, stop. A configuration that cannot run gives a result, not an exception."""


@frozen
class OwnCandidates:
    """Candidates of a backend that replace the search space.

    Attributes:
        engines: those that have an engine card, each with the context of its commands.
        command_of: writes a candidate's command.
        excluded: engines that were not searched.
        recorded: launches that are answered one after the other.
        notes: sentences about the candidates, printed when a study begins.
    """

    candidates: CandidateSet
    engines: Mapping[str, tuple[Engine, Context]]
    command_of: Callable[[Candidate], Command]
    excluded: tuple[Exclusion, ...] = ()
    recorded: Sequence[Launch] = ()
    notes: Sequence[str] = ()


@frozen
class Backend(ABC):
    """Place where trials run; an immutable, picklable value.

    Attributes:
        on: as ``study.yaml`` has it.
        form: how ``--on`` is written.
        evidence: how its launches are made. Launches that are simulated or replayed take no time
            (`virtual`); figures that are simulated or emulated come from the simulator
            (`predicted`).
        foreign: somebody else runs the server: nothing can be set on it, and a launch cannot be
            repeated.
        on_gpus: launches run engines on GPUs of this machine, which must be idle, and read a
            model's weights.
        installed: the engines are those of this machine, with their versions and options.
        contained: launches run in containers.
        startup_s: seconds that every server takes to start; None: as long as the engine takes.
        noise_by_default: sigma of the noise that is added to a launch; None: launches have noise of
            their own.
        looks: that each load of a load search may have. Where there are several, a rate that it
            finds is also confirmed by a long load.
    """

    on: str
    form: ClassVar[str]
    evidence: ClassVar[Evidence]
    foreign: ClassVar[bool] = False
    on_gpus: ClassVar[bool] = False
    installed: ClassVar[bool] = False
    contained: ClassVar[bool] = False
    startup_s: ClassVar[float | None] = None
    noise_by_default: ClassVar[float | None] = None
    looks: ClassVar[int] = LOOKS

    @classmethod
    def parse(cls, on: str) -> Backend:
        """Make the backend of ``--on``, paths made absolute; raises `BadInput` for an invalid
        text."""
        if on != cls.form:
            raise _unknown(on)
        return cls(on)

    @property
    def kind(self) -> str:
        """``on`` up to its colon."""
        return self.on.partition(":")[0]

    @property
    def elsewhere(self) -> str:
        """Return `kind` if launches do not use this machine's installed engines; else empty."""
        return "" if self.installed else self.kind

    @property
    def virtual(self) -> bool:
        """True if launches take no time: without a server, in virtual time or from a file."""
        return self.evidence in _VIRTUAL

    @property
    def predicted(self) -> bool:
        """True if the launches' figures are simulated."""
        return self.evidence.predicted

    @property
    def recorded(self) -> bool:
        """True if launches are read from a file."""
        return self.evidence is Evidence.REPLAYED

    @property
    def unused_options(self) -> Strings:
        """Name options of `run` that mean nothing here, because the candidates are given."""
        return ("screen",) if self.recorded or self.foreign else ()

    @property
    def launches(self) -> bool:
        """True if servers are launched: launches can be repeated, and take settings and secrets."""
        return not self.virtual and not self.foreign

    @abstractmethod
    def evaluator(self, setup: EvaluationSetup) -> Evaluator:
        """Make a study's evaluator."""

    def speculation(
        self,
        spec: StudySpec,
        kind: Engine,
        version: str,
        drafted: Scalar,
        library: Library,
        random_weights: bool = False,
    ) -> Speculation | None:
        """Return the acceptance that a launch forces on its engine; None without drafts.

        Drafts on random tokens are right next to never. There the engine is made to accept what
        the model does on text, where its version can be; not where answers are checked, as they are
        wrong then. Drafts of a server with `random_weights` are right next to never, whatever
        the prompts.
        """
        if not isinstance(drafted, int) or drafted < 1:
            return None
        random = not load_workload(spec.workloads[0], library).has_text
        stated = round(spec.model.acceptance.length(drafted), 2)
        forced = None
        forceable = random_weights or (random and not spec.reference_checks)
        if forceable and (switch := kind.switch(version)):
            forced = float(min(switch.counted(stated) + switch.counts_drafts, 1 + drafted))
        return Speculation(drafted, stated, spec.model.acceptance.source, random, forced)

    def with_forced_acceptance(
        self, spec: StudySpec, trial: Trial, kind: Engine, library: Library
    ) -> tuple[Trial, Speculation | None]:
        """Return a trial as launched, and its forced acceptance; no other command has the
        switches."""
        version = trial.engine_version
        command = trial.command
        random_weights = trial.role is Role.RANDOM_WEIGHTS
        drafted = trial.configuration.knobs.get(DRAFTED)
        speculation = self.speculation(spec, kind, version, drafted, library, random_weights)
        if speculation and speculation.forced is not None:
            command = kind.with_forced_acceptance(command, version, speculation.forced)
        if random_weights:
            command = kind.with_random_weights(command, spec.context(version))
        if command is not trial.command:
            command = self.as_launched(replace(command, container=()), kind.card, spec)
            trial = replace(trial, command=command)
        return trial, speculation

    # The question: from options to a specification.

    def own_defaults(self, workloads: Sequence[str] = ()) -> JsonObject:
        """Return this backend's own defaults of options, where they differ from those of `run`."""
        return {}

    def check(self, options: RunOptions, hardware: HardwareCard) -> None:
        """Raise `BadInput` for options that do not apply here."""

    def whole_spec(self, options: RunOptions, library: Library) -> StudySpec | None:
        """Return the whole specification of a file; None: the options define the study."""
        return None

    def from_file(self, spec: StudySpec, options: RunOptions, library: Library) -> StudySpec | None:
        """Add engines, workloads and settings of a file; None: use the engines' cards."""
        return None

    def noise(self, asked: float | None) -> float:
        """Return the sigma of the noise added to a launch; raises `BadInput` if noise is
        impossible."""
        if asked and self.noise_by_default is None:
            raise BadInput(f"--noise {asked:g}: launches on {self.on} already have noise")
        return asked if asked is not None else self.noise_by_default or 0.0

    def secret_sources(self, options: RunOptions) -> dict[str, str | None]:
        """Name the sources of a study's secrets for its spec, by absolute paths, for a resume from
        another folder.

        Raises `BadInput` for a source that is not there, or that the study has no use for: a key is
        for a server of somebody else's, a token for one that the study launches.
        """
        key = (options.api_key_env, options.api_key_file)
        token = options.hf_token_file
        if None not in key:
            raise BadInput(
                "--api-key-env and --api-key-file are mutually exclusive: a server has one key"
            )
        live = any(one.startswith("live:") for one in (options.baseline or "", *options.workloads))
        if key != (None, None) and not (self.foreign or live):
            raise BadInput(
                "--api-key-env and --api-key-file are for --on external:URL and live:URL, but this "
                f"study runs on {self.on}; a server that autotune launches takes its key from the command, "
                "e.g. --engine-arg vllm='--api-key ${NAME}'"
            )
        if token is not None and not self.launches:
            raise BadInput(
                "--hf-token-file is for servers that autotune launches, but this study runs on "
                f"{self.on}"
            )
        read_secret(*key, "--api-key")
        read_secret(None, token, "--hf-token")
        return {
            "api_key_env": options.api_key_env,
            "api_key_file": _absolute(options.api_key_file),
            "hf_token_file": _absolute(token),
        }

    def measurable(
        self, spec: StudySpec, rungs: Rungs, library: Library
    ) -> tuple[Rungs, Sequence[str]]:
        """Return the measurable rungs of the first workload, and notes; raises `BadInput` for
        none."""
        check_free(spec.workloads[0], library)
        return rungs, ()

    def images(
        self,
        texts: Sequence[str],
        cards: Sequence[EngineCard],
        versions: StringMap,
        hardware: HardwareCard,
        library: Library,
    ) -> Images:
        """Choose version and container image by engine; empty without containers.

        Args:
            texts: of ``--image``.
            versions: by engine, those that were asked for.

        Raises `BadInput` for an image that would not be used, and a version without one.
        """
        if texts:
            raise BadInput(f"--image is for --on docker, but this study runs on {self.on}")
        return {}

    # The candidates, and their commands.

    def own_candidates(self, spec: StudySpec, library: Library) -> OwnCandidates | None:
        """Return the candidates; None: those of the search space."""
        return None

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        """Explain why an engine cannot run here; None if it can."""
        return None

    def version_of(self, kind: Engine, spec: StudySpec) -> str:
        """Return the version of an engine that is not searched, as a baseline's."""
        return kind.version()

    def typed_command(self, command: Command, kind: Engine) -> Command:
        """Return the command that starts a typed command here."""
        return command

    def as_launched(self, command: Command, card: EngineCard, spec: StudySpec) -> Command:
        """Return the command as launched: in its engine's container, or unchanged; raises
        `BadInput`."""
        return command

    def fetch(self, spec: StudySpec, engines: Sequence[str], notify: Notify) -> None:
        """Fetch the requirements of launches before the first one, e.g. container images; raises
        `BadInput`."""

    # Sentences about the backend.

    def announcement(self, spec: StudySpec, library: Library, options: AskedOptions) -> str:
        """Return the first line of a study, the source of its numbers; no options for an earlier
        study."""
        line = f"measured on {self.on}"
        if random := [name for name in spec.workloads if not load_workload(name, library).has_text]:
            line += (
                f"; the prompts of {', '.join(random)} are random tokens: routing of experts, "
                "prefix hits and acceptance of drafts that nothing forces are not those of real "
                "text, which --workload prose, code or sharegpt:FILE sends"
            )
        return line

    def conclusion(self, spec: StudySpec, recommendation: Recommendation) -> str:
        """Compare the recommendation with a recorded one in a sentence; empty without one."""
        return ""


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(path))


def backend_of(spec: StudySpec) -> Backend:
    """Return the backend of a study."""
    return backend_named(spec.on)


def backend_named(on: str) -> Backend:
    """Return the backend of ``--on``; raises `BadInput` for an unknown one."""
    path = BACKENDS.get(on.partition(":")[0])
    if path is None:
        raise _unknown(on)
    backend: Backend = resolve_name(path).parse(on)
    return backend


def evaluator_for(setup: EvaluationSetup) -> Evaluator:
    """Make the evaluator of a study, see `Backend.evaluator`."""
    return backend_of(setup.spec).evaluator(setup)


@frozen
class EvaluationSetup:
    """Parts of a study's evaluators; picklable, so that each node makes its own.

    Attributes:
        folder: the study's, to which launches write.
        notify: gets the stages of launches.
        make: makes the evaluator.
    """

    spec: StudySpec
    library: Library
    folder: Path
    notify: Watch = silent
    make: Callable[[EvaluationSetup], Evaluator] = evaluator_for

    def evaluator(self) -> Evaluator:
        """Make the study's evaluator; its results have the derived metrics and are checked."""
        return ValidatedEvaluator(self.make(self), self.spec)

    def lost(self, message: str) -> TrialResult:
        """Return the result of a launch whose process died."""
        return TrialResult(
            state=State.INVALID,
            evidence=backend_of(self.spec).evidence,
            failure=Failure(FailureKind.INFRASTRUCTURE, message),
            gpus=self.spec.gpus,
            started_at=timestamp(),
        )


def timestamp() -> str:
    """Return the present time as rows have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def noise_factor(spec: StudySpec, trial: Trial) -> float:
    """Draw a log-normal factor on the node's speed, fixed by (seed, candidate, launch index)."""
    generator = np.random.default_rng(
        [spec.seed, int(trial.configuration.fingerprint, 16), trial.launch_index]
    )
    return math.exp(spec.noise * float(generator.standard_normal()))


def missing_files(kind: Engine, name: str, folders: Sequence[str]) -> str | None:
    """Name the packaged files of an engine that a simulated backend lacks; None for none."""
    absent = next(
        (path for folder in folders if not (path := packaged(folder, kind.name)).is_file()), None
    )
    if absent is None:
        return None
    return f"the {name} does not know {kind.name}: {absent} is missing; use --on process"


def forms(*, virtual: bool) -> str:
    """List the forms of ``--on``, of all backends or of those with servers."""
    return ", ".join(
        one.form
        for one in map(resolve_name, BACKENDS.values())
        if virtual or one.evidence not in _VIRTUAL
    )


def _unknown(on: str) -> BadInput:
    return BadInput(f"--on {on}: this version runs trials on: auto, {forms(virtual=True)}")


_NOT_JSON = object()


@frozen
class ValidatedEvaluator:
    """Evaluator that adds derived metrics and checks results: the objective exists, no figure is
    impossible.

    Figures of random weights are set apart as what the launch ranks by, so that nobody takes them
    for measurements.

    A complete result with an impossible figure becomes ``invalid``, with the first one in its
    message. Such figures are left out whatever the state, so that a row is always JSON.
    """

    evaluator: Evaluator
    spec: StudySpec

    def __call__(self, trial: Trial) -> TrialResult:
        """Evaluate as `Evaluator`."""
        result = self.evaluator(trial)
        # A recorded launch has its ranking apart already.
        metrics = {
            name: self.spec.derived(measured, trial.configuration)
            for name, measured in result.measurements.items()
        }
        checked = {name: _as_json(measured) for name, measured in metrics.items()}
        ranks = trial.role is Role.RANDOM_WEIGHTS
        result = replace(
            result,
            metrics={} if ranks else checked,
            ranking=checked if ranks else {},
            times_s={name: float(s) for name, s in result.times_s.items() if _is_possible(s)},
        )
        problem = next(self._problems(trial.workloads, metrics), None)
        if problem is None or result.state is not State.COMPLETE:
            return result
        message = f"{problem}. The measurement says nothing about the configuration."
        return replace(
            result, state=State.INVALID, failure=Failure(FailureKind.INFRASTRUCTURE, message)
        )

    def _problems(self, workloads: Sequence[str], metrics: Mapping[str, Metrics]) -> Iterator[str]:
        """List the problems of a complete result, the objective's first."""
        objective = self.spec.objective
        goals = {workloads[0], *self.spec.weights}
        for name in (name for name in workloads if name in goals):
            if name not in metrics:
                yield f"{name}: not measured, although the launch is reported as complete"
                continue
            measured = metrics[name]
            value = measured.get(objective)
            if self.spec.load.too_slow(measured):
                continue  # It was measured, and found too slow for any load.
            if value is None:
                yield f"{name}: its metrics lack the objective, {objective}"
            elif not _is_possible(value):
                yield f"{name}: {objective} is {_impossible(value)}"
            elif not value > 0 and not (objective == GOODPUT and measured.get("duration")):
                why = "nothing was counted" if METRICS[objective].maximise else "it was not timed"
                yield f"{name}: {objective} is 0: {why}"
        for name, measured in metrics.items():
            for metric, value in measured.items():
                if metric in METRICS and value is not None and not _is_possible(value):
                    yield f"{name}: {metric} is {_impossible(value)}"


def _is_possible(value: object) -> bool:
    """Return whether a value is a finite number of at least zero, as every metric and time."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf


def _impossible(value: object) -> str:
    return f"{str(value)[:40]}; a finite number of at least 0 was expected"


def _as_json(value: Any) -> Any:
    """Convert a value to JSON's types, without impossible figures, and numbers of any library to
    Python's; `_NOT_JSON` for other values."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else _NOT_JSON
    if isinstance(value, Mapping):
        converted = {str(name): _as_json(one) for name, one in value.items()}
        return {
            name: one
            for name, one in converted.items()
            if one is not _NOT_JSON
            and (name not in METRICS or not isinstance(one, int | float) or _is_possible(one))
        }
    if isinstance(value, list | tuple):
        return [None if one is _NOT_JSON else one for one in map(_as_json, value)]
    return _NOT_JSON
