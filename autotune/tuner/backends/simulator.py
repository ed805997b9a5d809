"""The simulated node, in virtual time.

The simulator is given a command line, not knobs: it parses the trial's own command as the engine's
version does, so that ``autotune simulate`` on the printed command and the study agree by
construction. As no server has noise of its own, a launch gets one draw, shared by all its loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.base import Evidence, frozen
from autotune.engines import LOCAL, Engine, Library, engine
from autotune.engines.report_back import compare
from autotune.load.capacity.search import extra_metrics
from autotune.load.load import Load
from autotune.load.metrics.formulas import Slo
from autotune.load.metrics.table import Metrics, scaled
from autotune.node.calibration import calibration_of
from autotune.node.memory import plan_memory
from autotune.node.resolve_command import ResolvedCommand, resolve_for
from autotune.node.server import SimulatedServer
from autotune.node.simulate import SimulatedOutcome

from ..study.home import library_of
from ..study.loads import context_of, loads_of
from ..study.sentences import sentences
from ..study.spec import StudySpec
from ..trial import State, Trial, TrialResult
from . import (
    PHASES,
    AskedOptions,
    Backend,
    EvaluationSetup,
    backend_of,
    missing_files,
    noise_factor,
    timestamp,
)


class Simulator(Backend):
    """Simulated node, see `Backend`."""

    form = "simulator"
    evidence = Evidence.SIMULATED
    noise_by_default = 0.03
    # Loads that are open after the first look are decided by their figures, in a third of the time.
    # ``docs/load-search.md`` says how far that is off.
    looks = 1

    def evaluator(self, setup: EvaluationSetup) -> SimulatedEvaluator:
        return SimulatedEvaluator(setup.spec, setup.library)

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        if (spec.hardware.name, spec.hardware.vendor) == (LOCAL, "cpu"):
            # The shipped rows are of GPUs: what they teach of an engine says nothing of a CPU.
            covered = calibration_of(library_of(spec)).errors.covered
            if not any((one.engine, one.gpu) == (kind.name, LOCAL) for one in covered):
                return (
                    "predictions for a CPU are not calibrated; measure a few launches here (--on "
                    "process), let the simulator learn them (autotune calibrate --study STUDY), or "
                    "simulate a node, e.g. --hw h200"
                )
        return missing_files(kind, "simulator", ("simulation",))

    def announcement(self, spec: StudySpec, library: Library, options: AskedOptions) -> str:
        asked = options and options.on
        return "".join(sentences(__file__, "simulated", spec=spec, asked=asked, on=self.on))


@frozen
class SimulatedEvaluator:
    """Evaluate on the simulated node; a launch's throughput gets a log-normal factor of sigma
    `StudySpec.noise`."""

    spec: StudySpec
    library: Library

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = timestamp()
        spec = self.spec
        backend = backend_of(spec)
        kind = engine(trial.configuration.engine, self.library)
        loads = loads_of(spec, trial, self.library, backend.looks)
        context = context_of(spec, trial.engine_version, self.library).as_read(kind.card)
        launched, speculation = backend.with_forced_acceptance(spec, trial, kind, self.library)
        resolved = resolve_for(kind, launched.command, context, calibration_of(self.library))
        factor = noise_factor(spec, trial)
        metrics: dict[str, Metrics] = {}
        times_s = dict.fromkeys(PHASES, 0.0)
        for load in loads:
            running = resolved if load.workload.has_text else resolved.running()
            outcome, load_s = simulate(running, load, spec.request_limits, factor)
            times_s["ready"] = outcome.startup_s
            if outcome.failure:
                break
            times_s["load"] += load_s
            load.add(metrics, outcome.metrics)
        result = TrialResult(
            State.FAILED,
            Evidence.SIMULATED,
            outcome.failure,
            times_s=times_s,
            gpus=spec.gpus,
            node=f"simulated-{spec.hardware.name}",
            started_at=started_at,
            speculation=speculation and speculation.with_acceptance(metrics),
        )
        if outcome.failure:
            return result
        # Arguments that are passed through may make it run another configuration.
        ran = compare(kind, trial.configuration, context, trial.command, resolved.effective)
        plan = plan_memory(SimulatedServer(resolved.setup))
        return replace(
            result,
            state=State.COMPLETE,
            metrics=metrics,
            resolved=replace(ran, source="the simulated engine"),
            kv_cache_tokens=plan.capacity_tokens,
            longest_request_tokens=plan.longest_request_tokens,
            odds_of_starting=plan.fit_probability,
        )


def simulate(
    resolved: ResolvedCommand, load: Load, limits: Sequence[Slo] = (), factor: float = 1.0
) -> tuple[SimulatedOutcome, float]:
    """Load a simulated server: with the workload, or the probes of its load search; in virtual
    seconds.

    Args:
        limits: that a request keeps to count as good.
        factor: by which the node is faster than the one that is simulated: its clock runs so many
            times as fast.
    """
    if load.search is None:
        # On a node that is faster by a factor a latency keeps a limit where it keeps one larger by
        # that factor here.
        limits = [slo.with_fields(limit=slo.limit * factor) for slo in limits]
        outcome = resolved.simulate(load.workload, load.seed, limits)
        metrics = scaled(outcome.metrics, factor)
        return replace(outcome, metrics=metrics), float(metrics.get("duration", 0.0))
    load_s = 0.0
    while probe := load.search.ask():
        # A node that is faster by a factor carries this load in the clock of the simulated node.
        slowed = probe.load / factor if probe.by == "rate" else probe.load
        here = probe._replace(load=slowed, ramp_s=probe.ramp_s * factor)
        outcome = resolved.simulate(here.workload(load.workload), probe.seed(load.seed))
        if outcome.failure:
            return outcome, load_s
        load_s += float(outcome.metrics["duration"]) / factor
        load.search.tell(outcome.runs[0].faster(factor), extra_metrics(outcome.metrics))
    return replace(outcome, metrics=load.search.found.metrics), load_s
