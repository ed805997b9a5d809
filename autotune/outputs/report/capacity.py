"""The curve of a load search: each load of the baseline and of the recommended configuration, and their capacity."""

from __future__ import annotations

from autotune.outputs.report import StudyRecord, text
from autotune.search.objective import load_key
from autotune.study.recommendation import Choice
from autotune.trial import Launch, Metrics, Role, State


def capacities(study: StudyRecord) -> list[str]:
    """A table for the baseline and one for the recommended configuration; empty where no load was searched for."""
    outcome = study.recommendation
    if study.spec.find_load is None:
        return []
    chosen = {"Recommended": outcome.recommended, "Baseline": outcome.baseline}
    parts: list[str] = []
    for name, choice in chosen.items():
        launch = _launch(study, choice) if choice is not None else None
        if launch is not None:
            parts += [f"### {name}, launch {launch.trial.number}", *_curve(study, launch)]
    return parts


def _launch(study: StudyRecord, choice: Choice) -> Launch | None:
    """The last launch of a configuration that was measured, of the finals where it has any."""
    own = [
        launch
        for launch in study.launches
        if launch.trial.configuration.fingerprint == choice.fingerprint and launch.result.state is State.COMPLETE
    ]
    return max(own, key=lambda row: (row.trial.role is Role.FINAL, row.trial.number), default=None)


def _curve(study: StudyRecord, launch: Launch) -> list[str]:
    metrics, key = launch.result.metrics.get(study.spec.workloads[0], {}), load_key(study.spec)
    limited = list(dict.fromkeys(slo.metric for slo in study.spec.slos))
    shown = ["steady_total_token_throughput", *limited]
    unit = "In flight" if key == "concurrency" else "Requests per second"
    rows = []
    for row in metrics.get("curve") or ():
        per_token_ms = row.get("mean_tpot_ms")
        per_user = 1e3 / per_token_ms if per_token_ms else None
        values = [text.number(row.get(name)) for name in shown]
        rows.append((f"{row[key]:g}", *values, text.number(per_user), "yes" if row.get("kept") else "no"))
    headings = (unit, *map(text.title, shown), "Output tok/s per user", "Keeps the limits")
    return [_capacity(metrics, key), text.table(headings, rows, "r" * (len(headings) - 1))]


def _capacity(metrics: Metrics, key: str) -> str:
    capacity, above = metrics.get(f"capacity_{key}"), metrics.get("capacity_broken_at")
    unit = "in flight" if key == "concurrency" else "requests per second"
    if not capacity:
        return "No load keeps the limits: the lightest breaks one."
    told = f"Capacity: {capacity:g} {unit}"
    told += f"; {above:g} break a limit." if above else ", the heaviest load that was tried: it may be higher."
    if (pair := metrics.get("capacity_not_monotone")) is not None:
        told += f" Not monotone: {pair[0]:g} break a limit that {pair[1]:g} keep."
    return told
