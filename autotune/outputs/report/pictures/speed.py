"""The picture of speed for one user against speed for all, and the rows of a curve over load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import geometric_mean

from autotune.metrics.derived import CURVE, PER_GPU, PER_USER, counts, with_derived
from autotune.outputs.report import StudyRecord, tables, text
from autotune.outputs.report.pictures import Line, Panel, Picture, Point, Values, figure
from autotune.outputs.report.pictures.launches import command, decided, looks_of, short
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
