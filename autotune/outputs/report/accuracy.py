"""Whether the fast commands still answer right: scores with intervals, and examples of answers that do not."""

from __future__ import annotations

from autotune import redact
from autotune.outputs.report import StudyRecord, text, words
from autotune.trial import Accuracy, Launch

_KINDS = {
    "builtin": "Share of tokens that are not wrong beside the baseline's first launch, on contexts of autotune's own, "
    "sent alone and under load. What the baseline's launches differ by themselves is ordinary.",
    "tasks": "Share of right answers to the items of the task file. A drop fails whose 95 % interval lies below a "
    "point.",
    "command": "The score that the command printed. A drop of more than a point beyond its errors fails.",
}


def accuracy(study: StudyRecord) -> list[str]:
    """A table of the checked launches, why some failed, and their examples; [] where nothing was checked."""
    checked = [(row, row.result.accuracy) for row in study.launches if row.result.accuracy is not None]
    if not checked:
        return []
    kind = checked[0][1].kind
    rows = [_row(study, launch, check) for launch, check in checked]
    headings = ("#", "Role", "Configuration", "Score (95 % interval)", "Baseline", "Threshold", "Outcome", "Took")
    parts = [_KINDS[kind], text.table(headings, rows, "r  rrr r")]
    parts += [text.plain(note) + "." for note in dict.fromkeys(check.note for _, check in checked if check.note)]
    for launch, check in checked:
        if check.examples:
            parts += [f"### Launch {launch.trial.number} answers otherwise", *_examples(check)]
    return parts


def _row(study: StudyRecord, launch: Launch, check: Accuracy) -> tuple[str, ...]:
    trial, baseline = launch.trial, study.recommendation.baseline
    is_baseline = baseline is not None and baseline.fingerprint == trial.configuration.fingerprint
    what = (
        "the baseline" if is_baseline else f"{trial.configuration.engine} {text.code(trial.configuration.fingerprint)}"
    )
    outcome = {None: "compared with" if is_baseline else "not compared", True: "passes", False: "**fails**"}
    return (
        str(trial.number),
        trial.role.value,
        what,
        words.score(check.kind, check.score, check.ci95),
        words.score(check.kind, check.baseline, check.baseline_ci95),
        words.score(check.kind, check.threshold),
        outcome[check.passed],
        text.seconds(check.seconds),
    )


def _examples(check: Accuracy) -> list[str]:
    parts = [text.plain(f"{'; '.join(check.reasons)}.")]
    for one in check.examples:
        lines = (f"prompt    {one.prompt}", f"baseline  {one.baseline}", f"here      {one.finalist}")
        parts.append(text.block(redact.text("\n".join(lines))))
    return parts
