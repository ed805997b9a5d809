"""Predicted against measured, by row and by group: ``python benchmarks/node/foresight.py TABLE …
[--without KIND]``.

Tables are those that ``autotune calibrate --data`` reads (``scripts/calibration_table.py`` makes
them of published files). Each row is predicted as its engine's version reads its command, by the
fast prediction (`autotune.node.steady`) or, with ``--full``, by the whole simulation.
Errors are |predicted / measured - 1|.

With ``--without KIND`` each row is predicted by a fit that has not seen its class, model, GPU,
engine or version of an engine; its interval is that of something of which no such thing was
measured. ``class``: all dense models, all of DeepSeek's, all gpt-oss, the others by their name.

- groups: median and 90th percentile of the error of total throughput, bias (median of predicted /
  measured), median error and bias of the mean TTFT and the mean TPOT, rows inside their 90 %
  interval and how wide that is;
- order, within one model, node and load: rank correlation, whether the best predicted is the best
  measured, and its regret; comparisons of two configurations inside the interval stated for them;
- starts: rows that ran and are predicted to fail, with their odds; failures foreseen and missed;
  rows refused, and why.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from autotune.load.metrics.table import HEADLINE
from autotune.node.calibration import (
    Z90,
    Calibration,
    PredictionErrors,
    ServerSetup,
    Subject,
    nothing_learned,
    packaged_calibration,
    read_calibration,
    sigma,
    sigma_of_ratio,
)
from autotune.node.fit.calibrate import Problem, refit_without
from autotune.node.fit.reading import LeftOut, MeasuredPoint, model_name, points_of, read_file
from autotune.node.fit.reading import groups as groups_of
from autotune.node.memory import TOO_CLOSE
from autotune.node.prediction_intervals import subject_of
from autotune.node.simulate import simulate
from autotune.node.steady import SteadyNode

METRICS = (HEADLINE, "mean_ttft_ms", "mean_tpot_ms")
LEAST_ODDS = 0.2
"""No row that ran may be given less."""


@dataclass(frozen=True)
class Foreseen:
    """A measured point and what is predicted of it.

    Attributes:
        predicted: metrics, as if it started; empty where nothing could be said.
        odds: of starting.
        refused: why it is predicted not to start; None where it is.
        errors: how sure the prediction is.
    """

    point: MeasuredPoint
    predicted: dict[str, float]
    odds: float
    refused: str | None
    subject: Subject
    errors: PredictionErrors

    def log_error(self, metric: str) -> float:
        """ln(predicted / measured); NaN where either is missing."""
        told, measured = self.predicted.get(metric, 0.0), self.point.metrics.get(metric, 0.0)
        return math.log(told / measured) if told > 0 and measured > 0 else math.nan

    @property
    def family(self) -> str:
        return class_of(self.point)

    @property
    def load(self) -> tuple[str, ...]:
        context = self.point.resolved.context
        workload = self.point.workload
        arrival = workload.points[-1].arrival
        name = f"{workload.name} {arrival.concurrency or ''} {arrival.request_rate or ''}".rstrip()
        return context.model.id, context.hardware.name, str(context.gpus), name


def class_of(point: MeasuredPoint) -> str:
    """DeepSeek's models, dense ones, or the name of others with experts."""
    name = model_name(point.model)
    if point.model.latent_attention:
        return "DeepSeek"
    if point.model.architecture.experts:
        return "experts, " + ("gpt-oss" if "gpt-oss" in name else name.split("-A")[0])
    return "dense"


def calibrations(
    points: Sequence[MeasuredPoint], whole: Calibration, kind: str | None
) -> list[Calibration]:
    """The calibration that each point is predicted with: the whole one, or one that has not seen
    its group."""
    if kind is None:
        return [whole] * len(points)
    ran = [place for place, point in enumerate(points) if point.failure is None]
    found = [whole] * len(points)
    classes = {
        name: [i for i, p in enumerate(points) if class_of(p) == name]
        for name in map(class_of, points)
    }
    members = classes if kind == "class" else groups_of(points)[kind]
    with Problem([points[place] for place in ran], nothing_learned(), lambda _: None) as problem:
        refit = refit_without(problem, problem.logs(whole))
        for places in members.values():
            fitted = refit([ran.index(place) for place in places if place in ran])
            errors = _unmeasured(whole.errors, kind, [points[place] for place in places])
            for place in places:
                found[place] = fitted.model_copy(update={"errors": errors})
    return found


def _unmeasured(
    errors: PredictionErrors, kind: str, points: Sequence[MeasuredPoint]
) -> PredictionErrors:
    """Errors of a calibration that has not measured the group of these points."""
    names = {"class": ("model",), "version": ("engine", "version")}.get(kind, (kind,))
    subjects = [subject_of(point.resolved.setup, point.workload, point.metrics) for point in points]
    out = {tuple(getattr(one, name) for name in names) for one in subjects}
    kept = [one for one in errors.covered if tuple(getattr(one, name) for name in names) not in out]
    return errors.model_copy(update={"covered": kept})


def foreseen(point: MeasuredPoint, calibration: Calibration, full: bool) -> Foreseen:
    """Predict one point."""
    resolved, workload = point.resolved, point.workload
    setup = resolved.setup
    subject = subject_of(setup, workload, point.metrics)
    node = SteadyNode(setup.model, setup.hardware, setup.gpus, workload, calibration)
    fast = node.predict(setup.engine, setup.version, setup.knobs)
    metrics, refused = dict(fast.metrics), None
    if resolved.failure is not None:
        return Foreseen(point, metrics, 0.0, resolved.failure.message, subject, calibration.errors)
    if full:
        outcome = simulate(point_setup(point, calibration), workload, 0)
        metrics = {name: float(value) for name, value in outcome.metrics.items()}
        refused = outcome.failure.message if outcome.failure else None
    elif fast.starts < TOO_CLOSE:
        refused = "odds"
    return Foreseen(point, metrics, fast.starts, refused, subject, calibration.errors)


def point_setup(point: MeasuredPoint, calibration: Calibration) -> ServerSetup:
    """The setup of a point with other figures."""
    return replace(point.resolved.setup, calibration=calibration)


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else math.nan


def _load_class(subject: Subject) -> str:
    """Lengths and requests in flight, in powers of ten and of four."""
    size = "short" if subject.read < 500 else "medium" if subject.read < 8000 else "long"
    answers = (
        "prefill"
        if subject.read > 15 * subject.written
        else "long answers"
        if subject.written > 1000
        else "mixed"
    )
    flight = "1-16" if subject.in_flight <= 16 else "17-128" if subject.in_flight <= 128 else "129-"
    return f"{size} prompts, {answers}, {flight} in flight"


def group_line(name: str, rows: Sequence[Foreseen]) -> str:
    """One row of the table of groups."""
    cells = [f"{name[:44]:44s}"]
    for metric in METRICS:
        logs = [error for row in rows if not math.isnan(error := row.log_error(metric))]
        errors = [abs(math.expm1(log)) for log in logs]
        cells.append(f"{len(logs):4d} {_quantile(errors, 0.5):5.0%}")
        if metric == HEADLINE:
            cells.append(f"{_quantile(errors, 0.9):5.0%}")
        cells.append(f"{math.exp(_quantile(logs, 0.5)):5.2f}")
    widths = [sigma(row.errors, row.subject) for row in rows]
    inside = [
        abs(row.log_error(HEADLINE)) <= Z90 * width for row, width in zip(rows, widths, strict=True)
    ]
    cells.append(f"{np.mean(inside):4.0%} {math.exp(2 * Z90 * _quantile(widths, 0.5)):5.1f}x")
    return " | ".join(cells)


def groups(rows: Sequence[Foreseen]) -> Iterable[str]:
    """The table of groups."""
    kinds: dict[str, Callable[[Foreseen], str]] = {
        "all": lambda _: "all",
        "class": lambda row: row.family,
        "gpu": lambda row: row.point.gpu,
        "engine": lambda row: f"{row.point.engine} {'.'.join(row.subject.version.split('.')[:2])}",
        "model": lambda row: model_name(row.point.model),
        "workload": lambda row: _load_class(row.subject),
        "class and gpu": lambda row: f"{row.family} {row.point.gpu}",
    }
    yield f"{'':44s} | throughput: n, median, p90, bias | TTFT | TPOT | in 90 %, width"
    for kind, name_of in kinds.items():
        members: dict[str, list[Foreseen]] = defaultdict(list)
        for row in rows:
            members[name_of(row)].append(row)
        yield f"-- {kind}"
        yield from (group_line(name, found) for name, found in sorted(members.items()))


def order(rows: Sequence[Foreseen]) -> Iterable[str]:
    """Rank correlation, the best, its regret, and intervals of comparisons."""
    loads: dict[tuple[str, ...], list[Foreseen]] = defaultdict(list)
    for row in rows:
        if row.predicted.get(HEADLINE) and row.point.weight >= 0.25:
            loads[row.load].append(row)
    several = {load: found for load, found in loads.items() if len(found) > 1}
    ranks, regrets, inside, widths = [], [], [], []
    for load, found in several.items():
        measured = np.array([row.point.metrics[HEADLINE] for row in found])
        told = np.array([row.predicted[HEADLINE] for row in found])
        # Of configurations predicted alike the mean of what they measured is what taking one of
        # them brings.
        best = measured[told >= told.max() * (1 - 1e-6)].mean()
        regrets.append((1 - best / measured.max(), load))
        if len(found) > 2 and np.ptp(told) > 0:
            ranks.append(float(spearmanr(measured, told).statistic))
        for i, one in enumerate(found):
            for other in found[i + 1 :]:
                width = sigma_of_ratio(one.errors, one.subject, other.subject)
                widths.append(width)
                inside.append(
                    abs(one.log_error(HEADLINE) - other.log_error(HEADLINE)) <= Z90 * width
                )
    losses = [loss for loss, _ in regrets]
    yield (
        f"{len(several)} groups: best is best (within 1 %) in {np.mean(np.array(losses) < 0.01):.0%}, regret mean "
        f"{np.mean(losses):.1%} max {max(losses):.0%}; rank correlation median {_quantile(ranks, 0.5):.2f} mean "
        f"{np.mean(ranks):.2f} ({len(ranks)} groups of 3 and more)"
    )
    yield (
        f"{len(inside)} comparisons: {np.mean(inside):.0%} inside their 90 % interval, "
        f"{math.exp(2 * Z90 * _quantile(widths, 0.5)):.2f}x wide in the median"
    )
    for loss, load in sorted(regrets, reverse=True)[:12]:
        yield f"   regret {loss:5.1%}  {' '.join(load)}"


def starts(
    rows: Sequence[Foreseen], failed: Sequence[Foreseen], left_out: Sequence[LeftOut]
) -> Iterable[str]:
    """Failures invented, foreseen and missed, and rows that were refused."""
    invented = [row for row in rows if row.refused]
    low = [row for row in rows if row.odds < LEAST_ODDS]
    caused = [row for row in failed if "Crash" not in (row.point.failure or "")]
    seen = [row for row in caused if row.refused]
    yield f"ran, predicted to fail: {len(invented)} of {len(rows)}; given odds below {LEAST_ODDS}: {len(low)}"
    yield from (
        f"   {_named(row)}: odds {row.odds:.2f} {(row.refused or '')[:90]}" for row in invented
    )
    crashed = [row for row in failed if row not in caused]
    yield f"failed with a stated cause: {len(seen)} of {len(caused)} foreseen; `Crash` alone: {len(crashed)}"
    for row in failed:
        verdict = "foreseen" if row.refused else f"missed, odds {row.odds:.2f}"
        yield f"   {verdict}: {_named(row)}: {(row.point.failure or '')[:80]}"
    reasons: dict[str, int] = defaultdict(int)
    for one in left_out:
        reasons[one.reason[:120]] += 1
    yield f"refused: {len(left_out)}"
    yield from (
        f"   {count} {reason}"
        for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])
    )


def _named(row: Foreseen) -> str:
    context = row.point.resolved.context
    where = f"{context.gpus}x{context.hardware.name} {row.point.engine} {context.version[:8]}"
    return (
        f"{row.point.members[0].source[:4]} {row.point.label} {model_name(context.model)} {where}"
    )


def main() -> None:
    """Predict and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument(
        "--full", action="store_true", help="the whole simulation instead of the fast prediction"
    )
    parser.add_argument("--calibration", type=Path)
    kinds = ("class", "model", "gpu", "engine", "version")
    parser.add_argument(
        "--without", choices=kinds, help="by fits that have not seen a row's group of this kind"
    )
    parser.add_argument("--rows", type=Path, help="write a JSON object per point here")
    asked = parser.parse_args()
    calibration = (
        read_calibration(asked.calibration) if asked.calibration else packaged_calibration()
    )
    readings = [read_file(table) for table in asked.tables]
    points = points_of([row for reading in readings for row in reading.rows])
    fits = calibrations(points, calibration, asked.without)
    found = [foreseen(point, one, asked.full) for point, one in zip(points, fits, strict=True)]
    ran = [row for row in found if row.point.failure is None]
    failed = [row for row in found if row.point.failure is not None]
    lines = [*groups(ran), *order(ran)]
    print(
        "\n".join(
            [
                *lines,
                *starts(ran, failed, [one for reading in readings for one in reading.left_out]),
            ]
        )
    )
    if asked.rows:
        asked.rows.write_text("".join(json.dumps(_plain(row)) + "\n" for row in found))


def _plain(row: Foreseen) -> dict[str, object]:
    about = {
        "name": _named(row),
        "workload": row.point.workload.name,
        "odds": row.odds,
        "refused": row.refused,
    }
    knobs = row.point.resolved.non_default_knobs()
    errors = {metric: round(math.exp(row.log_error(metric)), 3) for metric in METRICS}
    measured = {metric: row.point.metrics.get(metric) for metric in METRICS}
    return {**about, "knobs": knobs, "ratio": errors, "measured": measured}


if __name__ == "__main__":
    main()
