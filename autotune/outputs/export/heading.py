"""What every export says of itself in its first lines: where it comes from and what it is worth."""

from __future__ import annotations

from autotune.outputs.export.winner import Winner
from autotune.study.recommendation import Recommendation, Verdict
from autotune.trial import Evidence

_WHY = {
    Evidence.EMULATED: "not measured on this hardware",
    Evidence.SIMULATED: "not measured on this hardware",
    Evidence.REPLAYED: "read from recorded launches",
}


def lines(winner: Winner) -> list[str]:
    """Plain lines, without comment signs."""
    recommendation, choice = winner.recommendation, winner.choice
    evidence = recommendation.evidence
    worth = evidence.value if evidence is Evidence.MEASURED else f"{evidence.value.upper()}, {_WHY[evidence]}"
    objective = choice.objective
    return [
        f"{choice.engine} {choice.engine_version} for {recommendation.model} "
        f"on {recommendation.gpus} x {recommendation.hardware}",
        f"recommended by autotune, study {recommendation.study}, configuration {choice.fingerprint}",
        f"evidence: {worth}",
        f"{objective.metric} on {objective.workload}: {objective.value:.2f}",
        f"gain over the baseline: {gain(recommendation)}",
    ]


def gain(recommendation: Recommendation) -> str:
    """The gain with its interval and verdict, in one phrase."""
    if recommendation.verdict is Verdict.UNOPPOSED or recommendation.gain_percent is None:
        return "unknown, the baseline did not run"
    chosen, baseline = recommendation.recommended, recommendation.baseline
    if chosen and baseline and chosen.fingerprint == baseline.fingerprint:
        return "none, this is the baseline itself"
    text = f"{recommendation.gain_percent:+.1f} %"
    if recommendation.gain_ci95 is not None:
        low, high = recommendation.gain_ci95
        text += f" (95 % interval {low:+.1f} to {high:+.1f} %)"
    if recommendation.verdict is Verdict.INDISTINGUISHABLE:
        text += ", not distinguishable from none"
    return text


def comment(texts: list[str]) -> str:
    """The lines as comments of shell or YAML; nothing inside a text can end the comment or is refused in one."""
    return "".join(f"# {''.join(sign if sign.isprintable() else ' ' for sign in text)}\n" for text in texts)
