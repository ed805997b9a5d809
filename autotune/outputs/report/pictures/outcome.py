"""Pictures of the outcome: what each setting adds, latencies before and after, curves over load, other workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import geometric_mean

from autotune.metrics.table import CURVE, PER_GPU, PER_USER, counts, with_derived
from autotune.outputs.report import StudyRecord, tables, text
from autotune.outputs.report.pictures import Line, Panel, Picture, Point, Values, figure
from autotune.outputs.report.pictures.launches import command, decided, looks_of, short
from autotune.outputs.report.tables import FINALS, by_configuration, undisturbed
from autotune.trial import Launch, Metrics

_WIDE = 5
"""Times the least value, from which on an axis is logarithmic."""


def speed(study: StudyRecord) -> Picture | None:
    """Tokens per second of a GPU against those of a user: each configuration, and the front of the two."""
    looks = looks_of(study)
    marks = _speed_marks(study, looks)
    if not marks:
        return None
    front = _front((mark.x, mark.y) for mark in marks if mark.look != "bad")
    keys = {**{look: short(engine) for engine, look in looks.items()}, ("soft", "-"): "front"}
    seen = {mark.look for mark in marks} | {mark.shape for mark in marks}
    known = {("ink", "*"): "recommended", ("ink", "X"): "baseline"}
    keys |= {key: role for key, role in known.items() if key[1] in seen}
    keys |= {("bad", "o"): "breaks a limit"} if "bad" in seen else {}
    per_user, per_gpu = [mark.x for mark in marks], [mark.y for mark in marks]
    wide = [axis for axis, values in (("x", per_user), ("y", per_gpu)) if max(values) > _WIDE * min(values)]
    panel = Panel(
        "output tok/s per user (1000 / mean TPOT in ms)",
        "total tok/s per GPU",
        marks=marks,
        lines=[_staircase(front)],
        logarithmic="".join(wide),
    )
    told = (
        f"Up is more for all users of a GPU together, right is faster for each of them, on "
        f"{text.code(study.spec.workloads[0])}. Nothing launched is better in both than the "
        f"{text.count(len(front), 'point', 'points')} of the front."
    )
    return Picture("speed", "How fast for each user, and how much for all?", told, [panel], keys)


def _speed_marks(study: StudyRecord, looks: Mapping[str, tuple[str, str]]) -> list[Point]:
    """Each configuration by the means of its launches, and each load that a launch's curve has besides."""
    workload = study.spec.workloads[0]
    roles = {choice.fingerprint: name for choice, name in decided(study)}
    marks: list[Point] = []
    for group in tables.by_configuration(study, tables.undisturbed(study)).values():
        counted = [row for row in tables.counted(group) if _speeds(row, row.result.metrics.get(workload, {}))]
        if not counted:
            continue
        first = counted[0]
        role = next((roles[_fingerprint(row)] for row in group if _fingerprint(row) in roles), "")
        broken = bool(tables.broken_slos(study.spec, first))
        own = looks[first.trial.configuration.engine]
        look, shape = {"recommended": ("ink", "*"), "baseline": ("ink", "X")}.get(role, own)
        look = "bad" if broken else look
        pairs = [pair for row in counted if (pair := _speeds(row, row.result.metrics[workload]))]
        numbers = [row.trial.number for row in counted]
        marks.append(_speed_mark(f"c{len(marks)}", first, role, (look, shape), numbers, _means(pairs)))
        for row in counted:
            for load, metrics in curve_of(row, workload):
                if pair := _speeds(row, metrics):
                    marks.append(_speed_mark(f"c{len(marks)}", row, role, own, [row.trial.number], pair, load))
    return marks


def _speed_mark(
    name: str,
    launch: Launch,
    role: str,
    style: tuple[str, str],
    numbers: Sequence[int],
    pair: tuple[float, float],
    load: float | None = None,
) -> Point:
    (look, shape), (per_user, per_gpu) = style, pair
    data: Values = {"fingerprint": _fingerprint(launch), "launches": " ".join(map(str, numbers))}
    data |= {"per-user": per_user, "per-gpu": per_gpu}
    if load is not None:
        data["load"] = load
    told = (
        f"{f'{role}: ' if role else ''}{launch.trial.configuration.engine}{f', load {load:g}' if load else ''}, "
        f"{'launch' if len(numbers) == 1 else 'launches'} {', '.join(map(str, numbers))}: "
        f"{text.number(per_gpu)} tok/s per GPU, {text.number(per_user)} tok/s per user"
        f"{', breaks a limit' if look == 'bad' else ''}\n{command(launch)}"
    )
    return Point(name, told, data, look, per_user, per_gpu, shape)


def curve_of(launch: Launch, workload: str) -> list[tuple[float, Metrics]]:
    """The load, concurrency or request rate, and the metrics of each row of a launch's curve that counts."""
    rows = launch.result.metrics.get(workload, {}).get(CURVE)
    loads = ((row.get("concurrency", row.get("request_rate")), row) for row in rows or () if counts(row))
    return [(load, row) for load_, row in loads if (load := figure(load_)) is not None and load > 0]


def _speeds(launch: Launch, metrics: Metrics) -> tuple[float, float] | None:
    """Tokens per second of a user and of a GPU; None where one is not known."""
    derived = with_derived(metrics, launch.result.gpus)
    per_user, per_gpu = figure(derived.get(PER_USER)), figure(derived.get(PER_GPU))
    return (per_user, per_gpu) if per_user and per_gpu and launch.result.failure is None else None


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return geometric_mean(x for x, _ in pairs), geometric_mean(y for _, y in pairs)


def _staircase(front: Sequence[tuple[float, float]]) -> Line:
    """The most that was reached for all where each user has at least so much."""
    corners = [(before[0], after[1]) for before, after in pairwise(front)]
    points = [place for pair in zip(front, corners, strict=False) for place in pair] + list(front[-1:])
    return Line([x for x, _ in points], [y for _, y in points], "soft")


def _front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both, from left to right."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def _fingerprint(launch: Launch) -> str:
    return launch.trial.configuration.fingerprint


_FAMILIES = ("ttft", "tpot", "itl", "e2el")
_PERCENTILES = ("median", "p90", "p95", "p99")
_OVER_LOAD = ("total_token_throughput", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
_SIDES = {"baseline": ("baseline", "s"), "recommended": ("chosen", "o")}
"""Look and shape of baseline and recommended configuration."""
_KEYS = {style: side for side, style in _SIDES.items()}
_FINALISTS = ("first", "second", "third", "fourth", "fifth")


def contributions(study: StudyRecord) -> Picture | None:
    """Draw the gain of each setting, with its interval."""
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
