"""Pictures of a report: their content as values that `draw` draws; only `draw` loads matplotlib."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from statistics import geometric_mean

from autotune.base import redact
from autotune.load.metrics import readable
from autotune.load.metrics.table import CURVE, PER_GPU, PER_USER, Metrics, Rent, counts
from autotune.outputs.report import StudyRecord, tables, text, words
from autotune.tuner.search.objective import achieved, best_so_far, maximises
from autotune.tuner.study.recommendation import Choice
from autotune.tuner.trial import Launch, Role

PIXELS = 560
"""Width of every picture, CSS pixels at its natural size."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point with the tooltip `told` and the ends of an interval of y (`across`: of x).

    `look` is its colour, a key of `LIGHT`; `shape` matplotlib's letter of a marker.
    """

    told: str
    look: str
    x: float
    y: float
    shape: str = "o"
    interval: tuple[float, float] | None = None
    across: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, or steps that hold a value until the next point.

    With one y and no x, or one x and no y, it goes through the whole picture.
    """

    xs: Sequence[float]
    ys: Sequence[float]
    look: str
    stepped: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: `bands` are ranges with a darker background, `y_ticks` name the positions
    0, 1, 2 … of y.

    The axes in `logarithmic` (``x``, ``y`` or both) are; numbers of x may be `whole`, y may begin
    at `zero`.
    """

    x_label: str
    y_label: str
    title: str = ""
    points: Sequence[Point] = ()
    lines: Sequence[Line] = ()
    bands: Sequence[int] = ()
    y_ticks: Sequence[str] = ()
    logarithmic: str = ""
    whole: bool = False
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that answers one question; `name` is its file name, `told` the answer in a sentence
    or two (Markdown).

    Panels stand two in a row, of `height` CSS pixels; `keys` is the legend, look and shape to
    words.
    """

    name: str
    question: str
    told: str
    panels: Sequence[Panel]
    keys: Mapping[tuple[str, str], str] = field(default_factory=dict)
    height: int = 320


Part = str | text.Facts | Picture
"""Part of a report's section: text in Markdown, figures at the top, or a picture."""

_CSS = files("autotune.outputs.report").joinpath("page.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", rules))
    for rules in re.findall(r":root {(.*?)}", _CSS, re.S)
)
"""Colours of page and pictures by purpose; a drawn picture holds marks in their place."""

_ENGINES = (("first", "o"), ("second", "s"), ("third", "^"), ("fourth", "D"), ("fifth", "P"))
"""Colour and marker of the engines, in alphabetical order."""
_LONGEST_NAME = 30
_WIDE = 5
"""Ratio of largest to smallest value from which an axis is logarithmic."""
_OVER_LOAD = ("total_token_throughput", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
_SIDES = {"baseline": ("baseline", "s"), "recommended": ("chosen", "o")}
"""Colour and marker of baseline and recommended configuration."""


def tried(study: StudyRecord) -> Picture | None:
    """Draw every launch in its order, the best so far, the baseline, and the failures."""
    if not study.launches:
        return None
    spec, looks, points, kept = study.spec, _looks(study), list[Point](), list[Point]()
    with_weights = [launch for launch in study.launches if launch.trial.role is not Role.SCREEN]
    for launch in with_weights:
        number, value = launch.trial.number, achieved(spec, launch)
        look, shape = looks[launch.trial.configuration.engine]
        broken = tables.broken_slos(spec, launch) if value is not None else []
        if value is None:
            shape = "x"
            said = (
                words.failed(launch.result.failure)
                if launch.result.failure
                else launch.result.state.value
            )
        else:
            said = readable.number(value) + (f", breaks {'; '.join(broken)}" if broken else "")
        look = "bad" if broken or value is None else look
        name = f"launch {number} ({launch.trial.role.value}), {launch.trial.configuration.engine}"
        points.append(
            Point(f"{name}: {said}\n{_command(launch)}", look, number, value or 0.0, shape)
        )
        kept += points[-1:] if value is not None else []
    finals = [launch.trial.number for launch in study.launches if launch.trial.role is Role.FINAL]
    keys = {look: _short(engine) for engine, look in looks.items()}
    lines = []
    if reached := best_so_far(spec, study.launches):
        steps = [*reached, (max(point.x for point in points), reached[-1][1])]
        lines.append(Line([x for x, _ in steps], [y for _, y in steps], "ink", stepped=True))
        keys["ink", "-"] = "best so far"
    if (baseline := study.recommendation.baseline) is not None:
        lines.append(Line([], [baseline.objective.value], "baseline", dashed=True))
        keys["baseline", "--"] = "baseline"
    bad = {point.shape for point in points if point.look == "bad"}
    keys |= {("line", "s"): "finals"} if finals else {}
    keys |= {("bad", "x"): "invalid"} if "x" in bad else {}
    keys |= {("bad", "o"): "breaks a limit"} if bad - {"x"} else {}
    told = f"{text.count(len(points), 'launch', 'launches')}, all invalid: the failures are listed below."
    if kept:
        top = (max if maximises(spec.objective) else min)(kept, key=lambda point: point.y)
        others = {"with random weights, which rank only": len(study.launches) - len(with_weights)}
        others["invalid"] = len(points) - len(kept)
        without = "".join(f", {number} {kind}" for kind, number in others.items() if number)
        lucky = (
            "; chance may have helped it, so the finals launch the model's choice, less idle settings"
            if finals
            else ""
        )
        told = (
            f"{text.count(len(study.launches), 'launch', 'launches')}, {len(kept)} valid{without}. "
            f"The best single launch is {top.x:g} with {readable.number(top.y)}{lucky}."
        )
    axes = ("launch", text.title(spec.objective))
    panel = Panel(*axes, points=points, lines=lines, bands=finals, whole=True, zero=True)
    return Picture("tried", "What was launched?", told, [panel], keys)


def finals(study: StudyRecord) -> Picture | None:
    """Draw each valid launch of the finalists and the baseline, with means and intervals."""
    names, points = list[str](), list[Point]()
    choices = {name: choice for choice, name in _decided(study)}
    for row, (_, who, group) in enumerate(tables.finalists(study)):
        look = (
            "baseline"
            if who.startswith("baseline")
            else "chosen"
            if "recommended" in who
            else "fourth"
        )
        names.append(f"{who}\n{_short(group[0].trial.configuration.engine)}")
        for launch in group:
            if (value := achieved(study.spec, launch)) is not None:
                told = f"{who}, launch {launch.trial.number}: {readable.number(value)}"
                points.append(Point(told, look, value, row + 0.12))
        if (choice := choices.get(who.partition(" and ")[0])) is not None:
            goal = choice.objective
            within = f", 95 % interval {readable.interval(goal.ci95)}" if goal.ci95 else ""
            count = text.count(goal.repeats, "launch", "launches")
            told = f"{who}: mean {readable.number(goal.value)} of {count}{within}"
            points.append(Point(told, look, goal.value, row - 0.12, "D", goal.ci95, across=True))
    if not points:
        return None
    keys = {("ink", "o"): "one launch", ("ink", "D"): "mean, with its 95 % interval"}
    panel = Panel(text.title(study.spec.objective), "", points=points, y_ticks=names)
    told = (
        "Each dot is a new launch, in alternating order; earlier launches of the baseline are included, the search's "
        "are not."
    )
    return Picture(
        "finals", "Is the gain significant?", told, [panel], keys, height=90 + 60 * len(names)
    )


def speed(study: StudyRecord) -> Picture | None:
    """Draw throughput per GPU against speed per user: each configuration, and the front of the
    two."""
    looks = _looks(study)
    points = _speed_points(study, looks)
    if not points:
        return None
    front = _front((point.x, point.y) for point in points if point.look != "bad")
    keys = {**{look: _short(engine) for engine, look in looks.items()}, ("soft", "-"): "front"}
    seen = {point.look for point in points} | {point.shape for point in points}
    known = {("ink", "*"): "recommended", ("ink", "X"): "baseline"}
    keys |= {key: role for key, role in known.items() if key[1] in seen}
    keys |= {("bad", "o"): "breaks a limit"} if "bad" in seen else {}
    sides = {"x": [point.x for point in points], "y": [point.y for point in points]}
    # The most that was reached for all where each user has at least so much: a staircase.
    corners = [(before[0], after[1]) for before, after in pairwise(front)]
    steps = [place for pair in zip(front, corners, strict=False) for place in pair] + list(
        front[-1:]
    )
    panel = Panel(
        "output tok/s per user (1000 / mean TPOT in ms)",
        "total tok/s per GPU",
        points=points,
        lines=[Line([x for x, _ in steps], [y for _, y in steps], "soft")],
        logarithmic="".join(
            axis for axis, values in sides.items() if max(values) > _WIDE * min(values)
        ),
    )
    told = (
        f"Up: total throughput per GPU. Right: speed for each user. Workload: "
        f"{text.code(study.spec.workloads[0])}. No launch beats the "
        f"{text.count(len(front), 'point', 'points')} on the line in both."
    )
    return Picture("speed", "How fast for each user, and how much for all?", told, [panel], keys)


def _speed_points(study: StudyRecord, looks: Mapping[str, tuple[str, str]]) -> list[Point]:
    """Return each configuration by the means of its launches, and each further load of a launch's
    curve."""
    workload, points = study.spec.workloads[0], list[Point]()
    roles = {choice.fingerprint: name for choice, name in _decided(study)}

    def add(
        rows: Sequence[Launch],
        style: tuple[str, str],
        role: str,
        pair: tuple[float, float],
        load: str,
    ) -> None:
        numbers = ", ".join(str(row.trial.number) for row in rows)
        told = (
            f"{f'{role}: ' if role else ''}{rows[0].trial.configuration.engine}{load}, "
            f"{'launch' if len(rows) == 1 else 'launches'} {numbers}: "
            f"{readable.number(pair[1])} tok/s per GPU, {readable.number(pair[0])} tok/s per user"
            f"{', breaks a limit' if style[0] == 'bad' else ''}\n{_command(rows[0])}"
        )
        points.append(Point(told, style[0], *pair, style[1]))

    for group in tables.by_configuration(study, tables.undisturbed(study)).values():
        counted = tables.counted(study, group)
        pairs = {
            row.trial.number: _speeds(row, row.result.metrics.get(workload, {})) for row in counted
        }
        known = [pair for pair in pairs.values() if pair]
        rows = [row for row in counted if pairs[row.trial.number]]
        if not rows:
            continue
        fingerprints = [row.trial.configuration.fingerprint for row in group]
        role = next((roles[one] for one in fingerprints if one in roles), "")
        own = looks[rows[0].trial.configuration.engine]
        look, shape = {"recommended": ("ink", "*"), "baseline": ("ink", "X")}.get(role, own)
        look = "bad" if tables.broken_slos(study.spec, rows[0]) else look
        add(
            rows,
            (look, shape),
            role,
            (geometric_mean(x for x, _ in known), geometric_mean(y for _, y in known)),
            "",
        )
        for row in rows:
            for load, metrics in _curve(row, workload):
                if pair := _speeds(row, metrics):
                    add([row], own, role, pair, f", load {load:g}")
    return points


def _curve(launch: Launch, workload: str) -> list[tuple[float, Metrics]]:
    """Return load (concurrency or request rate) and metrics of each valid row of a launch's
    curve."""
    rows = launch.result.metrics.get(workload, {}).get(CURVE)
    loads = (
        (row.get("concurrency", row.get("request_rate")), row) for row in rows or () if counts(row)
    )
    return [(load, row) for load, row in loads if load]


def _speeds(launch: Launch, metrics: Metrics) -> tuple[float, float] | None:
    """Return tokens per second of a user and of a GPU; None if one is unknown."""
    derived = Rent(launch.result.gpus).derived(metrics)
    per_user, per_gpu = derived.get(PER_USER), derived.get(PER_GPU)
    return (per_user, per_gpu) if per_user and per_gpu and launch.result.failure is None else None


def _front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the non-dominated points, from left to right."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def contributions(study: StudyRecord) -> Picture | None:
    """Draw the gain of each setting, with its interval."""
    rows, points, metric = study.recommendation.contributions, list[Point](), study.spec.objective
    for place, row in enumerate(rows):
        change = f"{row.knob}, {text.scalar(row.from_)} → {text.scalar(row.to)}"
        if row.gain_percent is None:
            points.append(Point(f"{change}: needed to {row.needed_to}", "bad", 0.0, place, "x"))
            continue
        odds = "" if row.odds is None else f", odds of more than 0.5 %: {100 * row.odds:.0f} %"
        within = f"95 % interval {readable.gains(metric, row.ci95)}"
        told = f"{change}: {readable.gain(metric, row.gain_percent)}, {within}{odds}"
        x, ends = readable.changed(metric, row.gain_percent), readable.changes(metric, row.ci95)
        points.append(Point(told, "chosen", x or 0.0, place, "D", ends, across=True))
    if not points:
        return None
    names = ["\n".join(map(_short, row.knob.replace(" + ", "+").split("+")[:3])) for row in rows]
    panel = Panel(
        f"{readable.gain_heading(metric).lower()}, %",
        "",
        points=points,
        y_ticks=names,
        lines=[Line([0.0], [], "soft")],
    )
    keys = {("chosen", "D"): "gain, with its 95 % interval"}
    keys |= (
        {("bad", "x"): "does not start without it"}
        if any(point.look == "bad" for point in points)
        else {}
    )
    return Picture(
        "contributions",
        "What does each setting add?",
        "",
        [panel],
        keys,
        height=100 + 38 * len(rows),
    )


def curves(study: StudyRecord) -> Picture | None:
    """Draw throughput and latencies over the load, a line per launch of baseline and recommended
    configuration."""
    workload, groups = (
        study.spec.workloads[0],
        tables.by_configuration(study, tables.undisturbed(study)).values(),
    )
    rows = []
    for choice, side in reversed(_decided(study)):
        own = (
            g
            for g in groups
            if choice.fingerprint in {row.trial.configuration.fingerprint for row in g}
        )
        group = next(own, [])
        launches = [
            launch for launch in group if launch.trial.role in study.spec.judged_by
        ] or group
        rows += [
            (side, launch, curve) for launch in launches if (curve := _curve(launch, workload))
        ]
    metrics = [
        name
        for name in _OVER_LOAD
        if any(name in point for *_, curve in rows for _, point in curve)
    ]
    if not metrics:
        return None
    concurrent = any("concurrency" in point for *_, curve in rows for _, point in curve)
    over, panels = "requests in flight" if concurrent else "requests per second", []
    for metric in metrics:
        points, lines = list[Point](), list[Line]()
        for side, launch, curve in rows:
            look, shape = _SIDES[side]
            what = f"{side}, launch {launch.trial.number}"
            values = [(load, row[metric]) for load, row in curve if row.get(metric) is not None]
            for load, value in values:
                told = f"{what}, load {load:g}, {text.title(metric)}: {readable.number(value)}"
                points.append(Point(told, look, load, value, shape))
            lines.append(Line([load for load, _ in values], [value for _, value in values], look))
        lines += [
            Line([], [slo.limit], "bad", dashed=True)
            for slo in study.spec.slos
            if slo.metric == metric
        ]
        panels.append(
            Panel(over, "", text.title(metric), points, lines, logarithmic="x", zero=True)
        )
    keys = {_SIDES[side]: side for side, *_ in rows}
    limits = (
        "; the dashed line is a limit"
        if any(slo.metric in metrics for slo in study.spec.slos)
        else ""
    )
    told = f"Every load that was tried on {text.code(workload)}, a line for each launch{limits}."
    return Picture("curves", "What happens under other loads?", told, panels, keys, height=220)


def _looks(study: StudyRecord) -> dict[str, tuple[str, str]]:
    """Map the launched engines, in the study's order, to colour and marker."""
    names = [engine.name for engine in study.spec.engines]
    launched = dict.fromkeys(launch.trial.configuration.engine for launch in study.launches)
    order = sorted(launched, key=lambda name: names.index(name) if name in names else len(names))
    return {name: _ENGINES[place % len(_ENGINES)] for place, name in enumerate(order)}


def _decided(study: StudyRecord) -> list[tuple[Choice, str]]:
    outcome = study.recommendation
    pairs = ((outcome.recommended, "recommended"), (outcome.baseline, "baseline"))
    return [(choice, name) for choice, name in pairs if choice is not None]


def _command(launch: Launch) -> str:
    command = launch.trial.command
    return redact.text(command.shell(), redact.secrets_in(command.words, command.env))


def _short(name: str) -> str:
    """Shorten a name to the space next to a picture."""
    flat = " ".join(name.split())
    return flat if len(flat) <= _LONGEST_NAME else f"{flat[: _LONGEST_NAME - 1]}…"
