"""Pictures of a report: their content as values that `draw` draws; only `draw` loads matplotlib."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from statistics import geometric_mean

from autotune.base import Interval, beside, frozen, redact
from autotune.load.metrics import readable
from autotune.load.metrics.table import PER_GPU, PER_USER, Metrics, Rent, is_valid_row
from autotune.tuner.search.decide.verdict import best_so_far
from autotune.tuner.search.objective import maximises
from autotune.tuner.trial import Launch, Role

from . import StudyRecord, sentences, tables, text

PIXELS = 560
"""Width of every picture, CSS pixels at its natural size."""


@frozen
class Point:
    """A point with its `tooltip` and the ends of an interval of y (`across`: of x).

    `look` is its colour, a key of `LIGHT`; `shape` matplotlib's letter of a marker.
    """

    tooltip: str
    look: str
    x: float
    y: float
    shape: str = "o"
    interval: Interval | None = None
    across: bool = False


@frozen
class Line:
    """A line through points, or steps that hold a value until the next point.

    With one y and no x, or one x and no y, it goes through the whole picture.
    """

    xs: Sequence[float]
    ys: Sequence[float]
    look: str
    stepped: bool = False
    dashed: bool = False


@frozen
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


@frozen
class Picture:
    """A picture that answers one question; `name` is its file name, `answer` is a sentence or two
    (Markdown).

    Panels stand two in a row, of `height` CSS pixels; `keys` is the legend, look and shape to
    words.
    """

    name: str
    question: str
    answer: str
    panels: Sequence[Panel]
    keys: Mapping[tuple[str, str], str] = field(default_factory=dict)
    height: int = 320


Part = str | text.Facts | Picture
"""Part of a report's section: text in Markdown, figures at the top, or a picture."""

_CSS = beside(__file__, "page.css")
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
    spec = study.spec
    looks = _looks(study)
    shown, others = tables.with_figures(study.launches)
    points = [_tried(study, launch, looks[launch.engine]) for launch in shown]
    finals = [launch.number for launch in study.launches if launch.role is Role.FINAL]
    keys = {look: _shorten(engine) for engine, look in looks.items()}
    lines = []
    if reached := best_so_far(spec, study.launches):
        xs, ys = zip(*reached, strict=True)
        last = max(point.x for point in points)
        lines.append(Line([*xs, last], [*ys, ys[-1]], "ink", stepped=True))
        keys["ink", "-"] = "best so far"
    if baseline := study.choices.get("baseline"):
        lines.append(Line([], [baseline.objective.value], "baseline", dashed=True))
        keys["baseline", "--"] = "baseline"
    if finals:
        keys["line", "s"] = "finals"
    bad = {point.shape for point in points if point.look == "bad"}
    if "x" in bad:
        keys["bad", "x"] = "invalid"
    if bad - {"x"}:
        keys["bad", "o"] = "breaks a limit"
    title = text.title(spec.objective)
    panel = Panel("launch", title, points=points, lines=lines, bands=finals, whole=True, zero=True)
    return Picture(
        "tried", "What was launched?", _best_launch(study, points, others), [panel], keys
    )


def _tried(study: StudyRecord, launch: Launch, own: tuple[str, str]) -> Point:
    """Return a launch's point in its engine's look and shape, or in those of a failure."""
    (look, shape), trial, failure = own, launch.trial, launch.result.failure
    value = study.value(launch)
    if value is None:
        look = "bad"
        shape = "x"
        outcome = failure.summary if failure else launch.result.state.value
    else:
        outcome = readable.number(value)
        if broken := tables.broken_slos(study.spec, launch.result.metrics):
            look = "bad"
            outcome += f", breaks {'; '.join(broken)}"
    name = f"launch {trial.number} ({trial.role.value}), {trial.configuration.engine}"
    return Point(f"{name}: {outcome}\n{_command(launch)}", look, trial.number, value or 0.0, shape)


def _best_launch(study: StudyRecord, points: Sequence[Point], others: Mapping[str, int]) -> str:
    """Count the launches by their outcome, and name the best one."""
    valid = [point for point in points if point.shape != "x"]
    if not valid:
        return f"{text.launches(len(points))}, all invalid: the failures are listed below."
    better = max if maximises(study.spec.objective) else min
    best = better(valid, key=lambda point: point.y)
    counts = {**others, "invalid": len(points) - len(valid)}
    rest = "".join(f", {number} {kind}" for kind, number in counts.items() if number)
    answer = (
        f"{text.launches(len(study.launches))}, {len(valid)} valid{rest}. "
        f"The best single launch is {best.x:g} with {readable.number(best.y)}"
    )
    if any(launch.role is Role.FINAL for launch in study.launches):
        answer += "; chance may have helped it, so the finals launch the model's choice, less idle settings"
    return f"{answer}."


def finals(study: StudyRecord) -> Picture | None:
    """Draw each valid launch of the finalists and the baseline, with means and intervals."""
    names = []
    points = []
    for row, (_, roles, group) in enumerate(tables.finalists(study)):
        role = roles.partition(" and ")[0]
        look = _SIDES[role][0] if role in _SIDES else "fourth"
        names.append(f"{roles}\n{_shorten(group[0].engine)}")
        for launch in group:
            if (value := study.value(launch)) is not None:
                tooltip = f"{roles}, launch {launch.number}: {readable.number(value)}"
                points.append(Point(tooltip, look, value, row + 0.12))
        if choice := study.choices.get(role):
            goal = choice.objective
            within = f", 95 % interval {readable.interval(goal.ci95)}" if goal.ci95 else ""
            count = text.launches(goal.repeats)
            tooltip = f"{roles}: mean {readable.number(goal.value)} of {count}{within}"
            points.append(Point(tooltip, look, goal.value, row - 0.12, "D", goal.ci95, across=True))
    if not points:
        return None
    keys = {("ink", "o"): "one launch", ("ink", "D"): "mean, with its 95 % interval"}
    panel = Panel(text.title(study.spec.objective), "", points=points, y_ticks=names)
    answer = (
        "Each dot is a new launch, in alternating order; earlier launches of the baseline are "
        "included, the search's are not."
    )
    height = 90 + 60 * len(names)
    return Picture("finals", "Is the gain significant?", answer, [panel], keys, height)


def speed(study: StudyRecord) -> Picture | None:
    """Draw throughput per GPU against speed per user: each configuration, and the front of the
    two."""
    looks = _looks(study)
    points = _speed_points(study, looks)
    if not points:
        return None
    front = _front((point.x, point.y) for point in points if point.look != "bad")
    keys = {**{look: _shorten(engine) for engine, look in looks.items()}, ("soft", "-"): "front"}
    shapes = {point.shape for point in points}
    if "*" in shapes:
        keys["ink", "*"] = "recommended"
    if "X" in shapes:
        keys["ink", "X"] = "baseline"
    if any(point.look == "bad" for point in points):
        keys["bad", "o"] = "breaks a limit"
    sides = {"x": [point.x for point in points], "y": [point.y for point in points]}
    wide = [axis for axis, values in sides.items() if max(values) > _WIDE * min(values)]
    # The most that was reached for all where each user has at least so much: a staircase.
    steps = [*front[:1]]
    for (x, _), (right, y) in pairwise(front):
        steps += [(x, y), (right, y)]
    panel = Panel(
        "output tok/s per user (1000 / mean TPOT in ms)",
        "total tok/s per GPU",
        points=points,
        lines=[Line([x for x, _ in steps], [y for _, y in steps], "soft")],
        logarithmic="".join(wide),
    )
    answer = (
        "Up: total throughput per GPU. Right: speed for each user. Workload: "
        f"{text.code(study.spec.workloads[0])}. No launch beats the "
        f"{text.count(len(front), 'point')} on the line in both."
    )
    question = "How fast for each user, and how much for all?"
    return Picture("speed", question, answer, [panel], keys)


def _speed_points(study: StudyRecord, looks: Mapping[str, tuple[str, str]]) -> list[Point]:
    """Return each configuration by the means of its launches, and each further load of a launch's
    curve."""
    workload = study.spec.workloads[0]
    points = []
    roles = {choice.fingerprint: role for role, choice in study.choices.items()}
    for group in study.by_configuration().values():
        speeds = [
            (launch, pair)
            for launch in study.deciding(group)
            if (pair := _speeds(launch, launch.result.metrics.get(workload, {})))
        ]
        if not speeds:
            continue
        rows = [launch for launch, _ in speeds]
        fingerprints = [launch.fingerprint for launch in group]
        role = next((roles[one] for one in fingerprints if one in roles), "")
        own = looks[rows[0].engine]
        look, shape = {"recommended": ("ink", "*"), "baseline": ("ink", "X")}.get(role, own)
        if tables.broken_slos(study.spec, rows[0].result.metrics):
            look = "bad"
        middle = (
            geometric_mean(x for _, (x, _) in speeds),
            geometric_mean(y for _, (_, y) in speeds),
        )
        lead = f"{role}: " if role else ""
        points.append(_speed_point(rows, (look, shape), middle, lead))
        for launch in rows:
            for load, metrics in _curve(launch, workload):
                if pair := _speeds(launch, metrics):
                    points.append(_speed_point([launch], own, pair, lead, f", load {load:g}"))
    return points


def _speed_point(
    launches: Sequence[Launch],
    style: tuple[str, str],
    speeds: tuple[float, float],
    lead: str,
    load: str = "",
) -> Point:
    """Return the point of launches of one configuration, in a look and a shape."""
    (look, shape), (per_user, per_gpu) = style, speeds
    noun = "launch" if len(launches) == 1 else "launches"
    limit = ", breaks a limit" if look == "bad" else ""
    tooltip = (
        f"{lead}{launches[0].engine}{load}, "
        f"{noun} {', '.join(str(launch.number) for launch in launches)}: "
        f"{readable.number(per_gpu)} tok/s per GPU, {readable.number(per_user)} tok/s per user"
        f"{limit}\n{_command(launches[0])}"
    )
    return Point(tooltip, look, per_user, per_gpu, shape)


def _curve(launch: Launch, workload: str) -> list[tuple[float, Metrics]]:
    """Return load (concurrency or request rate) and metrics of each valid row of a launch's
    curve."""
    rows = filter(is_valid_row, launch.result.curve(workload))
    loads = ((row.get("concurrency", row.get("request_rate")), row) for row in rows)
    return [(load, row) for load, row in loads if load]


def _speeds(launch: Launch, metrics: Metrics) -> tuple[float, float] | None:
    """Return tokens per second of a user and of a GPU; None if one is unknown."""
    derived = Rent(launch.result.gpus).derived(metrics)
    per_user = derived.get(PER_USER)
    per_gpu = derived.get(PER_GPU)
    return (per_user, per_gpu) if per_user and per_gpu and not launch.result.failure else None


def _front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the non-dominated points, from left to right."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def contributions(study: StudyRecord) -> Picture | None:
    """Draw the gain of each setting, with its interval."""
    rows = study.recommendation.contributions
    points = []
    metric = study.spec.objective
    for place, row in enumerate(rows):
        change = f"{row.knob}, {text.scalar(row.from_)} → {text.scalar(row.to)}"
        tooltip = f"{change}: {sentences.added(row, metric)}"
        if row.gain_percent is None:
            points.append(Point(tooltip, "bad", 0.0, place, "x"))
            continue
        x = readable.changed(metric, row.gain_percent)
        ends = readable.changes(metric, row.ci95)
        points.append(Point(tooltip, "chosen", x or 0.0, place, "D", ends, across=True))
    if not points:
        return None
    names = ["\n".join(map(_shorten, row.knob.replace(" + ", "+").split("+")[:3])) for row in rows]
    title = f"{readable.gain_heading(metric).lower()}, %"
    panel = Panel(title, "", points=points, y_ticks=names, lines=[Line([0.0], [], "soft")])
    keys = {("chosen", "D"): "gain, with its 95 % interval"}
    if any(point.look == "bad" for point in points):
        keys["bad", "x"] = "does not start without it"
    question = "What does each setting add?"
    height = 100 + 38 * len(rows)
    return Picture("contributions", question, "", [panel], keys, height)


def curves(study: StudyRecord) -> Picture | None:
    """Draw throughput and latencies over the load, a line per launch of baseline and recommended
    configuration."""
    workload = study.spec.workloads[0]
    slos = study.spec.slos
    rows = []
    for side, choice in reversed(study.choices.items()):
        for group in study.by_configuration().values():
            if choice.fingerprint in {launch.fingerprint for launch in group}:
                curves = ((launch, _curve(launch, workload)) for launch in study.deciding(group))
                rows += [(side, launch, curve) for launch, curve in curves if curve]
                break
    loads = [point for *_, curve in rows for _, point in curve]
    metrics = [name for name in _OVER_LOAD if any(name in point for point in loads)]
    if not metrics:
        return None
    concurrent = any("concurrency" in point for point in loads)
    over = "requests in flight" if concurrent else "requests per second"
    panels = []
    for metric in metrics:
        points = []
        lines = []
        title = text.title(metric)
        for side, launch, curve in rows:
            look, shape = _SIDES[side]
            values = [(load, row[metric]) for load, row in curve if row.get(metric) is not None]
            for load, value in values:
                lead = f"{side}, launch {launch.number}, load {load:g}"
                tooltip = f"{lead}, {title}: {readable.number(value)}"
                points.append(Point(tooltip, look, load, value, shape))
            lines.append(Line([load for load, _ in values], [value for _, value in values], look))
        lines += [Line([], [one.limit], "bad", dashed=True) for one in slos if one.metric == metric]
        panels.append(Panel(over, "", title, points, lines, logarithmic="x", zero=True))
    keys = {_SIDES[side]: side for side, *_ in rows}
    drawn = any(slo.metric in metrics for slo in slos)
    answer = (
        f"Every load that was tried on {text.code(workload)}, a line for each launch"
        f"{'; the dashed line is a limit' if drawn else ''}."
    )
    return Picture("curves", "What happens under other loads?", answer, panels, keys, height=220)


def _looks(study: StudyRecord) -> dict[str, tuple[str, str]]:
    """Map the launched engines, in the study's order, to colour and marker."""
    launched = dict.fromkeys(launch.engine for launch in study.launches)
    asked = [engine.name for engine in study.spec.engines if engine.name in launched]
    names = dict.fromkeys([*asked, *launched])
    return {name: _ENGINES[place % len(_ENGINES)] for place, name in enumerate(names)}


def _command(launch: Launch) -> str:
    command = launch.trial.command
    return redact.text(command.shell(), redact.secrets_in(command.words, command.env))


def _shorten(name: str) -> str:
    """Shorten a name to the space next to a picture."""
    flat = " ".join(name.split())
    return flat if len(flat) <= _LONGEST_NAME else f"{flat[: _LONGEST_NAME - 1]}…"
