"""The simulated node, in virtual time.

The simulator is given a command line, not knobs: it parses the trial's own command as the engine's version does, so
that ``autotune simulate`` on the printed command and the study agree by construction. As no server has noise of its
own, a launch gets one draw, shared by all its loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.backends import PHASES, Backend, backend_of, missing_files, noise_factor
from autotune.engines import Engine, engine
from autotune.engines.report_back import ReportedKnobs, compare
from autotune.loadgen.workloads import load_workload, on_ladder
from autotune.metrics.table import CURVE
from autotune.notify import Watch, silent
from autotune.simulator.load import simulated_load
from autotune.simulator.node.calibration import calibration_of
from autotune.simulator.node.memory import plan_memory
from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.resolve_command import ResolvedCommand, resolve_command
from autotune.space.context import Context
from autotune.space.library import LOCAL, Library
from autotune.study.options import RunOptions, VerifyOptions
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Evidence, Failure, Metrics, Resolved, State, Trial, TrialResult


class Simulator(Backend):
    """See `Backend`."""

    form = "simulator"
    evidence = Evidence.SIMULATED
    noise_by_default = 0.03
    # What is open after the first look is decided by the figures, which takes a third of the time.
    # ``docs/load-search.md`` says how far that is off.
    looks = 1
    confirms = False

    def evaluator(self, spec: StudySpec, library: Library, folder: Path, notify: Watch = silent) -> Simulated:
        return Simulated(spec, library)

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        if (spec.hardware.name, spec.hardware.vendor) == (LOCAL, "cpu"):
            # The shipped rows are of GPUs: what they teach of an engine says nothing of a CPU.
            covered = calibration_of(library_of(spec)).errors.covered
            if not any((one.engine, one.gpu) == (kind.name, LOCAL) for one in covered):
                return (
                    "predictions for a CPU are not calibrated; measure a few launches here (--on process), let the "
                    "simulator learn them (autotune calibrate --study STUDY), or simulate a node, e.g. --hw h200"
                )
        return missing_files(kind, "simulator", ("simulation",))

    def announcement(self, spec: StudySpec, library: Library, options: RunOptions | VerifyOptions | None) -> str:
        node, local = f"{spec.gpus}×{spec.hardware.name}", spec.hardware.name == LOCAL
        no_node = f"this machine has no {'engine' if local else f'{node} with an engine'} installed"
        why = {None: "as the study began", self.on: "as asked for"}.get(options.on if options else None, no_node)
        return f"SIMULATED: {why}; all numbers come from a simulated {node} node, not from a real one."


@dataclass(frozen=True, slots=True)
class Simulated:
    """Evaluates on the simulated node.

    One launch's throughput gets a log-normal factor, whose sigma is `StudySpec.noise`.
    """

    spec: StudySpec
    library: Library
    evidence: Evidence = Evidence.SIMULATED

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        spec, backend = self.spec, backend_of(self.spec)
        workloads = {name: load_workload(name, self.library) for name in trial.workloads}
        longest = max(workload.longest_request for workload in workloads.values())
        context = Context(spec.model, spec.hardware, spec.gpus, trial.engine_version, longest)
        resolved = resolve_command(trial.command, self.library, context, trial.engine_version)
        factor = noise_factor(spec.noise, spec.seed, trial)
        metrics: dict[str, Metrics] = {}
        times_s = dict.fromkeys(PHASES, 0.0)
        failure: Failure | None = None
        for name, concurrency in trial.loads:
            workload = on_ladder(workloads[name], concurrency) if concurrency else workloads[name]
            # The same prompts for every configuration, new ones for every repeat but of the ladder's short loads.
            seed = spec.seed + (0 if concurrency else trial.launch_index)
            search = None if concurrency else backend.load_search(spec, name, workload, trial.role)
            came = simulated_load(resolved, workload, seed, spec.request_limits, search, factor)
            times_s["ready"], failure = came.startup_s, came.failure
            if failure is not None:
                break
            times_s["load"] += came.load_s
            if concurrency:
                metrics[name].setdefault(CURVE, []).append({"concurrency": concurrency, **came.metrics})
            else:
                metrics[name] = came.metrics
        return TrialResult(
            state=State.FAILED if failure else State.COMPLETE,
            evidence=self.evidence,
            failure=failure,
            metrics={} if failure else metrics,
            times_s=times_s,
            gpus=spec.gpus,
            node=f"simulated-{spec.hardware.name}",
            started_at=started_at,
            resolved=None if failure else self._resolved(trial, resolved),
            **({} if failure else _served(resolved)),
        )

    def _resolved(self, trial: Trial, resolved: ResolvedCommand) -> Resolved:
        """Compare the simulated engine's configuration with the trial's; passed-through arguments may differ."""
        kind = engine(trial.configuration.engine, self.library)
        made = resolved.effective.configuration
        comparison = compare(
            kind, trial.configuration, resolved.context, trial.command, ReportedKnobs(made.knobs, made)
        )
        return Resolved(comparison.fingerprint, comparison.differs, "the simulated engine", comparison.notes)


def _served(resolved: ResolvedCommand) -> dict[str, Any]:
    """The fields of a result about the requests that a simulated server takes, by its memory plan."""
    plan = plan_memory(SimulatedServer(resolved.setup))
    return {
        "kv_cache_tokens": plan.capacity_tokens,
        "longest_request_tokens": plan.longest_request_tokens,
        "odds_of_starting": plan.fit_probability,
    }
