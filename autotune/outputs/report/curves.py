"""The curves over a ladder of concurrencies, which command to take for which traffic, and the front over its loads."""

from __future__ import annotations

from autotune import redact
from autotune.metrics.table import CURVE, INVALID, counts
from autotune.outputs.report import StudyRecord, text, words
from autotune.study.recommendation import Choice, LadderComparison, Objective, Side
from autotune.trial import Metrics

_BESIDE = ("output_tokens_per_s_per_user", "mean_ttft_ms", "cost_per_million_tokens")
"""Shown of both curves beside the metric that decides, where it was measured."""


def curves(study: StudyRecord) -> list[str]:
    """Both curves over the ladder in a table, where they cross, and which command to take for which traffic."""
    ladder = study.recommendation.ladder
    if ladder is None:
        return []
    workload = study.recommendation.workloads.get(ladder.workload)
    rows = [_rows(side) for side in ((workload.baseline, workload.recommended) if workload else (None, None))]
    beside = [name for name in _BESIDE if name != ladder.metric and any(name in m for r in rows for m in r.values())]
    headings = ["In flight", "Baseline", "Recommended", "Gain", "95 % interval"]
    headings += [f"{text.title(name)}: baseline, recommended" for name in beside]
    body = []
    for point in ladder.points:
        values = (text.number(point.baseline), text.number(point.recommended))
        gain = (text.percent(point.gain_percent), text.percents(point.ci95))
        more = [", ".join(text.number(side.get(point.concurrency, {}).get(name)) for side in rows) for name in beside]
        body.append((str(point.concurrency), *values, *gain, *more))
    theirs, mine = ladder.launches
    note = (
        f"{text.title(ladder.metric)} on {text.code(ladder.workload)} with so many requests in flight, on the servers "
        f"of the finals: {text.count(theirs, 'launch', 'launches')} of the baseline, {mine} of the recommended "
        f"command. A gain counts where it exceeds the noise from launch to launch ({ladder.noise_percent:.1f} %)."
    )
    said = words.crossing(study.recommendation)
    table = text.table(headings, body, "r" * len(headings))
    return [note, table, f"**{said}**" if said else "", *_advice(study), "\n".join(_not_counted(study))]


def _not_counted(study: StudyRecord) -> list[str]:
    """The loads of the ladder that were not measured as they should be, and why."""
    workload, lines = study.spec.workloads[0], []
    for launch in study.launches:
        for row in launch.result.metrics.get(workload, {}).get(CURVE) or []:
            if not counts(row):
                why = text.plain(str(row.get(INVALID) or "the client did not keep up"))
                lines.append(
                    f"- launch {launch.trial.number} at {row.get('concurrency')} in flight does not count: {why}"
                )
    return lines


def front(study: StudyRecord) -> list[str]:
    """For each engine the loads that no other one of it beats in one goal without losing in the other, with commands.

    A command is given once, with all loads of it.
    """
    points = study.recommendation.front
    first, second = (text.title(goal.metric) for goal in (points[0].objective, points[0].second))
    parts = [
        "Every launched configuration at every concurrency of the ladder (– is the workload as it is): of each engine "
        "those points that no other one of it beats in one goal without losing in the other. Means over the launches "
        "that count, with 95 % intervals where there are several. The recommendation goes by the objective alone."
    ]
    for engine in dict.fromkeys(point.engine for point in points):
        mine = [point for point in points if point.engine == engine]
        commands = {point.fingerprint: point for point in mine}
        names = {fingerprint: f"{engine} {i}" for i, fingerprint in enumerate(commands, start=1)}
        rows = []
        for point in mine:
            load = "–" if point.concurrency is None else str(point.concurrency)
            figures = (goal(point.objective), goal(point.second), str(point.objective.repeats))
            rows.append((load, *figures, names[point.fingerprint], point.label))
        headings = ("In flight", first, second, "Launches", "Command", "Evidence")
        parts += [f"### {text.plain(engine)}", text.table(headings, rows, "rrrr")]
        for fingerprint, point in commands.items():
            given = words.marked(study.recommendation, fingerprint)
            parts += [f"Command {names[fingerprint]} ({text.code(fingerprint)}){given}:", _block(point)]
    return parts


def goal(goal: Objective) -> str:
    """A goal's mean with its interval."""
    within = f" [{text.number(goal.ci95[0])}, {text.number(goal.ci95[1])}]" if goal.ci95 else ""
    return f"{text.number(goal.value)}{within}"


def _rows(metrics: Metrics | None) -> dict[int, Metrics]:
    """Concurrency to the metrics of a curve."""
    return {row["concurrency"]: row for row in (metrics or {}).get(CURVE, ()) if "concurrency" in row}


def _advice(study: StudyRecord) -> list[str]:
    """Recommend a command for each traffic, where that is not always the same one."""
    outcome, ladder = study.recommendation, study.recommendation.ladder
    if ladder is None or outcome.baseline is None or outcome.recommended is None:
        return []
    parts = [f"- {_range(start, end)}: {words.WHO[side]}" for start, end, side in _ranges(ladder)]
    if not any(point.faster == "baseline" for point in ladder.points):
        return []
    return ["Which command for which traffic:", "\n".join(parts), "The baseline's command:", _block(outcome.baseline)]


def _ranges(ladder: LadderComparison) -> list[tuple[float | None, float | None, Side]]:
    """From, to (in flight) and who is faster there."""
    if not ladder.crossings:
        sides = [p.faster for p in ladder.points if p.faster is not None]
        return [(None, None, sides[0])] if sides else []
    ends = [None, *(one.concurrency for one in ladder.crossings), None]
    sides = [ladder.crossings[0].below, *(one.above for one in ladder.crossings)]
    return list(zip(ends, ends[1:], sides, strict=False))


def _range(start: float | None, end: float | None) -> str:
    if start is None:
        return "all that was measured" if end is None else f"usually fewer than {end:.3g} in flight"
    return f"usually more than {start:.3g} in flight" if end is None else f"from {start:.3g} to {end:.3g} in flight"


def _block(choice: Choice) -> str:
    return text.block(redact.text(choice.command, redact.secrets_in(choice.argv, choice.env)), "bash")
