"""Evaluates by launching a server, loading it over HTTP, and stopping it.

One path for real engines (``process``, ``docker``), for the emulated ones that stand in for 8 GPUs (``emulator``) and
for a server that somebody else runs (``external:URL``).
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from autotune.home import write_atomically
from autotune.launch import Grace, Launcher, Patience, Server, launcher_for
from autotune.launch.secrets import read_secret
from autotune.load import LoadOptions, Measurement, Target, measure
from autotune.load.control import ServerClient
from autotune.load.prefix_cache import PrefixCache
from autotune.load.request_file import Load, requests_path, write_requests
from autotune.load.workloads import load_workload
from autotune.space.cards import HardwareCard
from autotune.space.library import Library
from autotune.space.schema import EngineCard
from autotune.spec import StudySpec
from autotune.trial import Command, Evidence, Failure, FailureKind, Metrics, State, Trial, TrialResult

EMULATOR_STARTUP_S = 1.0
"""An emulated engine need not take a real one's minutes to load."""
DEATH_S = 5.0
"""How long a server whose requests were cut off is given to show that it died, and why."""


@dataclass(slots=True)
class Phases:
    """Seconds per phase of one launch."""

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
    """What the loads on one server came to."""

    metrics: dict[str, Metrics] = field(default_factory=dict)
    failure: Failure | None = None
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class Launched:
    """Launches each trial's command, measures every workload that it asks for on the warm server, stops it.

    Attributes:
        spec: says where: ``process``, ``docker``, ``emulator`` or ``external:URL``.
        folder: the study's; each trial gets ``trials/<number>/`` in it.
    """

    spec: StudySpec
    library: Library
    folder: Path
    patience: Patience = field(default_factory=Patience)
    grace: Grace = field(default_factory=Grace)

    @property
    def evidence(self) -> Evidence:
        return Evidence.EMULATED if self.spec.on == "emulator" else Evidence.MEASURED

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        folder = self.folder / "trials" / f"{trial.number:04d}"
        card = self.library.engine(trial.configuration.engine)
        phases = Phases()
        with phases.measured("launch"):
            server = self._launcher().launch(self._command(trial), folder, card)
        with server:
            with phases.measured("ready"):
                failure = server.wait_ready(self.patience)
            pids = server.pids
            loaded = Loaded(failure=failure) if failure else self._load(server, trial, card, folder, phases)
            with phases.measured("stop"):
                report = server.stop()
        # What is left behind outweighs what was measured: the next launch would not be on a clean node.
        failure = report.failure() or loaded.failure
        return TrialResult(
            state=_state(failure, loaded),
            evidence=Evidence.EMULATED if server.emulated else self.evidence,
            failure=failure or (Failure(FailureKind.INFRASTRUCTURE, loaded.invalid) if loaded.invalid else None),
            metrics={} if failure else loaded.metrics,
            times_s=phases.times_s,
            gpus=self.spec.gpus,
            node=platform.node(),
            pids=pids,
            started_at=started_at,
        )

    def _launcher(self) -> Launcher:
        spec = self.spec
        if spec.on.startswith("external:"):
            key = read_secret(spec.api_key_env, spec.api_key_file, "--api-key")
            return launcher_for(spec.on, spec.model.id, api_key=key)
        token = read_secret(None, spec.hf_token_file, "--hf-token")
        environment = {} if token is None else {"HF_TOKEN": token}
        name = "docker" if spec.on == "docker" else "process"
        return launcher_for(name, grace=self.grace, environment=environment)

    def _command(self, trial: Trial) -> Command:
        if self.spec.on != "emulator":
            return trial.command
        return emulated(trial.command, self.spec.hardware, self.spec.gpus, trial.engine_version)

    def _load(self, server: Server, trial: Trial, card: EngineCard, folder: Path, phases: Phases) -> Loaded:
        """Every workload in turn on the warm server: its prefix cache is emptied and the prompts are new each time."""
        metrics: dict[str, Metrics] = {}
        for name in trial.workloads:
            with phases.measured("load"):
                measurement = self._measure(server, name, trial, card)
            phases.times_s["load"] -= measurement.warm_up_s
            phases.times_s["warmup"] += measurement.warm_up_s
            metrics[name] = measurement.metrics
            self._keep(measurement, server, folder, name)
            if measurement.invalid:
                return Loaded(metrics, invalid=f"{name}: {measurement.invalid}")
            if measurement.failure:
                died = server.failure(within_s=DEATH_S)
                return Loaded(failure=died or Failure(FailureKind.LOAD_ERRORS, f"{name}: {measurement.failure}"))
        died = server.failure()
        return Loaded(metrics, failure=died)

    def _measure(self, server: Server, name: str, trial: Trial, card: EngineCard) -> Measurement:
        workload = load_workload(name, self.library)
        target = Target.parse(server.url, server.api_key)
        with ServerClient(target) as client:
            options = LoadOptions(
                api_key=server.api_key,
                vocabulary=self.spec.model.architecture.vocab_size,
                cache=PrefixCache.of(client, [card], trial.engine_version),
                slos=self.spec.slos,
            )
            return measure(server.url, server.model, workload, self.spec.seed + trial.launch_index, options)

    def _keep(self, measurement: Measurement, server: Server, folder: Path, name: str) -> None:
        """The result of one workload beside the log, and its requests in a file of their own."""
        folder.mkdir(parents=True, exist_ok=True)  # An external server made none.
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
        path = folder / f"{safe}.json"
        evidence = Evidence.EMULATED if server.emulated else self.evidence
        about = {"workload": name, "seed": measurement.seed, "evidence": evidence.value}
        loads = [Load(point.label, measurement.seed, point.log) for point in measurement.points]
        write_requests(requests_path(path), loads, about)
        result = {**about, **measurement.to_json(), "requests_file": requests_path(path).name}
        write_atomically(path, json.dumps(result))


def _state(failure: Failure | None, loaded: Loaded) -> State:
    if failure is not None:
        return State.FAILED
    return State.INVALID if loaded.invalid else State.COMPLETE


def emulated(command: Command, hardware: HardwareCard, gpus: int, version: str) -> Command:
    """The command that stands in for an engine's: ``autotune emulate`` with the engine's own command line."""
    settings = [f"{name}={value}" for name, value in command.env.items()]
    options = ["--hw", "hardware.yaml", "--gpus", str(gpus), "--engine-version", version]
    options += ["--startup-s", str(EMULATOR_STARTUP_S)]
    argv = (sys.executable, "-m", "autotune", "emulate", *options, "--", *settings, *command.argv)
    card = yaml.safe_dump(hardware.model_dump(mode="json"), sort_keys=False)
    return Command(argv, {}, {**command.files, "hardware.yaml": card})
