"""What the recommendation alone does not say, in words: where it loses, and that there is a front to choose from."""

from __future__ import annotations

from autotune.outputs.report import text
from autotune.study.recommendation import MatrixCell, MatrixRow, Recommendation


def beside(outcome: Recommendation) -> str:
    """One or two sentences; empty where one workload and one goal were asked for."""
    lost = trade_off(outcome)
    return " ".join(part for part in (f"It {lost}." if lost else "", _front(outcome)) if part)


def trade_off(outcome: Recommendation) -> str:
    """Where the recommended configuration has the best mean, and where it loses to the baseline by more than chance.

    A sentence without its subject; empty where it loses nowhere.
    """
    row = next((row for row in outcome.matrix if row.role == "recommended"), None)
    if row is None or len(row.workloads) < 2:
        return ""
    gains = {name: cell.gain_percent or 0.0 for name, cell in row.workloads.items() if _loses(cell)}
    lost = [f"loses {-gain:.0f} % on {name}" for name, gain in gains.items()]
    if not lost:
        return ""
    first = [name for name, cell in row.workloads.items() if cell.best]
    best = [f"has the best mean on {_listed(first)}"] if first else []
    return f"{_listed([*best, *lost])} against the baseline"


def best_elsewhere(outcome: Recommendation) -> dict[str, MatrixRow]:
    """Workload to what has the best mean on it, where that is not the recommended configuration."""
    chosen = outcome.recommended.fingerprint if outcome.recommended else ""
    return {
        name: row
        for row in outcome.matrix
        for name, cell in row.workloads.items()
        if cell.best and row.fingerprint != chosen
    }


def _loses(cell: MatrixCell) -> bool:
    return (cell.gain_percent or 0) < 0 and (cell.ci95 is None or cell.ci95[1] < 0)


def _front(outcome: Recommendation) -> str:
    if not outcome.front:
        return ""
    goals = [text.title(goal.metric) for goal in (outcome.front[0].objective, outcome.front[0].second)]
    count = len(outcome.front)
    points = "1 configuration makes" if count == 1 else f"{count} configurations make"
    return f"{points} the front of {goals[0]} against {goals[1]}; the report gives the command of each."


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
