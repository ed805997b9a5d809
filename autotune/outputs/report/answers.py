"""The check of answers in the report: a sentence of the conclusion, and a section with every checked launch."""

from __future__ import annotations

from autotune import redact
from autotune.outputs.report import StudyRecord, text
from autotune.study.recommendation import Recommendation
from autotune.trial import FailureKind

_KINDS = {
    "builtin": "Share of tokens that are not wrong beside the baseline's first launch, on contexts of autotune's own, "
    "sent alone and under load. What the baseline's launches differ by themselves is ordinary.",
    "tasks": "Share of right answers to the items of the task file. A drop fails whose 95 % interval lies below a "
    "point.",
    "command": "The score that the command printed. A drop of more than a point beyond its errors fails.",
}


def section(study: StudyRecord) -> list[str]:
    """Tabulate the checked launches, with why some failed and their examples; [] where nothing was checked."""
    baseline, rows, notes, examples = study.recommendation.baseline, [], dict[str, None](), list[str]()
    kind = ""
    for launch in study.launches:
        trial, check = launch.trial, launch.result.accuracy
        if check is None:
            continue
        kind = kind or check.kind
        own = baseline is not None and baseline.fingerprint == trial.configuration.fingerprint
        what = "the baseline" if own else f"{trial.configuration.engine} {text.code(trial.configuration.fingerprint)}"
        outcome = {None: "compared with" if own else "not compared", True: "passes", False: "**fails**"}
        scores = (
            _score(check.kind, check.score, check.ci95),
            _score(check.kind, check.baseline, check.baseline_ci95),
            _score(check.kind, check.threshold),
        )
        head = (str(trial.number), trial.role.value, what)
        rows.append((*head, *scores, outcome[check.passed], text.seconds(check.seconds)))
        notes |= {text.plain(check.note) + ".": None} if check.note else {}
        if check.examples:
            examples += [f"### Launch {trial.number} answers otherwise", text.plain(f"{'; '.join(check.reasons)}.")]
        for one in check.examples:
            lines = (f"prompt    {one.prompt}", f"baseline  {one.baseline}", f"here      {one.finalist}")
            examples.append(text.block(redact.text("\n".join(lines))))
    headings = ("#", "Role", "Configuration", "Score (95 % interval)", "Baseline", "Threshold", "Outcome", "Took")
    return [_KINDS[kind], text.table(headings, rows, "r  rrr r"), *notes, *examples] if rows else []


def sentence(outcome: Recommendation) -> str:
    """Outcome of the check of answers, in a sentence or two; empty where none was asked for."""
    check, worse = outcome.accuracy, outcome.failures.get(FailureKind.ACCURACY.value, 0)
    if check is None or outcome.recommended is None:
        return ""
    kinds = {"builtin": "agreement with the baseline", "tasks": "right answers", "command": "score"}
    fell = (
        f" {text.count(worse, 'launch', 'launches')} of other commands answered worse, and these fell." if worse else ""
    )
    if check.passed is None:
        return f"Its answers were not compared with the baseline's: too few launches were left.{fell}"
    if outcome.baseline is None or outcome.recommended.fingerprint == outcome.baseline.fingerprint:
        return fell.strip()
    figures = f"{_score(check.kind, check.recommended, check.recommended_ci95)}, the baseline's "
    figures += f"{_score(check.kind, check.baseline, check.baseline_ci95)}, threshold "
    return f"Its answers pass: {kinds[check.kind]} {figures}{_score(check.kind, check.threshold)}.{fell}"


def _score(kind: str, value: float | None, interval: tuple[float, float] | None = None) -> str:
    """A score of the check of answers, with its interval; in percent but for a command's."""
    if value is None:
        return "–"
    unit = "" if kind == "command" else " %"
    within = f" ({interval[0]:.4g} to {interval[1]:.4g}{unit})" if interval else ""
    return f"{value:.4g}{unit}{within}"
