"""Compare measured with predicted values: a line per point, prediction errors, and rank
correlations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.load.metrics.table import HEADLINE
from autotune.node.resolve_command import ResolvedCommand

from .calibrate import Predicted
from .reading import MeasuredPoint, model_name

_NOTHING = "–"
_SIZES = {
    "tensor_parallel": "TP",
    "data_parallel": "DP",
    "expert_parallel": "EP",
    "pipeline_parallel": "PP",
}
_TIMES = {"TTFT": "mean_ttft_ms", "TPOT": "mean_tpot_ms"}


def table(points: Sequence[MeasuredPoint], predictions: Sequence[Predicted]) -> str:
    """Write a Markdown table with a line per point.

    *measured* is as measured, *warm* less the seconds in which a cold server answered nobody (empty
    where there were none); *ratio* and the ratios of times are predicted over warm. *spread* is
    that of equivalent rows: highest over lowest, in percent. *without* columns are the ratio with
    the point's group left out of the fit.
    """
    kinds = list(dict.fromkeys(kind for one in predictions for kind in one.left_out))
    header = [
        "point",
        "model",
        "engine",
        "GPUs",
        "configuration",
        "workload",
        "measured",
        "warm",
        "spread",
    ]
    header += [
        "predicted",
        "ratio",
        "90 % interval",
        "inside",
        *(f"without its {kind}" for kind in kinds),
    ]
    lines = [[*header, *(f"{name} ratio" for name in _TIMES)]]
    for point, predicted in zip(points, predictions, strict=True):
        about = [
            point.label,
            model_name(point.model),
            f"{point.engine} {point.resolved.context.version.partition('+')[0]}",
        ]
        about += [
            f"{point.resolved.context.gpus}×{point.gpu}",
            layout(point.resolved),
            point.workload.name,
        ]
        cells = (
            _ran(point, predicted, kinds) if point.failure is None else _failed(predicted, kinds)
        )
        lines.append([*about, *cells])
    rule = "|" + "---|" * len(lines[0])
    lines = [
        [text.replace("|", "\\|").replace("\n", " ").strip() or " " for text in line]
        for line in lines
    ]
    shown = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([shown[0], rule, *shown[1:]])


def _ran(point: MeasuredPoint, predicted: Predicted, kinds: Sequence[str]) -> list[str]:
    warm = point.metrics[HEADLINE]
    cold = any(row.cold_start_s for row in point.members)
    spread = f"{math.expm1(point.spread):.0%}" if len(point.members) > 1 else ""
    cells = [_rate(point.measured), _rate(warm) if cold else "", spread]
    if predicted.failure is not None:
        return [
            *cells,
            f"does not run: {predicted.failure}",
            *[_NOTHING] * (3 + len(kinds) + len(_TIMES)),
        ]
    cells += [_rate(predicted.throughput), f"{predicted.throughput / warm:.2f}"]
    cells += [
        f"{_rate(predicted.low)} to {_rate(predicted.high)}",
        "yes" if _inside(point, predicted) else "no",
    ]
    cells += [
        f"{predicted.left_out[kind] / warm:.2f}" if kind in predicted.left_out else _NOTHING
        for kind in kinds
    ]
    ratios = [_ratio(point.metrics, predicted.metrics, name) for name in _TIMES.values()]
    return [*cells, *(_NOTHING if ratio is None else f"{ratio:.2f}" for ratio in ratios)]


def _failed(predicted: Predicted, kinds: Sequence[str]) -> list[str]:
    runs = predicted.failure is None
    shown = _rate(predicted.throughput) if runs else f"does not run: {predicted.failure}"
    nothing = [_NOTHING] * (len(kinds) + len(_TIMES))
    return ["did not start", "", "", shown, _NOTHING, _NOTHING, "no" if runs else "yes", *nothing]


def _rate(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if math.isfinite(value) else "∞"


def _ratio(
    measured: Mapping[str, float], predicted: Mapping[str, float], name: str
) -> float | None:
    return predicted[name] / measured[name] if predicted.get(name) and measured.get(name) else None


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


def errors(points: Sequence[MeasuredPoint], predictions: Sequence[Predicted]) -> dict[str, Any]:
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
    kinds = dict.fromkeys(kind for predicted in predictions for kind in predicted.left_out)
    return {
        "points": len(ran),
        "throughput": _median(
            abs(predicted.throughput / point.metrics[HEADLINE] - 1) for point, predicted in ran
        ),
        "left_out": {
            kind: _median(
                abs(q.left_out[kind] / p.metrics[HEADLINE] - 1)
                for p, q in ran
                if kind in q.left_out
            )
            for kind in kinds
        },
        "times": {
            name: _median(
                abs(ratio - 1)
                for p, q in ran
                if (ratio := _ratio(p.metrics, q.metrics, metric)) is not None
            )
            for name, metric in _TIMES.items()
        },
        "coverage": float(np.mean([_inside(point, predicted) for point, predicted in ran]))
        if ran
        else None,
        "failures": {
            "measured": len(failed),
            "predicted": sum(predicted.failure is not None for predicted in failed),
        },
        "invented": [point.label for point, predicted in ran if predicted.failure is not None],
    }


def _median(values: Iterable[float]) -> float | None:
    figures = list(values)
    return float(np.median(figures)) if figures else None


def error_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the figures of `errors` in words, one sentence a line."""
    failures, invented = summary["failures"], summary["invented"]
    lines = [
        f"{summary['points']} points; median error of total token throughput {_percent(summary['throughput'])}"
    ]
    lines += [
        f"with its {kind} left out: {_percent(error)}"
        for kind, error in summary["left_out"].items()
    ]
    lines += [
        f"median error of mean {name}: {_percent(error)}"
        for name, error in summary["times"].items()
    ]
    lines.append(f"measured value inside the 90 % interval: {_percent(summary['coverage'])}")
    told = f"{len(invented)} ({', '.join(invented)})" if invented else "none"
    return [
        *lines,
        f"failures to start: {failures['predicted']} of {failures['measured']} predicted; invented: {told}",
    ]


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.1%}"


# Order: are the best configurations predicted to be the best? A search acts on order, not on
# figures: a simulator that is 20 % off everywhere ranks perfectly.

_LEAST = 4
"""Least points for a rank correlation."""

_LEAST_WEIGHT = 0.25
"""Least weight of a point with a rank; below it (mostly silent time of a cold server) it is too
uncertain."""

Pair = tuple[MeasuredPoint, Predicted]


def rankings(
    points: Sequence[MeasuredPoint], predictions: Sequence[Predicted]
) -> dict[str, list[dict[str, Any]]]:
    """Compare orders at one load (model, node, workload); configurations that did not start have no
    rank.

    ``rankings`` has the rank correlation of an engine or of all, None where there is no order;
    ``best_engine`` the best one as measured and as predicted.
    """
    # Takes a second to import, which bad input need not wait for.
    from scipy.stats import spearmanr

    at_one_load: dict[tuple[Hashable, ...], list[Pair]] = {}
    for point, predicted in zip(points, predictions, strict=True):
        if point.failure is None and point.weight >= _LEAST_WEIGHT:
            load = (point.model.id, point.gpu, point.resolved.context.gpus, point.workload.name)
            at_one_load.setdefault(load, []).append((point, predicted))
    of_several: list[tuple[str, list[Pair]]] = []
    of_one: list[tuple[str, list[Pair]]] = []
    for pairs in at_one_load.values():
        point, engines = pairs[0][0], list(dict.fromkeys(point.engine for point, _ in pairs))
        name = f"{model_name(point.model)} {point.resolved.context.gpus}×{point.gpu} {point.workload.name}"
        if len(engines) > 1:
            of_several.append((name, pairs))
        for engine in engines:
            of_one.append(
                (f"{engine} {name}", [pair for pair in pairs if pair[0].engine == engine])
            )
    ranked: list[dict[str, Any]] = []
    for name, pairs in [*((f"all engines, {name}", pairs) for name, pairs in of_several), *of_one]:
        if len(pairs) < _LEAST:
            continue
        figures = (
            [point.metrics[HEADLINE] for point, _ in pairs],
            [one.throughput for _, one in pairs],
        )
        # Of figures that are all alike there is no order.
        alike = any(len(set(its)) == 1 for its in figures)
        spearman = None if alike else float(spearmanr(*figures).statistic)
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
