"""Values that the tables of the report show: the launches by configuration, engine and failure."""

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from autotune.base import BadInput, by_key
from autotune.engines import Failure, Scalar
from autotune.engines.failure import without_numbers
from autotune.load.metrics import readable
from autotune.load.metrics.table import Metrics
from autotune.load.workloads import load_workload
from autotune.tuner.search.objective import maximises
from autotune.tuner.study.home import library_of
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial

from . import StudyRecord, text


def finalists(study: StudyRecord) -> list[tuple[str, str, list[Launch]]]:
    """Return fingerprint, role and launches of each configuration that the finals compared.

    One that was launched once, to show what a setting adds, is left out unless it is recommended or
    the baseline.
    """
    if not any(launch.role is Role.FINAL for launch in study.launches):
        return []
    rows = []
    for fingerprint, group in study.by_configuration(*study.spec.deciding_roles).items():
        own = {fingerprint, *(launch.fingerprint for launch in group)}
        roles = [role for role, choice in study.choices.items() if choice.fingerprint in own]
        if roles or len(group) > 1:
            rows.append((fingerprint, " and ".join(roles) or "finalist", group))
    return rows


def again(trial: Trial) -> str:
    """Return a remark on another launch for a failure without an explanation; empty for others."""
    return f" (again, after #{trial.retry.of})" if trial.retry else ""


_RANKS_ONLY = "random weights, used for ranking only"


def state(spec: StudySpec, launch: Launch) -> str:
    """Return the end of a launch, with the reason of one without a valid figure."""
    result = launch.result
    if result.failure:
        return f"{result.state.value}: {result.failure.summary}"
    if result.state is State.INVALID:
        return "invalid measurement"
    if launch.ranks_only:
        return _RANKS_ONLY
    broken = broken_slos(spec, result.metrics)
    return f"breaks {text.escape('; '.join(broken))}" if broken else result.state.value


def without_figure(launch: Launch) -> tuple[str, str]:
    """Return what a row has in place of a launch's figure, and why."""
    result = launch.result
    if launch.ranks_only and not result.failure:
        return "ranked", _RANKS_ONLY
    return result.state.value, result.failure.summary if result.failure else "unknown"


def with_figures(launches: Sequence[Launch]) -> tuple[list[Launch], dict[str, int]]:
    """Return the launches whose figures may be reported, and why how many others may not."""
    found = [launch for launch in launches if not launch.ranks_only]
    return found, {"with random weights, which rank only": len(launches) - len(found)}


def broken_slos(spec: StudySpec, measured: Mapping[str, Metrics]) -> list[str]:
    """Return the SLOs that a launch violates by its workloads' metrics, with excess and value; a
    missing metric violates its SLO."""
    metrics = measured.get(spec.workloads[0], {})
    broken = []
    for slo in spec.slos:
        value = metrics.get(slo.metric)
        if not isinstance(value, int | float):
            broken.append(f"{slo.description} (not measured)")
        elif slo.violation(value) > 0:
            broken.append(slo.broken_by(value))
    return broken


def beyond(spec: StudySpec, valid: Sequence[Launch]) -> dict[int, list[str]]:
    """Return the launches that violate an SLO, number to violations."""
    broken = {launch.number: broken_slos(spec, launch.result.metrics) for launch in valid}
    return {number: slos for number, slos in broken.items() if slos}


def average(values: Sequence[float]) -> float | None:
    """Return the geometric mean, as in the recommendation; None for no values."""
    positive = [value for value in values if value > 0]
    return geometric_mean(positive) if positive else None


def best_per_engine(study: StudyRecord) -> list[tuple[Launch, float, int]]:
    """Return a launch, the mean and the count of the best feasible configuration per engine, the
    best engine first."""
    ranked = []
    for launches in study.by_configuration().values():
        group = study.deciding(launches)
        complete = [launch for launch in group if launch.result.state is State.COMPLETE]
        values = study.values(complete)
        middle = average(values)
        if middle is not None and not any(
            broken_slos(study.spec, one.result.metrics) for one in complete
        ):
            ranked.append((complete[0], middle, len(values)))
    ranked.sort(key=lambda row: row[1], reverse=maximises(study.spec.objective))
    best: dict[str, tuple[Launch, float, int]] = {}
    for row in ranked:
        best.setdefault(row[0].engine, row)
    return list(best.values())


def references(launches: Sequence[Launch]) -> dict[str, Launch]:
    """Return per engine the reference launch of its descriptions: its default, the baseline, or its
    first."""
    order = {Role.DEFAULT: 0, Role.BASELINE: 1}
    chosen: dict[str, Launch] = {}
    for launch in sorted(launches, key=lambda row: order.get(row.role, 2)):
        chosen.setdefault(launch.engine, launch)
    return chosen


def differing(launch: Launch, references: Mapping[str, Launch]) -> dict[str, Scalar]:
    """Return the knobs in which a launch differs from its engine's reference."""
    usual = references[launch.engine].trial.configuration.knobs
    return {
        name: value
        for name, value in launch.trial.configuration.knobs.items()
        if name not in usual or usual[name] != value
    }


def varied(study: StudyRecord, reference: Launch) -> dict[str, Scalar]:
    """Return the knobs of an engine's reference that any of its launches changed."""
    usual = {reference.engine: reference}
    own = [launch for launch in study.launches if launch.engine == reference.engine]
    changed = {name for launch in own for name in differing(launch, usual)}
    knobs = reference.trial.configuration.knobs
    return {name: value for name, value in knobs.items() if name in changed}


def repeats(study: StudyRecord, group: Sequence[Launch]) -> str:
    """List the figure of each launch, with its number."""
    shown = zip(readable.numbers(map(study.value, group)), group, strict=True)
    return ", ".join(f"{value} (#{launch.number})" for value, launch in shown)


def failures(study: StudyRecord) -> list[tuple[str, list[Launch]]]:
    """Return the failed launches by kind and message, numbers aside."""
    groups = by_key(
        ((_kind(failure), without_numbers(failure.message)), launch)
        for launch in study.launches
        if (failure := launch.result.failure)
    )
    return [(kind, group) for (kind, _), group in sorted(groups.items(), key=lambda one: one[0])]


def _kind(failure: Failure) -> str:
    fault = "" if failure.blames_the_configuration else " (not the configuration's fault)"
    return f"{failure.summary}{fault}"


def offered(spec: StudySpec, name: str) -> str:
    """Describe a workload's requests and arrivals."""
    try:
        workload = load_workload(name, library_of(spec))
    except BadInput:  # a file that is gone, or a name of a library of one's own
        return "–"
    arrivals = "; ".join(
        dict.fromkeys(f"{one.prompts} prompts {one.arrival.describe()}" for one in workload.points)
    )
    if not spec.load.fixed and name == spec.workloads[0]:
        arrivals = "arrival times set by the load search"
    streaming = "streamed" if workload.streaming else "not streamed"
    # A form such as random:IN:OUT says itself where it comes from.
    origin = "" if ":" in name else f"; from: {text.escape(workload.origin)}"
    return f"{text.escape(workload.description)}. Offered: {arrivals}, {streaming}{origin}"


def counted(study: StudyRecord, name: str) -> Metrics:
    """Return a workload's metrics by the first launch that completed it; empty without one."""
    results = (launch.result for launch in study.launches)
    complete = (result.metrics for result in results if result.state is State.COMPLETE)
    return next((metrics[name] for metrics in complete if name in metrics), {})
