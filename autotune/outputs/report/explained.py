"""Why the winner is as fast as it is: what each knob gave, what did nothing, what is believed but was not tried."""

from __future__ import annotations

from autotune.outputs.report import StudyRecord, text, words
from autotune.study.recommendation import NoEffect, Prediction


def contributions(study: StudyRecord) -> str:
    """What each knob of the winner is worth."""
    outcome = study.recommendation
    rows = [
        (
            text.code(row.knob),
            text.code(text.scalar(row.from_)),
            text.code(text.scalar(row.to)),
            text.percent(row.gain_percent),
            _interval(row.ci95),
        )
        for row in outcome.contributions
    ]
    table = text.table(("Knob", "From", "To", "Gain", "95 % interval"), rows, "   rr")
    if not table:
        return ""
    note = (
        "What each change from the baseline to the recommended command gives, averaged over the orders in which they "
        "can be made; the engine's is that of its reference configuration over the baseline. They come from a model "
        "of all launches"
    )
    gain = outcome.gain_percent
    total = "" if gain is None else f", and multiply to the measured gain of {text.percent(gain)}"
    return f"## Contribution per knob ({words.label(outcome.evidence)})\n\n{note}{total}.\n\n{table}"


def inert(study: StudyRecord) -> str:
    """The knobs and flags that did nothing, and whose word that is."""
    lines = [_inert(row) for row in study.recommendation.inert]
    if not lines:
        return ""
    return f"## What did nothing ({words.label(study.recommendation.evidence)})\n\n" + "\n".join(lines)


def _inert(row: NoEffect) -> str:
    # A switch has no value.
    shown = [value for value in row.values if not (value is True and row.knob.startswith("-"))]
    values = ", ".join(text.code(text.scalar(value)) for value in shown)
    line = f"- {text.code(row.knob)}{f' ({values})' if values else ''}: {row.reason}"
    if row.effect_percent is None:
        return f"{line}."
    told = f"{row.launches} launch tells it" if row.launches == 1 else f"{row.launches} launches tell it"
    return f"{line}: {text.percent(row.effect_percent)}, {_interval(row.ci95)}; {told}."


def untried(study: StudyRecord) -> str:
    """What is expected of the most promising candidates that were not launched."""
    outcome = study.recommendation
    limits = bool(study.spec.slos)
    rows = [_untried(row, limits) for row in outcome.untried]
    if not rows:
        return ""
    headings = ("The recommended command with", "Predicted gain over it", "95 % interval", "Odds that it starts")
    table = text.table((*headings, *(["and keeps the limits"] if limits else [])), rows, " rrrr")
    note = "Nobody launched these: a model of the launches predicts them, and its interval says how much it knows."
    return f"## Believed, not tried ({words.label(outcome.evidence)})\n\n{note}\n\n{table}"


def _untried(row: Prediction, limits: bool) -> tuple[str, ...]:
    odds = (f"{100 * row.starts:.0f} %", *([f"{100 * row.keeps_slos:.0f} %"] if limits else []))
    return (text.knobs(row.changes), text.percent(row.predicted_gain_percent), _interval(row.ci95), *odds)


def _interval(ends: tuple[float, float] | None) -> str:
    return "–" if ends is None else f"{text.percent(ends[0])} to {text.percent(ends[1])}"
