"""The first page: what to run, what it gains, how sure that is, and before and after."""

from __future__ import annotations

from autotune import redact
from autotune.outputs.report import StudyRecord, text, words
from autotune.outputs.report.figures import broken_slos, lower_is_better
from autotune.trial import Evidence, Metrics, Role

_WORTH = {
    Evidence.MEASURED: "The figures were measured on real servers on the named hardware.",
    Evidence.EMULATED: "No GPU ran: the servers were emulated. The figures say what the model of the hardware "
    "predicts, not what the hardware does.",
    Evidence.SIMULATED: "No server ran: every figure is a prediction of the built-in model of engine and hardware. "
    "Measure before you rely on it.",
    Evidence.REPLAYED: "No server ran: every figure was read from recorded launches, and is as good as they were.",
}
_SHOWN = ("total_token_throughput", "output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")

_WORSE = 1.1  # below, the noise of one launch


def opening(study: StudyRecord) -> str:
    """Title and evidence banner."""
    outcome = study.recommendation
    aim = text.plain(study.spec.objective.replace("_", " "))
    return (
        f"# {text.plain(outcome.model)} on {outcome.gpus}×{outcome.hardware.upper()}: tuned for {aim}\n\n"
        f"> **{words.label(outcome.evidence)}.** {_WORTH[outcome.evidence]}"
    )


def conclusion(study: StudyRecord) -> str:
    """What was found in words, and the command in a block of its own."""
    outcome = study.recommendation
    parts = [f"## Conclusion ({words.label(outcome.evidence)})", f"**{text.plain(words.conclusion(outcome))}**"]
    choice = outcome.recommended
    if choice is None:
        parts.append(_nothing(study))
    elif choice.external:
        parts.append(
            f"Somebody else runs the server ({text.code(choice.argv[0])}); how it was started is not known here."
        )
    else:
        command = redact.text(choice.command, redact.secrets_in(choice.argv, choice.env))
        what = "Serving command"
        if choice.stand_in:
            what = "The table does not tell a command; what it says of the row, in the form of one"
        parts += [f"{what} ({text.plain(choice.engine)} {choice.engine_version}):", text.block(command, "bash")]
    if outcome.baseline is None:
        parts.append(_baseline_failure(study))
    if outcome.stop_reason:
        parts.append(f"The study ended because: {text.plain(outcome.stop_reason)}.")
    return "\n\n".join(part for part in parts if part)


def _nothing(study: StudyRecord) -> str:
    ran = [launch for launch in study.launches if launch.result.metrics]
    if not ran:
        return "None of the launches gave a figure. What failed, and why, stands below."
    asked = ", ".join(text.code(str(slo)) for slo in study.spec.slos) or "none"
    broke = [(launch.trial.number, broken_slos(study, launch)) for launch in ran]
    lines = [f"- launch {number}: {text.plain('; '.join(broken))}" for number, broken in broke if broken]
    head = f"{len(ran)} launches gave figures, {len(lines)} of them broke a limit. Limits asked for: {asked}."
    return "\n".join([head, "", *lines]).strip()


def _baseline_failure(study: StudyRecord) -> str:
    for launch in study.launches:
        if launch.trial.role is Role.BASELINE and launch.result.failure:
            failure = launch.result.failure
            return f"The baseline failed with {words.failed(failure)}: {text.plain(redact.text(failure.message))}"
    return ""


def comparison(study: StudyRecord) -> str:
    """Before and after, a summary over the workloads and a table for each."""
    outcome = study.recommendation
    if not outcome.workloads:
        return ""
    label, objective = words.label(outcome.evidence), study.spec.objective
    rows = [
        (
            text.code(name),
            text.number((row.baseline or {}).get(objective)),
            text.number((row.recommended or {}).get(objective)),
            text.percent(row.gain_percent),
        )
        for name, row in outcome.workloads.items()
    ]
    parts = [
        f"## Before and after ({label})",
        f"{text.title(objective)}, {label}. Means over the launches that count; a positive gain is better; "
        "– was not measured.",
        text.table(("Workload", "Baseline", "Recommended", "Gain"), [*rows, *_weighted(study)], " rrr"),
    ]
    for name, row in outcome.workloads.items():
        parts += [f"### {text.code(name)} ({label})", _metrics_table(study, row.baseline, row.recommended)]
    return "\n\n".join([*parts, _worse(study)]).rstrip()


def _weighted(study: StudyRecord) -> list[tuple[str, ...]]:
    """The weighted mean over the workloads, where that is the objective."""
    outcome = study.recommendation
    choices = [choice.objective if choice else None for choice in (outcome.baseline, outcome.recommended)]
    goal = next((choice for choice in choices if choice and choice.workload not in outcome.workloads), None)
    if goal is None:
        return []
    values = [text.number(choice.value if choice else None) for choice in choices]
    return [(f"weighted geometric mean, {text.code(goal.workload)}", *values, text.percent(outcome.gain_percent))]


def _worse(study: StudyRecord) -> str:
    """What the recommendation costs: the shown metrics that became worse by more than a tenth."""
    costs = []
    for workload, row in study.recommendation.workloads.items():
        for name in _SHOWN:
            old, new = (row.baseline or {}).get(name), (row.recommended or {}).get(name)
            if old and new and (new / old if lower_is_better(name) else old / new) > _WORSE:
                costs.append(f"- {text.title(name)} on {text.code(workload)}: {text.change(old, new)}")
    return "\n\n".join(["What the recommended configuration costs:", "\n".join(costs)]) if costs else ""


def _metrics_table(study: StudyRecord, before: Metrics | None, after: Metrics | None) -> str:
    goals = (study.spec.objective, study.spec.pareto)
    asked = (*(goal for goal in goals if goal), *(slo.metric for slo in study.spec.slos))
    names = dict.fromkeys((*_SHOWN, *asked))
    pairs = [(name, (before or {}).get(name), (after or {}).get(name)) for name in names]
    rows = [
        (text.title(name), text.number(old), text.number(new), text.change(old, new))
        for name, old, new in pairs
        if old is not None or new is not None
    ]
    return text.table(("Metric", "Baseline", "Recommended", "Change"), rows, " rrr")
