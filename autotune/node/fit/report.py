"""Compare measured with predicted values: a line per point, prediction errors, and rank
correlations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.load.metrics.table import HEADLINE

from ..resolve_command import ResolvedCommand
from .calibrate import Predicted
from .reading import MeasuredPoint, model_name

Points = Sequence[MeasuredPoint]
Predictions = Sequence[Predicted]
"""The prediction of each point."""
_NOTHING = "–"
_SIZES = {
    "tensor_parallel": "TP",
    "data_parallel": "DP",
    "expert_parallel": "EP",
    "pipeline_parallel": "PP",
}
_TIMES = {"TTFT": "mean_ttft_ms", "TPOT": "mean_tpot_ms"}


def table(points: Points, predictions: Predictions) -> str:
    """Write a Markdown table with a line per point.

    *measured* is as measured, *warm* less the seconds in which a cold server answered nobody (empty
    where there were none); *ratio* and the ratios of times are predicted over warm. *spread* is
    that of equivalent rows: highest over lowest, in percent. *without* columns are the ratio with
    the point's group left out of the fit.
    """
    kinds = _kinds(predictions)
    rows = [_row(*pair, kinds) for pair in zip(points, predictions, strict=True)]
    lines = [
        [text.replace("|", "\\|").replace("\n", " ").strip() or " " for text in line]
        for line in [list(rows[0]), *(list(row.values()) for row in rows)]
    ]
    header, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([header, "|" + "---|" * len(rows[0]), *body])


def _kinds(predictions: Predictions) -> list[str]:
    """List the kinds of groups that were left out of a fit."""
    return list(dict.fromkeys(kind for one in predictions for kind in one.left_out))


def _row(point: MeasuredPoint, predicted: Predicted, kinds: Sequence[str]) -> dict[str, str]:
    """Return the cells of a point's line by column."""
    context, runs = point.resolved.context, predicted.failure is None
    shown = _rate(predicted.throughput) if runs else f"does not run: {predicted.failure}"
    row = {
        "point": point.label,
        "model": model_name(point.model),
        "engine": f"{point.engine} {context.version.partition('+')[0]}",
        "GPUs": f"{context.gpus}×{point.gpu}",
        "configuration": layout(point.resolved),
        "workload": point.workload.name,
        "measured": "did not start",
        "warm": "",
        "spread": "",
        "predicted": shown,
        "ratio": _NOTHING,
        "90 % interval": _NOTHING,
        "inside": "no" if runs else "yes",
        **{f"without its {kind}": _NOTHING for kind in kinds},
        **{f"{name} ratio": _NOTHING for name in _TIMES},
    }
    if point.failure is not None:
        return row
    warm = point.metrics[HEADLINE]
    row |= {"measured": _rate(point.measured), "inside": _NOTHING}
    if any(member.cold_start_s for member in point.members):
        row["warm"] = _rate(warm)
    if len(point.members) > 1:
        row["spread"] = f"{math.expm1(point.spread):.0%}"
    if runs:
        row["ratio"] = f"{predicted.throughput / warm:.2f}"
        row["90 % interval"] = f"{_rate(predicted.low)} to {_rate(predicted.high)}"
        row["inside"] = "yes" if _inside(point, predicted) else "no"
        for kind, throughput in predicted.left_out.items():
            row[f"without its {kind}"] = f"{throughput / warm:.2f}"
        for name, metric in _TIMES.items():
            if (ratio := _ratio(point, predicted, metric)) is not None:
                row[f"{name} ratio"] = f"{ratio:.2f}"
    return row


def _rate(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if math.isfinite(value) else "∞"


def _ratio(point: MeasuredPoint, predicted: Predicted, name: str) -> float | None:
    measured, expected = point.metrics.get(name), predicted.metrics.get(name)
    return expected / measured if expected and measured else None


def _inside(point: MeasuredPoint, predicted: Predicted) -> bool:
    return predicted.failure is None and predicted.low <= point.metrics[HEADLINE] <= predicted.high


def layout(resolved: ResolvedCommand) -> str:
    """Describe a configuration's difference from its engine's defaults; the sizes of its layout
    first."""
    knobs = resolved.effective.knobs
    sizes = []
    for name, short in _SIZES.items():
        size = knobs.get(name)
        if isinstance(size, int) and (size > 1 or name == "tensor_parallel"):
            sizes.append(f"{short}{size}")
    rest = [
        f"{name}={value}"
        for name, value in resolved.changed_knobs(_SIZES).items()
        if name not in _SIZES
    ]
    return " ".join([*sizes, *rest])


def errors(points: Points, predictions: Predictions) -> dict[str, Any]:
    """Return errors over complete points, as shares of the measured value; None for no point.

    ``throughput`` is the median |predicted / measured - 1| of the total token throughput, where a
    point that is predicted not to run counts 1; ``left_out`` the same by kind of group, with each
    point's group left out; ``times`` that of mean TTFT and TPOT. ``coverage`` is the share of
    measured throughputs inside their 90 % interval; ``failures`` counts those measured and the
    predicted ones of them, ``invented`` names points that ran and are predicted not to.
    """
    both = list(zip(points, predictions, strict=True))
    ran = [(point, predicted) for point, predicted in both if point.failure is None]
    failed = [predicted for point, predicted in both if point.failure is not None]
    left_out = {
        kind: [q.left_out[kind] / p.metrics[HEADLINE] for p, q in ran if kind in q.left_out]
        for kind in _kinds(predictions)
    }
    return {
        "points": len(ran),
        "throughput": _error(q.throughput / p.metrics[HEADLINE] for p, q in ran),
        "left_out": {kind: _error(ratios) for kind, ratios in left_out.items()},
        "times": {
            name: _error(_ratio(*pair, metric) for pair in ran) for name, metric in _TIMES.items()
        },
        "coverage": float(np.mean([_inside(*pair) for pair in ran])) if ran else None,
        "failures": {
            "measured": len(failed),
            "predicted": sum(predicted.failure is not None for predicted in failed),
        },
        "invented": [point.label for point, predicted in ran if predicted.failure is not None],
    }


def _error(ratios: Iterable[float | None]) -> float | None:
    """Return the median error of the predicted over the measured values that there are."""
    errors = [abs(ratio - 1) for ratio in ratios if ratio is not None]
    return float(np.median(errors)) if errors else None


def error_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the figures of `errors` in words, one sentence a line."""
    failures, invented = summary["failures"], summary["invented"]
    names = f"{len(invented)} ({', '.join(invented)})" if invented else "none"
    predicted = f"{failures['predicted']} of {failures['measured']} predicted"
    return [
        f"{summary['points']} points; "
        f"median error of total token throughput {_percent(summary['throughput'])}",
        *(f"with its {kind} left out: {_percent(e)}" for kind, e in summary["left_out"].items()),
        *(f"median error of mean {name}: {_percent(e)}" for name, e in summary["times"].items()),
        f"measured value inside the 90 % interval: {_percent(summary['coverage'])}",
        f"failures to start: {predicted}; invented: {names}",
    ]


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.1%}"


# Order: are the best configurations predicted to be the best? A search acts on order, not on
# figures: a simulator that is 20 % off everywhere ranks perfectly.

_LEAST = 4
"""Least points for a rank correlation."""

_LEAST_WEIGHT = 0.25
"""Least weight of a ranked point; one below it is too uncertain (mostly silent time of a cold
server)."""

Pair = tuple[MeasuredPoint, Predicted]
Ranked = tuple[str, list[Pair]]
"""Name of a load, and its points."""


def rankings(points: Points, predictions: Predictions) -> dict[str, list[dict[str, Any]]]:
    """Compare orders at one load (model, node, workload); configurations that did not start have no
    rank.

    ``rankings`` has the rank correlation of an engine or of all, None where there is no order;
    ``best_engine`` the best one as measured and as predicted.
    """
    # Takes a second to import, which bad input need not wait for.
    from scipy.stats import spearmanr

    at_one_load: dict[tuple[Hashable, ...], list[Pair]] = defaultdict(list)
    for point, predicted in zip(points, predictions, strict=True):
        if point.failure is None and point.weight >= _LEAST_WEIGHT:
            load = (point.model.id, point.gpu, point.resolved.context.gpus, point.workload.name)
            at_one_load[load].append((point, predicted))
    of_several: list[Ranked] = []
    of_one: list[Ranked] = []
    for pairs in at_one_load.values():
        point = pairs[0][0]
        node = f"{point.resolved.context.gpus}×{point.gpu}"
        name = f"{model_name(point.model)} {node} {point.workload.name}"
        engines = dict.fromkeys(point.engine for point, _ in pairs)
        if len(engines) > 1:
            of_several.append((name, pairs))
        for engine in engines:
            own = [pair for pair in pairs if pair[0].engine == engine]
            of_one.append((f"{engine} {name}", own))
    ranked: list[dict[str, Any]] = []
    all_engines = [(f"all engines, {name}", pairs) for name, pairs in of_several]
    for name, pairs in all_engines + of_one:
        if len(pairs) < _LEAST:
            continue
        measured = [point.metrics[HEADLINE] for point, _ in pairs]
        expected = [predicted.throughput for _, predicted in pairs]
        # Equal figures have no order.
        alike = 1 in (len(set(measured)), len(set(expected)))
        spearman = None if alike else float(spearmanr(measured, expected).statistic)
        ranked.append({"name": name, "points": len(pairs), "spearman": spearman})
    best = [
        {
            "name": name,
            "measured": max(pairs, key=lambda pair: pair[0].metrics[HEADLINE])[0].engine,
            "predicted": max(pairs, key=lambda pair: pair[1].throughput)[0].engine,
        }
        for name, pairs in of_several
    ]
    return {"rankings": ranked, "best_engine": best}


def ranking_lines(order: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the orders of `rankings` in words, one sentence a line."""
    lines = [
        f"rank correlation (Spearman), {one['name']}, {one['points']} points: "
        + ("no order" if one["spearman"] is None else f"{one['spearman']:.2f}")
        for one in order["rankings"]
    ]
    for best in order["best_engine"]:
        measured, predicted = best["measured"], best["predicted"]
        verdict = "right" if measured == predicted else f"wrong: {predicted} is predicted"
        lines.append(f"best engine, {best['name']}: {measured} measured, {verdict}")
    return lines
