"""Evaluates without a server: on the simulated node in virtual time, or from a file of recorded launches.

The simulator is given a command line, not knobs: it parses the trial's own command as the engine's version does, so
that ``autotune simulate`` on the printed command and the study agree by construction. Where no server has noise of its
own, a launch gets one draw, shared by all its loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from autotune.engines import engine
from autotune.engines.report_back import ReportedKnobs, compare
from autotune.errors import BadInput
from autotune.evaluate import PHASES
from autotune.loadgen.capacity.judge import LOOKS
from autotune.loadgen.capacity.search import CONFIRM_S, LoadSearch
from autotune.loadgen.workloads import Workload, load_workload, on_ladder
from autotune.metrics.table import CURVE, METRICS
from autotune.replay.bundle import bundle_of
from autotune.replay.ladder import study_table
from autotune.simulator.find_load import find_load
from autotune.simulator.node.memory import plan_memory
from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.resolve_command import ResolvedCommand, resolve_command
from autotune.space.context import Context
from autotune.space.library import Library
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Failure, Metrics, Resolved, Role, State, Trial, TrialResult

LOOKS_IN_VIRTUAL_TIME = 1
"""At each load of a load search: what is open after the first is decided by the figures, which takes a third of the
time. ``docs/load-search.md`` says how far that is off."""
CONFIRMED = (Role.BASELINE, Role.CONTROL, Role.FINAL)
"""Launches whose rate is confirmed by a long load: those that are compared in the end."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Evaluates on the simulated node, in virtual time.

    One launch's throughput gets a log-normal factor, whose sigma is `StudySpec.noise`.
    """

    spec: StudySpec
    library: Library
    evidence: Evidence = Evidence.SIMULATED

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        workloads = {name: load_workload(name, self.library) for name in trial.workloads}
        longest = max(workload.longest_request for workload in workloads.values())
        context = Context(self.spec.model, self.spec.hardware, self.spec.gpus, trial.engine_version, longest)
        resolved = resolve_command(trial.command, self.library, context, trial.engine_version)
        factor = noise_factor(self.spec.noise, self.spec.seed, trial)
        metrics: dict[str, Metrics] = {}
        times_s = dict.fromkeys(PHASES, 0.0)
        failure: Failure | None = None
        for name, concurrency in trial.loads:
            workload = on_ladder(workloads[name], concurrency) if concurrency else workloads[name]
            # The same prompts for every configuration, new ones for every repeat but of the ladder's short loads.
            seed = self.spec.seed + (0 if concurrency else trial.launch_index)
            searched = not concurrency and name == self.spec.workloads[0]
            came = simulated_load(self.spec, resolved, workload, seed, searched, trial.role, factor)
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
            gpus=self.spec.gpus,
            node=f"simulated-{self.spec.hardware.name}",
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


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """A workload on a simulated launch.

    Attributes:
        load_s: virtual seconds of its load, or of all loads of a load search.
    """

    metrics: Metrics
    failure: Failure | None
    startup_s: float
    load_s: float


def load_search(spec: StudySpec, workload: Workload, role: Role) -> LoadSearch:
    """The load search of a launch; only of the baseline and of finalists is the rate confirmed by a long load.

    On the simulated node a load has one look, and none is confirmed.
    """
    assert spec.find_load is not None
    simulated = spec.on == "simulator"
    looks = LOOKS_IN_VIRTUAL_TIME if simulated else LOOKS
    confirm_s = CONFIRM_S if role in CONFIRMED and not simulated else 0.0
    return LoadSearch.of(spec.find_load, spec.slos, workload, looks, spec.request_limits, confirm_s)


def simulated_load(
    spec: StudySpec,
    resolved: ResolvedCommand,
    workload: Workload,
    seed: int,
    searched: bool,
    role: Role,
    factor: float = 1.0,
) -> SimulatedLoad:
    """Load a simulated server by a workload as it is, or up to its capacity where the study asks for that.

    Args:
        searched: whether a load search would be under this workload.
        role: of the launch, which decides how long its loads are.
        factor: by which the node is faster than the one that is simulated.
    """
    if spec.find_load is not None and searched:
        came = find_load(resolved, workload, seed, load_search(spec, workload, role), factor)
        metrics = came.found.metrics if came.found is not None else {}
        return SimulatedLoad(metrics, came.failure, came.startup_s, came.load_s)
    # On a node that is faster by a factor a latency keeps a limit where it keeps one larger by that factor here.
    limits = [slo.model_copy(update={"limit": slo.limit * factor}) for slo in spec.request_limits]
    outcome = resolved.simulate(workload, seed, limits)
    metrics = scaled(outcome.metrics, factor)
    return SimulatedLoad(metrics, outcome.failure, outcome.startup_s, float(metrics.get("duration", 0.0)))


@dataclass(frozen=True, slots=True)
class Replayed:
    """Evaluates from the table of recorded launches that `StudySpec.on` names.

    The launches of a configuration take its rows in turn: launch ``k`` gets row ``k`` modulo their number. A workload
    that this row lacks is taken from the next row that has it. Raises `BadInput` where the file has changed.
    """

    spec: StudySpec
    library: Library
    evidence: Evidence = Evidence.REPLAYED

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        table = study_table(self.spec, self.library)
        repeats = table.repeats[table.key(trial.configuration)]
        first = trial.launch_index % len(repeats)
        turn = [*repeats[first:], *repeats[:first]]
        row = turn[0]
        metrics: dict[str, Metrics] = {}
        factor = noise_factor(self.spec.noise, self.spec.seed, trial)
        for name in trial.workloads:
            key = table.key_of_workload(name, objective=name == self.spec.workloads[0])
            source = next((r for r in turn if key in r.metrics), None) if row.failure is None else None
            if source is not None and key is not None:
                metrics[name] = scaled(source.metrics[key], factor) if self.spec.noise else dict(source.metrics[key])
        return TrialResult(
            state=State.COMPLETE if row.failure is None else State.FAILED,
            evidence=self.evidence,
            evidence_of=row.evidence,
            failure=row.failure,
            metrics=metrics,
            times_s=dict.fromkeys(PHASES, 0.0) | dict(row.times_s),
            gpus=self.spec.gpus,
            node=f"replayed-{self.spec.hardware.name}",
            started_at=started_at,
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """Evaluates from a bundle: the launch of a number gets the result of the launch in that place.

    Noise is added only where another one is asked for than the bundle's launches have. Raises `BadInput` where the
    file has changed.
    """

    spec: StudySpec
    library: Library
    evidence: Evidence = Evidence.REPLAYED

    def __call__(self, trial: Trial) -> TrialResult:
        bundle = bundle_of(self.spec.on, self.spec.table_sha256)
        if bundle is None:
            raise BadInput(f"{self.spec.on} is no bundle any more")
        result = bundle.launches[trial.number].result
        if self.spec.noise != bundle.spec.noise:
            factor = noise_factor(self.spec.noise, self.spec.seed, trial)
            result = replace(result, metrics={name: scaled(row, factor) for name, row in result.metrics.items()})
        # Nothing runs here, so that nothing can be left behind on a node either.
        node = result.node if bundle.bound else f"replayed-{self.spec.hardware.name}"
        was = None if result.origin is self.evidence else result.origin
        return replace(result, evidence=self.evidence, evidence_of=was, node=node, pids=(), quarantine="")


def noise_factor(sigma: float, seed: int, trial: Trial) -> float:
    """Draw a log-normal factor on the node's speed, fixed by (seed, candidate, launch index)."""
    fingerprint = int(trial.configuration.fingerprint, 16)
    generator = np.random.default_rng([seed, fingerprint, trial.launch_index])
    return math.exp(sigma * float(generator.standard_normal()))


def scaled(metrics: Mapping[str, object], factor: float) -> Metrics:
    """Scale metrics to a node that is faster by a factor: rates multiplied, times divided; of a curve each row."""
    result: Metrics = {}
    for name, value in metrics.items():
        metric = METRICS.get(name)
        if name == CURVE and isinstance(value, list):
            value = [scaled(row, factor) for row in value]
        if metric is None or not isinstance(value, int | float) or isinstance(value, bool):
            result[name] = value
        else:
            result[name] = value * factor**metric.time_power
    return result
