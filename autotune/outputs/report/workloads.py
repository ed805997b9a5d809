"""The finalists on every workload, and the front of two goals with a command for each point."""

from __future__ import annotations

from autotune import redact
from autotune.outputs.report import StudyRecord, remarks, text, words
from autotune.study.recommendation import Choice, MatrixCell, Objective


def matrix(study: StudyRecord) -> str:
    """The finalists by workloads, and where the recommended configuration is not the best; "" for one workload."""
    outcome = study.recommendation
    if len(study.spec.workloads) < 2 or not outcome.matrix:
        return ""
    names = study.spec.workloads
    rows = [
        (f"{row.role}, {row.engine} {text.code(row.fingerprint)}", *(_cell(row.workloads.get(name)) for name in names))
        for row in outcome.matrix
    ]
    note = (
        f"{text.title(study.spec.objective)}, {words.label(outcome.evidence)}: the mean, the gain over the baseline, "
        "and its 95 % interval; the best mean of each workload is bold. SLOs are those of the first workload."
    )
    table = text.table(("Configuration", *map(text.code, names)), rows, " " + "r" * len(names))
    parts = [f"## Finalists by workload ({words.label(outcome.evidence)})", note, table]
    lost = remarks.trade_off(outcome)
    parts += [text.plain(f"The recommended configuration {lost}.")] if lost else []
    return "\n\n".join([*parts, *_elsewhere(study)])


def _cell(cell: MatrixCell | None) -> str:
    if cell is None:
        return "–"
    value = f"**{text.number(cell.value)}**" if cell.best else text.number(cell.value)
    if cell.gain_percent is None:
        return value
    within = f" ({text.percent(cell.ci95[0])} to {text.percent(cell.ci95[1])})" if cell.ci95 else ""
    return f"{value}, {text.percent(cell.gain_percent)}{within}"


def _elsewhere(study: StudyRecord) -> list[str]:
    """What is best on the other workloads, with its command unless that is the baseline's or was given already."""
    parts: list[str] = []
    given: set[str] = set()
    for name, row in remarks.best_elsewhere(study.recommendation).items():
        parts.append(f"Best mean on {text.code(name)}: the {row.role}, {row.engine} {text.code(row.fingerprint)}.")
        if row.role != "baseline" and row.fingerprint not in given:
            parts.append(text.block(_command(row), "bash"))
        given.add(row.fingerprint)
    return parts


def _command(choice: Choice) -> str:
    return redact.text(choice.command, redact.secrets_in(choice.argv, choice.env))


def front(study: StudyRecord) -> str:
    """The configurations that no other measured one beats in one goal without losing in the other, with commands."""
    points = study.recommendation.front
    if not points:
        return ""
    chosen = study.recommendation.recommended
    rows, commands = [], []
    for number, point in enumerate(points, start=1):
        recommended = chosen is not None and point.fingerprint == chosen.fingerprint
        name = f"{number}{' (recommended)' if recommended else ''}"
        who = f"{point.engine} {point.engine_version} {text.code(point.fingerprint)}"
        repeats = str(point.objective.repeats)
        rows.append((name, who, _goal(point.objective), _goal(point.second), repeats, words.label(point.evidence)))
        commands += [f"Point {number}:", text.block(_command(point), "bash")]
    note = (
        "Every measured configuration that keeps the SLOs and that no other one beats in one goal without losing in "
        "the other, the best of the objective first. Means over the launches that count, with 95 % intervals where "
        "there are several; a point that was launched once stands there by that one launch. The recommendation goes "
        "by the objective alone."
    )
    goals = (text.title(points[0].objective.metric), text.title(points[0].second.metric))
    table = text.table(("Point", "Configuration", *goals, "Launches", "Evidence"), rows, "  rrr")
    heading = f"## Front of {goals[0]} against {goals[1]} ({words.label(study.recommendation.evidence)})"
    return "\n\n".join([heading, note, table, *commands])


def _goal(goal: Objective) -> str:
    return text.number(goal.value) + (f" {text.interval(goal.ci95)}" if goal.ci95 else "")
