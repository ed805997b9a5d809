"""Evaluates on the simulated node, in virtual time.

It is given a command line, not knobs: it parses the trial's own command as the engine's version does, so that
``autotune simulate`` on the printed command and the study agree by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.engines import engine
from autotune.engines.report_back import Heard, compare
from autotune.evaluate.noise import noise_factor, scaled
from autotune.loadgen.workloads import load_workload
from autotune.simulator.resolve_command import Understood, predict, understand
from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.context import Context
from autotune.space.library import Library
from autotune.trial import Evidence, Failure, Metrics, Resolved, State, Trial, TrialResult


@dataclass(frozen=True, slots=True)
class Simulated:
    """Evaluates on the simulated node, in virtual time.

    Attributes:
        noise: sigma of the log-normal factor that one launch's throughput gets.
    """

    library: Library
    model: ModelCard
    hardware: HardwareCard
    gpus: int
    noise: float
    seed: int
    evidence: Evidence = Evidence.SIMULATED

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        workloads = {name: load_workload(name, self.library) for name in trial.workloads}
        longest = max(workload.longest_request for workload in workloads.values())
        context = Context(self.model, self.hardware, self.gpus, trial.engine_version, longest)
        understood = understand(trial.command, self.library, context, trial.engine_version)
        factor = noise_factor(self.noise, self.seed, trial)
        metrics: dict[str, Metrics] = {}
        times_s = {"launch": 0.0, "ready": 0.0, "warmup": 0.0, "load": 0.0, "stop": 0.0}
        failure: Failure | None = None
        for name, workload in workloads.items():
            # The same prompts for every configuration, new ones for every repeat.
            outcome = predict(understood, workload, self.seed + trial.launch_index)
            times_s["ready"] = outcome.startup_s
            if outcome.failure is not None:
                failure = outcome.failure
                break
            metrics[name] = scaled(outcome.metrics, factor)
            times_s["load"] += float(outcome.metrics["duration"]) / factor
        return TrialResult(
            state=State.FAILED if failure else State.COMPLETE,
            evidence=self.evidence,
            failure=failure,
            metrics={} if failure else metrics,
            times_s=times_s,
            gpus=self.gpus,
            node=f"simulated-{self.hardware.name}",
            started_at=started_at,
            resolved=None if failure else self._resolved(trial, understood),
        )

    def _resolved(self, trial: Trial, understood: Understood) -> Resolved:
        """What the simulated engine made of the command line; something was passed through, where it differs."""
        kind = engine(trial.configuration.engine, self.library)
        made = understood.effective.configuration
        found = compare(kind, trial.configuration, understood.context, trial.command, Heard(made.knobs, made))
        return Resolved(found.fingerprint, found.differs, "the simulated engine", found.notes)
