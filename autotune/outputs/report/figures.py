"""Figures that the report draws from the launches: values of the objective, best per engine, repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean

from autotune.outputs.report import StudyRecord, text
from autotune.search import objective
from autotune.search.equivalents import canonical_of
from autotune.trial import Launch, Role, Scalar, State


def broken_slos(study: StudyRecord, launch: Launch) -> list[str]:
    """The SLOs that a launch breaks, each with its value; a metric that is missing breaks its SLO."""
    metrics = launch.result.metrics.get(study.spec.workloads[0], {})
    broken = []
    for slo in study.spec.slos:
        value = metrics.get(slo.metric)
        if not isinstance(value, int | float):
            broken.append(f"{slo} (not measured)")
        elif slo.violation(value) > 0:
            broken.append(f"{slo} (was {text.number(value)})")
    return broken


def by_configuration(study: StudyRecord, launches: Iterable[Launch]) -> dict[str, list[Launch]]:
    """Fingerprint to its launches, equivalents included, in the order of the first."""
    launched = {launch.trial.configuration.fingerprint for launch in study.launches}
    own = (row.trial.configuration.fingerprint for row in study.launches if row.trial.role is Role.BASELINE)
    canonical = canonical_of(study.launches, launched, next(own, None))
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        fingerprint = launch.trial.configuration.fingerprint
        groups.setdefault(canonical.get(fingerprint, fingerprint), []).append(launch)
    return groups


def _counted(group: Sequence[Launch]) -> list[Launch]:
    """The launches of one configuration that count as evidence: of the finals, and the baseline's own.

    Those of the search decided what came into the finals, so they are biased; they count where there are no others.
    """
    chosen = [launch for launch in group if launch.trial.role in (Role.FINAL, Role.BASELINE, Role.CONTROL)]
    return chosen or list(group)


def average(values: Sequence[float]) -> float | None:
    """The geometric mean, as in the recommendation; None of nothing."""
    positive = [value for value in values if value > 0]
    return geometric_mean(positive) if positive else None


def values_of(study: StudyRecord, group: Iterable[Launch]) -> list[float]:
    """The objective of each launch that has a valid figure."""
    return [value for launch in group if (value := objective.achieved(study.spec, launch)) is not None]


def best_per_engine(study: StudyRecord) -> list[tuple[Launch, float, int]]:
    """Per engine the best configuration that keeps the SLOs: a launch, the mean, how many launches.

    The best engine comes first.
    """
    sign = 1 if objective.maximises(study.spec.objective) else -1
    best: dict[str, tuple[Launch, float, int]] = {}
    for launches in by_configuration(study, study.launches).values():
        group = [launch for launch in _counted(launches) if launch.result.state is State.COMPLETE]
        values = values_of(study, group)
        middle = average(values)
        if middle is None or any(broken_slos(study, launch) for launch in group):
            continue
        engine = group[0].trial.configuration.engine
        if engine not in best or sign * middle > sign * best[engine][1]:
            best[engine] = (group[0], middle, len(values))
    return sorted(best.values(), key=lambda row: -sign * row[1])


def references(launches: Sequence[Launch]) -> dict[str, Launch]:
    """Per engine the launch that the others are described against: its default, else the baseline, else its first."""
    order = {Role.DEFAULT: 0, Role.BASELINE: 1}
    chosen: dict[str, Launch] = {}
    for launch in sorted(launches, key=lambda row: (order.get(row.trial.role, 2), row.trial.number)):
        chosen.setdefault(launch.trial.configuration.engine, launch)
    return chosen


def differing(launch: Launch, reference: Launch) -> dict[str, Scalar]:
    """The knobs in which a launch differs from the reference."""
    usual = reference.trial.configuration.knobs
    return {
        name: value
        for name, value in launch.trial.configuration.knobs.items()
        if name not in usual or usual[name] != value
    }
