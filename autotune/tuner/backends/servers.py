"""Backends with servers, and their evaluator: launch a server, load it over HTTP, and stop it."""

from __future__ import annotations

import json
import platform
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import randrange
from typing import ClassVar

import yaml

from autotune.base import (
    BadInput,
    CannotGoOn,
    ClientFailed,
    Evidence,
    FloatDict,
    JsonObject,
    Notify,
    Stage,
    StringMap,
    Watch,
    frozen,
    silent,
    write_atomically,
)
from autotune.engines import (
    Candidate,
    CandidateSet,
    Command,
    Configuration,
    Context,
    Engine,
    EngineCard,
    Failure,
    FailureKind,
    HardwareCard,
    Library,
    effective,
    engine,
    gpus_of,
    is_version,
    split_command,
)
from autotune.engines.command import plain
from autotune.engines.installed import engine_of, why_missing, with_installed_program
from autotune.engines.report_back import parse_reported
from autotune.load.client.target import Target
from autotune.load.live import carried
from autotune.load.load import Load
from autotune.load.measuring import LoadOptions, Measurement, ReadPower, send
from autotune.load.metrics.table import Metrics
from autotune.load.prefix_cache import DraftReader, PrefixCache, accepted_by_events
from autotune.load.request_file import requests_path, write_requests
from autotune.load.server_client import ServerClient
from autotune.node.calibration import calibration_of
from autotune.servers import ShutdownTimeouts, StartupTimeouts
from autotune.servers.command import cache_variables, of_version, read_secret
from autotune.servers.docker import DockerLauncher
from autotune.servers.docker_run import (
    asked_images,
    fetch_images,
    image_of,
    in_container,
    newest_image,
    no_image,
    version_of,
)
from autotune.servers.ports import NoFreePort
from autotune.servers.preflight import Node, cache_places
from autotune.servers.process import ProcessLauncher
from autotune.servers.server import ExternalServer, Server, connect
from autotune.servers.weights import weights_problem

from ..accuracy.asking import NoAnswers
from ..accuracy.check import check_of_study, timed
from ..study.home import make_trial_folder
from ..study.loads import context_of, loads_of
from ..study.options import RunOptions
from ..study.spec import StudySpec, is_local
from ..trial import DRAFTED, State, Trial, TrialResult
from . import (
    PHASES,
    AskedOptions,
    Backend,
    EvaluationSetup,
    Evaluator,
    Images,
    OwnCandidates,
    backend_of,
    missing_files,
    timestamp,
)
from .read_back import read_back, reported_by

DEATH_S = 5.0
"""Seconds in which a server with interrupted requests can show its death and the cause."""


@contextmanager
def measured(times_s: FloatDict, phase: str) -> Iterator[None]:
    """Add the seconds of a block to a phase of a trial, which may have several tries."""
    started_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        times_s[phase] += (time.perf_counter_ns() - started_ns) / 1e9


@frozen
class ServerEvaluator:
    """Launch each trial's command, measure its workloads on the warm server, and stop the server.

    Attributes:
        spec: its backend is a `ServerBackend`.
        folder: the study's; each trial gets ``trials/<number>/`` in it.
        ports: those that servers may be given; None: any of `autotune.servers.ports.RANGE`.
        waits_s: before each further try of a launch that failed for a reason that is not the
            configuration's.
        pause: waits so many seconds.
        notify: called before each wait, and with the stages of launches.
        node: the machine that is looked at before and after each launch; None: this one, as far as
            `spec` needs it.
    """

    spec: StudySpec
    library: Library
    folder: Path
    startup: StartupTimeouts = StartupTimeouts()
    shutdown: ShutdownTimeouts = ShutdownTimeouts()
    waits_s: tuple[float, ...] = (1.0, 10.0, 60.0)
    pause: Callable[[float], None] = time.sleep
    notify: Watch = silent
    ports: Sequence[int] | None = None
    node: Node | None = None

    @property
    def backend(self) -> ServerBackend:
        """The study's backend, which starts the servers."""
        backend = backend_of(self.spec)
        assert isinstance(backend, ServerBackend)
        return backend

    def __call__(self, trial: Trial) -> TrialResult:
        """Evaluate as `Evaluator`. Launches again after a pause if the configuration is not to
        blame.

        Raises:
            BadInput: the program is not there, a folder cannot be made, or the URL does not answer.
            CannotGoOn: nothing can be launched on this node, or the very first launch failed for a
                reason that is not the configuration's, in every try.
        """
        started_at = timestamp()
        # Over all tries; the waits between them count as ``launch``.
        times_s = dict.fromkeys(PHASES, 0.0)
        kind = engine(trial.configuration.engine, self.library)
        spec = self.spec
        node = self.node or node_of(spec)
        launches = self.backend.launches
        waits_s = self.waits_s if launches else ()
        for i, wait_s in enumerate((*waits_s, None)):
            unfit = None
            if launches:
                unfit = node.unfit(self.folder) or weights_failure(trial, kind, spec)
            result = self._failed(unfit) if unfit else self._launch(trial, kind, node, times_s)
            failure = result.failure
            if (
                wait_s is None
                or not failure
                or not _is_blameless(result)
                or result.quarantine
                or failure.lasting
                # The search decides about another launch, which gets a row of its own.
                or failure.may_be_external
            ):
                break
            tries = f"try {i + 2} of {len(waits_s) + 1} in {wait_s:g} s"
            self.notify(f"launch {trial.number}: {failure.message} ({tries})")
            self.notify(Stage(trial.number, "waiting for the next try"))
            with measured(times_s, "launch"):
                self.pause(wait_s)
        if failure and launches and not result.quarantine:
            self._check_prospects(trial, result, unfit or weights_failure(trial, kind, spec))
        return replace(
            result,
            times_s=times_s,
            gpus=spec.gpus,
            node=platform.node(),
            started_at=started_at,
        )

    def _check_prospects(self, trial: Trial, result: TrialResult, unfit: Failure | None) -> None:
        """Stop the study after a failed launch where the next would fare no better; resuming makes
        this one again.

        Whatever an engine says of a weight file that has gone since, its configuration is not to
        blame.
        """
        if unfit and not result.metrics:
            raise CannotGoOn(unfit.message)
        failure = result.failure
        if trial.number == 0 and failure and _is_blameless(result) and not failure.may_be_external:
            raise CannotGoOn(
                f"the first launch failed, but not because of its configuration: {failure.message}"
            )

    def _failed(self, failure: Failure) -> TrialResult:
        state = State.FAILED if failure.blames_the_configuration else State.INVALID
        return TrialResult(state, self.backend.evidence, failure)

    def _launch(self, trial: Trial, kind: Engine, node: Node, times_s: FloatDict) -> TrialResult:
        """Launch the trial's server once, load it, and stop it."""
        spec = self.spec
        folder = self.folder / "trials" / f"{trial.number:04d}"
        memory_before = node.used()
        launched, speculation = self.backend.with_forced_acceptance(spec, trial, kind, self.library)
        self.notify(Stage(trial.number, "starting"))
        try:
            with measured(times_s, "launch"):
                server = self.backend.start(self, launched, kind, folder)
        except NoFreePort as error:
            return self._failed(Failure(FailureKind.PORT, f"No server can be launched: {error}."))
        with server:
            with measured(times_s, "ready"):
                failure = server.wait_ready(self.startup)
                pids = server.pids
                # Knobs are resolved by the node, and the longest request of all workloads.
                context = context_of(spec, trial.engine_version, self.library).as_read(kind.card)
                resolved, served = (
                    (None, {}) if failure else read_back(server, kind, trial, context, folder)
                )
            if failure:
                result = self._failed(failure)
            else:
                result = self._load(server, trial, kind.card, folder, node, times_s)
            self.notify(Stage(trial.number, "stopping"))
            with measured(times_s, "stop"):
                report = server.stop()
                quarantine = report.left_behind() or node.left_behind(memory_before)
        # A port that stays taken was never the server's alone: its measurements count for nothing.
        if result.metrics and not report.port_free:
            result = self._broken(report.problem())
        return replace(
            result,
            evidence=self._evidence(server),
            pids=pids,
            quarantine=quarantine,
            resolved=resolved,
            speculation=speculation and speculation.with_acceptance(result.metrics),
            **(served if result.failure is None else {}),
        )

    def _evidence(self, server: Server) -> Evidence:
        return Evidence.EMULATED if server.emulated else self.backend.evidence

    def _load(
        self,
        server: Server,
        trial: Trial,
        card: EngineCard,
        folder: Path,
        node: Node,
        times_s: FloatDict,
    ) -> TrialResult:
        """Measure every load on the warm server, with an empty prefix cache and new prompts.

        A rung that was not measured as it should be says so in its row, and spoils nothing else.
        """
        metrics: dict[str, Metrics] = {}
        complete = TrialResult(State.COMPLETE, self.backend.evidence, metrics=metrics)
        loads = loads_of(self.spec, trial, self.library, self.backend.looks)
        drafted = trial.configuration.knobs.get(DRAFTED)
        power = node.meter(gpus_of(trial.configuration, self.spec.gpus))
        for load in loads:
            self.notify(Stage(trial.number, f"loaded with {load.workload.name}"))
            try:
                measurement = self._send(load, server, card, trial.engine_version, power, times_s)
            except ClientFailed as error:
                return self._broken(f"{load.study_name}: {error}")
            for note in measurement.refused.sentences():
                self.notify(f"launch {trial.number}: {note}")
            # Without the engine's draft counters, use the client's.
            accepted = accepted_by_events([one.log for one in measurement.logs]) if drafted else {}
            load.add(metrics, {**accepted, **measurement.metrics}, measurement.invalid)
            try:
                self._keep(measurement, server, folder, load.name)
            except OSError as error:
                return self._broken(
                    f"The measurements cannot be stored in {folder}: {error.strerror or error}."
                )
            if measurement.invalid and not load.rung:
                return _invalid(complete, f"{load.study_name}: {measurement.invalid}")
            if measurement.failure and not measurement.invalid:
                return self._refused(server, f"{load.study_name}: {measurement.failure}")
            if measurement.died and len(loads) == 1 and not trial.wants_answers:
                # Nothing more is asked of it, and what it carried before it died counts.
                return complete
        if died := server.failure():
            return self._failed(died)
        if not trial.wants_answers:
            return complete
        self.notify(Stage(trial.number, "checking its answers"))
        with measured(times_s, "load"):
            return self._answers(server, trial, complete)

    def _send(
        self,
        load: Load,
        server: Server,
        card: EngineCard,
        version: str,
        power: ReadPower | None,
        times_s: FloatDict,
    ) -> Measurement:
        """Send a load; raises `ClientFailed`."""
        with measured(times_s, "load"), ServerClient(server.target) as client:
            options = LoadOptions(
                api_key=server.api_key,
                vocabulary=self.spec.model.architecture.vocab_size,
                cache=PrefixCache.for_engines(client, [card], version),
                drafts=DraftReader(client, [card], version),
                power=power,
                slos=self.spec.request_limits,
                warm_up=not load.rung,
            )
            measurement = send(server.url, server.model, load, options)
        times_s["load"] -= measurement.warm_up_s
        times_s["warmup"] += measurement.warm_up_s
        return measurement

    def _broken(self, problem: str) -> TrialResult:
        return self._failed(Failure(FailureKind.INFRASTRUCTURE, problem))

    def _refused(self, server: Server, problem: str) -> TrialResult:
        """Explain failed requests: by the server's death, if it died of them."""
        return self._failed(
            server.failure(within_s=DEATH_S) or Failure(FailureKind.LOAD_ERRORS, problem)
        )

    def _answers(self, server: Server, trial: Trial, complete: TrialResult) -> TrialResult:
        """Store the answers of a measured server for the check.

        Raises `BadInput` where the user's command or task file fails on the very first launch, the
        baseline's.
        """
        try:
            check = check_of_study(self.spec)
            assert check is not None
            return replace(complete, answers=timed(check, server.target, server.model))
        except NoAnswers as error:
            return self._refused(server, f"check of answers: {error}")
        except BadInput as error:
            if trial.number == 0:
                raise
            return _invalid(complete, str(error))

    def _keep(self, measurement: Measurement, server: Server, folder: Path, name: str) -> None:
        """Write the result of one load next to the log, and its requests to a separate file."""
        make_trial_folder(folder)  # An external server made none.
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
        path = folder / f"{safe}.json"
        evidence = self._evidence(server).value
        about = {"workload": name, "seed": measurement.seed, "evidence": evidence}
        requests = requests_path(path)
        write_requests(requests, measurement.logs, about)
        row = {**about, **measurement.to_json(), "requests_file": requests.name}
        write_atomically(path, json.dumps(row))


def _invalid(complete: TrialResult, problem: str) -> TrialResult:
    """Return a result whose figures say nothing of the configuration."""
    failure = Failure(FailureKind.INFRASTRUCTURE, problem)
    return replace(complete, state=State.INVALID, failure=failure)


def _is_blameless(result: TrialResult) -> bool:
    """Return whether a launch failed independently of its configuration; an invalid measurement is
    no failure."""
    return result.state is State.INVALID and not result.metrics


def weights_failure(trial: Trial, kind: Engine, spec: StudySpec) -> Failure | None:
    """Describe the missing weights of a trial on this node; None for none, or uncertain."""
    backend = backend_of(spec)
    if not backend.on_gpus:
        return None
    if installed := spec.installed.get(kind.name):
        kind = kind.installed(installed.program, kind.table(installed.version))
    problem = weights_problem(
        trial.command,
        kind,
        trial.engine_version,
        spec.model,
        spec.installed.values(),
        contained=backend.contained,
    )
    return Failure(FailureKind.INFRASTRUCTURE, problem, lasting=True) if problem else None


def node_of(spec: StudySpec) -> Node:
    """Return a study's requirements on this machine: its GPUs only if launches use them."""
    backend = backend_of(spec)
    on_gpus = backend.on_gpus and spec.hardware.vendor != "cpu"
    caches = {} if backend.contained or not backend.on_gpus else cache_places()
    return Node(count=spec.gpus, caches=caches) if on_gpus else Node(gpus=tuple, caches=caches)


class ServerBackend(Backend):
    """Backend whose trials are loaded over HTTP."""

    def evaluator(self, setup: EvaluationSetup) -> Evaluator:
        return ServerEvaluator(setup.spec, setup.library, setup.folder, notify=setup.notify)

    @abstractmethod
    def start(self, run: ServerEvaluator, trial: Trial, kind: Engine, folder: Path) -> Server:
        """Start a trial's server in the trial's own folder, or connect to it; raises `NoFreePort`
        or `BadInput`."""


class LaunchingBackend(ServerBackend):
    """Backend that launches the servers."""

    launcher: ClassVar[type[ProcessLauncher]] = ProcessLauncher

    def start(self, run: ServerEvaluator, trial: Trial, kind: Engine, folder: Path) -> Server:
        token = read_secret(None, run.spec.hf_token_file, "--hf-token")
        secrets = {"HF_TOKEN": token} if token else {}
        launcher = self.launcher(run.shutdown, secrets, run.ports, run.spec.inherited is None)
        version = trial.engine_version
        card = of_version(kind.card, version, kind.table(version).flags)
        return launcher.launch(self.start_command(trial, card, run), folder, card)

    def start_command(self, trial: Trial, card: EngineCard, run: ServerEvaluator) -> Command:
        """Return the start command of a trial: its own, plus settings of this machine."""
        return trial.command


class Process(LaunchingBackend):
    """Installed engines of this machine, as processes."""

    form = "process"
    evidence = Evidence.MEASURED
    on_gpus = installed = True

    def check(self, options: RunOptions, hardware: HardwareCard) -> None:
        if (
            options.model.startswith((".", "/", "~"))
            and not Path(options.model).expanduser().exists()
        ):
            raise BadInput(
                f"--model {options.model}: this folder does not exist, so a server here could not "
                "read it"
            )

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        if kind.name in spec.installed:
            return None
        return why_missing(kind.card) or f"{kind.card.title} was not installed when the study began"

    def typed_command(self, command: Command, kind: Engine) -> Command:
        return with_installed_program(command, kind)

    def start_command(self, trial: Trial, card: EngineCard, run: ServerEvaluator) -> Command:
        # Kernels belong to the installed engine, not to the known version whose table stands in.
        installed = run.spec.installed.get(card.engine)
        command = trial.command
        version = installed.version if installed else trial.engine_version
        # Caches are no part of the recommended command: a person has caches of their own.
        caches = cache_variables(
            card.serving.caches, card.engine, version, run.spec.hardware.name, command.env
        )
        return replace(command, env={**caches, **command.env})


class Docker(LaunchingBackend):
    """Engines in containers on this machine."""

    form = "docker"
    evidence = Evidence.MEASURED
    on_gpus = contained = True
    launcher = DockerLauncher

    def images(
        self,
        texts: Sequence[str],
        cards: Sequence[EngineCard],
        versions: StringMap,
        hardware: HardwareCard,
        library: Library,
    ) -> Images:
        chosen_images = asked_images(texts, library)
        for name, version in versions.items():
            if name not in chosen_images:
                card = library.engine(name)
                known = image_of(card, hardware, version)
                if known is None:
                    raise BadInput(f"--engine {name}=={version}: {no_image(card, hardware)}")
                chosen_images[name] = known.image.replace("{version}", version)
        chosen = {}
        for card in cards:
            if image := chosen_images.get(card.engine):
                version = version_of(image, engine(card.engine, library), hardware)
                chosen[card.engine] = version, image
            elif newest := newest_image(card, hardware):
                chosen[card.engine] = newest
        return chosen

    def version_of(self, kind: Engine, spec: StudySpec) -> str:
        image = spec.images.get(kind.name)
        return kind.version() if image is None else version_of(image, kind, spec.hardware)

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        return None if kind.name in spec.images else no_image(kind.card, spec.hardware)

    def as_launched(self, command: Command, card: EngineCard, spec: StudySpec) -> Command:
        image = spec.images.get(card.engine)
        if image is None:
            raise BadInput(no_image(card, spec.hardware))
        return in_container(command, image, card, spec.hardware)

    def fetch(self, spec: StudySpec, engines: Sequence[str], notify: Notify) -> None:
        fetch_images([spec.images[name] for name in engines], notify)


class Emulator(LaunchingBackend):
    """Emulated engines (`autotune emulate`): real processes and HTTP, at the times of the simulated
    node."""

    form = "emulator"
    evidence = Evidence.EMULATED
    startup_s = 1.0  # An emulated engine need not take a real one's minutes to load.

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        return missing_files(kind, "emulator", ("simulation", "emulation"))

    def start_command(self, trial: Trial, card: EngineCard, run: ServerEvaluator) -> Command:
        """Wrap an engine's command in ``autotune emulate``."""
        spec = run.spec
        command = trial.command
        emulate = (
            "-m autotune emulate --hw hardware.yaml --calibration coefficients.yaml "
            f"--gpus {command.gpus_each(spec.gpus)} --engine-version {trial.engine_version} "
            f"--startup-s {self.startup_s} --"
        )
        argv = (sys.executable, *emulate.split(), *command.argv)
        documents = {
            "hardware.yaml": spec.hardware,
            "coefficients.yaml": calibration_of(run.library),
        }
        texts = {
            n: yaml.safe_dump(d.model_dump(mode="json"), sort_keys=False)
            for n, d in documents.items()
        }
        # Set the environment as for a real engine: `emulate` corrects variables that stand in front
        # of a typed command.
        return replace(command, argv=argv, files={**command.files, **texts})

    def announcement(self, spec: StudySpec, library: Library, options: AskedOptions) -> str:
        return (
            "EMULATED: real processes and HTTP, but emulated engines with the times of a simulated "
            f"{spec.gpus}×{spec.hardware.name} node."
        )


MEASUREMENTS = 5
"""Measurements of an external server unless ``--launches`` says otherwise: enough for an
interval."""


class External(ServerBackend):
    """One external server, by its URL: the only candidate, measured again and again, and its own
    baseline."""

    form = "external:URL"
    evidence = Evidence.MEASURED
    foreign = True

    @classmethod
    def parse(cls, on: str) -> External:
        backend = cls(on)
        if not backend.url:
            raise BadInput(
                f"--on {on} names no server: write {cls.form}, e.g. external:http://127.0.0.1:8000"
            )
        Target.parse(backend.url)
        return backend

    @property
    def url(self) -> str:
        return self.on.partition(":")[2]

    def watches(self, workloads: Sequence[str]) -> bool:
        """Return whether the load is the server's own traffic: then nothing is sent to it."""
        return f"live:{self.url}" in workloads

    def own_defaults(self, workloads: Sequence[str] = ()) -> JsonObject:
        if self.watches(workloads):
            return {"launches": 1, "baseline": f"live:{self.url}"}
        # The server may keep the prompts of an earlier study in its cache.
        return {"launches": MEASUREMENTS, "seed": randrange(10**6)}

    def evaluator(self, setup: EvaluationSetup) -> Evaluator:
        if self.watches(setup.spec.workloads):
            return partial(self._read, setup)
        return super().evaluator(setup)

    def _read(self, setup: EvaluationSetup, trial: Trial) -> TrialResult:
        """Return what the server carried between its pages; nothing is sent to it."""
        spec = setup.spec
        metrics = carried(setup.folder / "traffic" / "0")
        return TrialResult(
            State.COMPLETE,
            Evidence.EMULATED if self._connect(spec).emulated else self.evidence,
            metrics={spec.workloads[0]: metrics},
            times_s={"load": metrics["duration"]},
            gpus=spec.gpus,
            started_at=timestamp(),
        )

    def announcement(self, spec: StudySpec, library: Library, options: AskedOptions) -> str:
        if self.watches(spec.workloads):
            return f"read from the counters of {self.url}: it carries traffic, so nothing is sent to it"
        return super().announcement(spec, library, options)

    def check(self, options: RunOptions, hardware: HardwareCard) -> None:
        watches = self.watches(options.workloads)
        if watches and (options.workloads[1:] or options.find_load or options.ladder):
            raise BadInput(
                f"--workload {options.workloads[0]}: its traffic alone is read there, so neither other "
                "workloads nor --find-load and --ladder, which would load it on top"
            )
        refused = {
            "--baseline": None if watches else options.baseline,
            "--engine-arg": options.engine_args,
            "--set": options.pins,
            "--env": options.env,
        }
        asked = " and ".join(option for option, value in refused.items() if value)
        if not is_local(options.executor):
            raise BadInput(
                f"--executor {options.executor}: nodes would load one server at the same time; "
                "remove the option"
            )
        if asked:
            raise BadInput(
                f"{asked}: an external server cannot be configured. To search from its command, "
                f"leave out --on {self.on} and give the command as --baseline; to measure the "
                f"server as it is, leave out {asked}"
            )

    def own_candidates(self, spec: StudySpec, library: Library) -> OwnCandidates:
        # Check before the study begins that it answers and serves the model.
        server = self._connect(spec)
        known = {spec.model.architecture}
        for name in (server.model, server.root):
            with suppress(BadInput):  # A name of its own, or a folder that is not here
                known.add(library.model(name).architecture)
        if len(known) > 1:
            raise BadInput(
                f"{self.url} serves {server.root}, not {spec.model.id}: name it with --model"
            )
        choice = next((e for e in spec.engines if e.name == server.owner), spec.engines[0])
        kind = engine_of(choice.name, {}, library, silent)
        version = server.version if is_version(server.version) else choice.version
        context = context_of(spec, version, library).as_read(kind.card)
        only = Candidate(Configuration(kind.name, {"url": self.url}), version)
        # Its command line is unknown; the stand-in names its address.
        return OwnCandidates(
            CandidateSet((only,), 0, alone=True),
            {kind.name: (kind, context)},
            lambda _: Command((self.on,)),
            notes=self._described(server, spec, kind, context, library),
        )

    def _described(
        self,
        server: ExternalServer,
        spec: StudySpec,
        kind: Engine,
        context: Context,
        library: Library,
    ) -> list[str]:
        """Say under which name the model is served, and how the server is set up as far as it
        reports it."""
        renamed = server.model != spec.model.id
        notes = [f"{self.url} serves {spec.model.id} as {server.model}"] if renamed else []
        if not self.watches(spec.workloads):
            with ServerClient(server.target) as client:
                _, refused = client.asked(server.model)
            notes += [f"{self.url}: requests are {sentence}" for sentence in refused.sentences()]
        sources = {
            one.name: one.settings for one in reported_by(server, kind.card, context.version)
        }
        expected = Configuration(kind.name, kind.default_knobs(context))
        usual = f"the defaults of {kind.card.title} {context.version}"
        if spec.verifies:
            usual = "those of the recommended command"
            # Parse it in the version that it was written for; the server's may lack its options.
            parsed = kind.parse(
                split_command(spec.verifies.commands[0].command), spec.engines[0].version
            )
            expected = effective(kind.card, kind.knobs(parsed, context), context)
        reported_knobs, ran = parse_reported(kind, expected, context, sources)
        left_to_engine, others = list[str](), list[str]()
        for name in reported_knobs:
            wanted, value = expected.knobs[name], ran.knobs[name]
            if value == wanted:
                continue
            if wanted in (None, "auto"):
                left_to_engine.append(f"{name} {plain(value)}")
            else:
                others.append(f"{name} {plain(value)} (not {plain(wanted)})")
        sentence = f"the {len(reported_knobs)} settings that it reports are {usual}"
        if others:
            sentence = f"its settings are not {usual}: {', '.join(others)}"
        if left_to_engine:
            sentence += f"; where these leave it to the engine: {', '.join(left_to_engine)}"
        if not reported_knobs:
            sentence = f"it reports no settings, so whether they are {usual} is not checked"
        if server.owner in library.engines and server.owner != kind.name:
            sentence = f"its engine is {server.owner}, so its settings are not {usual}"
        return [*notes, f"{self.url}: {sentence}"]

    def start(
        self, run: ServerEvaluator, trial: Trial, kind: Engine, folder: Path
    ) -> ExternalServer:
        return self._connect(run.spec)

    def _connect(self, spec: StudySpec) -> ExternalServer:
        key = read_secret(spec.api_key_env, spec.api_key_file, "--api-key")
        return connect(self.url, spec.model.names, key)
