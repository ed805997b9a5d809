"""Pictures of the outcome: what each setting adds, latencies before and after, curves over load, other workloads."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.outputs.report import StudyRecord, text
from autotune.outputs.report.pictures import Line, Panel, Picture, Point, Values, figure
from autotune.outputs.report.pictures.speed import curve_of
from autotune.outputs.report.tables import FINALS, by_configuration, undisturbed
from autotune.trial import Launch, Metrics

_FAMILIES = ("ttft", "tpot", "itl", "e2el")
_PERCENTILES = ("median", "p90", "p95", "p99")
_OVER_LOAD = ("total_token_throughput", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
_SIDES = {"baseline": ("baseline", "s"), "recommended": ("chosen", "o")}
"""Look and shape of baseline and recommended configuration."""
_KEYS = {style: side for side, style in _SIDES.items()}
_FINALISTS = ("first", "second", "third", "fourth", "fifth")


def contributions(study: StudyRecord) -> Picture | None:
    """What each setting adds, with its interval."""
    rows = study.recommendation.contributions
    marks = []
    for place, row in enumerate(rows):
        change = f"{row.knob}, {text.scalar(row.from_)} → {text.scalar(row.to)}"
        data: Values = {"knob": row.knob}
        if row.gain_percent is None:
            marks.append(Point(f"knob-{place}", f"{change}: needed to {row.needed_to}", data, "bad", 0.0, place, "x"))
            continue
        data["gain"] = row.gain_percent
        if row.ci95 is not None:
            data |= {"low": row.ci95[0], "high": row.ci95[1]}
        odds = "" if row.odds is None else f", odds of more than 0.5 %: {100 * row.odds:.0f} %"
        told = f"{change}: {text.percent(row.gain_percent)}, 95 % interval {text.percents(row.ci95)}{odds}"
        marks.append(Point(f"knob-{place}", told, data, "chosen", row.gain_percent, place, "D", row.ci95, across=True))
    if not marks:
        return None
    names = [_wrapped(row.knob) for row in rows]
    panel = Panel("gain, %", "", marks=marks, y_ticks=names, lines=[Line([0.0], [], "soft")])
    keys = {("chosen", "D"): "gain, with its 95 % interval"}
    keys |= {("bad", "x"): "does not start without it"} if any(mark.look == "bad" for mark in marks) else {}
    return Picture("contributions", "What does each setting add?", "", [panel], keys, height=100 + 38 * len(rows))


def _wrapped(knob: str) -> str:
    parts = [part if len(part) <= 30 else f"{part[:29]}…" for part in knob.replace(" + ", "+").split("+")]
    return "\n".join(parts[:3])


def latencies(study: StudyRecord) -> list[Picture]:
    """For each workload the latencies' percentiles, baseline beside recommended."""
    pictures = []
    for place, (name, row) in enumerate(study.recommendation.workloads.items()):
        sides = {"baseline": row.baseline, "recommended": row.recommended}
        panels = [panel for family in _FAMILIES if (panel := _family(family, sides, place)) is not None]
        if panels:
            question = f"How long do users wait on {name}?"
            told = f"Percentiles on {text.code(name)}, means over the launches that count; lower is better."
            title = f"latency-{place}" if place else "latency"
            pictures.append(Picture(title, question, told, panels, _KEYS, height=200))
    return pictures


def _family(family: str, sides: dict[str, Metrics | None], place: int) -> Panel | None:
    """One kind of latency; None where fewer than two of its percentiles are known."""
    metrics = [metric for percentile in _PERCENTILES if _known(metric := f"{percentile}_{family}_ms", sides)]
    marks, lines = [], []
    for side, row in sides.items():
        look, shape = _SIDES[side]
        points = []
        for x, metric in enumerate(metrics):
            if (value := figure((row or {}).get(metric))) is not None:
                told = f"{side}, {text.title(metric)}: {text.number(value)}"
                data: Values = {"side": side, "metric": metric, "value": value}
                points.append(Point(f"{metric}-{side}-{place}", told, data, look, x, value, shape))
        marks += points
        lines.append(Line([point.x for point in points], [point.y for point in points], look))
    if len(metrics) < 2:
        return None
    title = text.title(f"mean_{family}_ms").removeprefix("Mean ")
    ticks = [metric.partition("_")[0] for metric in metrics]
    return Panel("", "", title=title, marks=marks, lines=lines, x_ticks=ticks, zero=True)


def _known(metric: str, sides: dict[str, Metrics | None]) -> bool:
    return any(figure((row or {}).get(metric)) is not None for row in sides.values())


def curves(study: StudyRecord) -> Picture | None:
    """Throughput and latencies over the load, a line per launch of baseline and recommended configuration."""
    workload = study.spec.workloads[0]
    sides = _sides(study)
    rows = [(side, launch, curve_of(launch, workload)) for side, group in sides.items() for launch in group]
    rows = [row for row in rows if row[2]]
    metrics = [name for name in _OVER_LOAD if any(name in point for *_, curve in rows for _, point in curve)]
    if not metrics:
        return None
    concurrent = any("concurrency" in point for *_, curve in rows for _, point in curve)
    over = "requests in flight" if concurrent else "requests per second"
    panels = []
    for metric in metrics:
        marks, lines = [], []
        for side, launch, curve in rows:
            points = _over_load(metric, side, launch, curve)
            marks += points
            lines.append(Line([point.x for point in points], [point.y for point in points], _SIDES[side][0]))
        lines += [Line([], [slo.limit], "bad", dashed=True) for slo in study.spec.slos if slo.metric == metric]
        panels.append(Panel(over, "", text.title(metric), marks, lines, logarithmic="x", zero=True))
    keys = {_SIDES[side]: side for side, *_ in rows}
    limits = "; dashed is a limit" if any(slo.metric in metrics for slo in study.spec.slos) else ""
    told = f"Every load that was tried on {text.code(workload)}, a line for each launch{limits}."
    return Picture("curves", "What happens under other loads?", told, panels, keys, height=220)


def _over_load(metric: str, side: str, launch: Launch, curve: Sequence[tuple[float, Metrics]]) -> list[Point]:
    look, shape = _SIDES[side]
    points = []
    for load, row in curve:
        if (value := figure(row.get(metric))) is not None:
            number = launch.trial.number
            told = f"{side}, launch {number}, load {load:g}, {text.title(metric)}: {text.number(value)}"
            data: Values = {"side": side, "launch": number, "load": load, "metric": metric, "value": value}
            points.append(Point(f"{metric}-{number}-{load:g}", told, data, look, load, value, shape))
    return points


def _sides(study: StudyRecord) -> dict[str, list[Launch]]:
    """The launches of baseline and recommended configuration that count, or of the search where none do."""
    chosen = {"baseline": study.recommendation.baseline, "recommended": study.recommendation.recommended}
    groups = by_configuration(study, undisturbed(study)).values()
    sides = {}
    for side, choice in chosen.items():
        own = choice.fingerprint if choice is not None else ""
        group = next((g for g in groups if any(row.trial.configuration.fingerprint == own for row in g)), [])
        sides[side] = [launch for launch in group if launch.trial.role in FINALS] or group
    return sides


def workloads(study: StudyRecord) -> Picture | None:
    """The finalists' gain over the baseline on every workload."""
    names = list(study.spec.workloads)
    finalists = [row for row in study.recommendation.matrix if row.role != "baseline"]
    if len(names) < 2 or not finalists:
        return None
    marks, keys = [], {}
    for order, row in enumerate(finalists):
        look = "chosen" if row.role == "recommended" else _FINALISTS[order % len(_FINALISTS)]
        keys[look, "D"] = f"{row.role}, {row.engine}"
        shift = 0.5 * (order - (len(finalists) - 1) / 2) / len(finalists)
        for place, name in enumerate(names):
            cell = row.workloads.get(name)
            if cell is None or cell.gain_percent is None:
                continue
            gain = f"{text.percent(cell.gain_percent)}, 95 % interval {text.percents(cell.ci95)}"
            told = f"{row.role}, {row.engine} on {name}: {text.number(cell.value)}, {gain}\n{row.command}"
            data: Values = {"workload": name, "fingerprint": row.fingerprint}
            data |= {"value": cell.value, "gain": cell.gain_percent}
            at = (cell.gain_percent, place + shift)
            marks.append(Point(f"cell-{order}-{place}", told, data, look, *at, "D", cell.ci95, across=True))
    if not marks:
        return None
    shown = [name if len(name) <= 26 else f"{name[:25]}…" for name in names]
    line = [Line([0.0], [], "baseline")]
    panel = Panel("gain over the baseline, %", "", marks=marks, lines=line, y_ticks=shown)
    told = "Right of the line is better than the baseline; an interval that crosses it shows no difference."
    return Picture("workloads", "Does it hold on every workload?", told, [panel], keys, height=90 + 60 * len(names))
