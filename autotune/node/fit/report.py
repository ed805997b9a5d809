"""Compare measured with predicted values: a line per point, prediction errors, and rank
correlations."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter

import numpy as np

from autotune.base import Json, JsonObject, StringDict
from autotune.load.metrics.table import HEADLINE

from ..resolve_command import ResolvedCommand
from .calibrate import Predicted
from .reading import model_name

Predictions = Sequence[Predicted]
_NOTHING = "–"
_SIZES = {
    "tensor_parallel": "TP",
    "data_parallel": "DP",
    "expert_parallel": "EP",
    "pipeline_parallel": "PP",
}
_TIMES = {"TTFT": "mean_ttft_ms", "TPOT": "mean_tpot_ms"}


def table(predictions: Predictions) -> str:
    """Write a Markdown table with a line per point.

    *measured* is as measured, *warm* less the seconds in which a cold server answered nobody (empty
    where there were none); *ratio* and the ratios of times are predicted over warm. *spread* is
    that of equivalent rows: highest over lowest, in percent. *without* columns are the ratio with
    the point's group left out of the fit.
    """
    kinds = _kinds(predictions)
    rows = [_row(predicted, kinds) for predicted in predictions]
    lines = [
        [text.replace("|", "\\|").replace("\n", " ").strip() or " " for text in line]
        for line in [list(rows[0]), *(list(row.values()) for row in rows)]
    ]
    header, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([header, "|" + "---|" * len(rows[0]), *body])


def _kinds(predictions: Predictions) -> list[str]:
    """List the kinds of groups that were left out of a fit."""
    return list(dict.fromkeys(kind for one in predictions for kind in one.left_out))


def _row(predicted: Predicted, kinds: Sequence[str]) -> StringDict:
    """Return the cells of a point's line by column."""
    point = predicted.point
    runs = predicted.failure is None
    context = point.resolved.context
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
        row["inside"] = "yes" if predicted.inside else "no"
        for kind, without in predicted.left_out.items():
            row[f"without its {kind}"] = f"{without.throughput / warm:.2f}"
        for name, metric in _TIMES.items():
            if (ratio := predicted.ratio(metric)) is not None:
                row[f"{name} ratio"] = f"{ratio:.2f}"
    return row


def _rate(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if math.isfinite(value) else "∞"


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
        for name, value in resolved.non_default_knobs(_SIZES).items()
        if name not in _SIZES
    ]
    return " ".join([*sizes, *rest])


def errors(predictions: Predictions) -> Json:
    """Return errors over complete points, as shares of the measured value; None for no point.

    ``throughput`` is the median |predicted / measured - 1| of the total token throughput, where a
    point that is predicted not to run counts 1; ``left_out`` the same by kind of group, with each
    point's group left out, with the share of measured values inside its interval and the interval's
    median width, upper over lower end; ``times`` that of mean TTFT and TPOT, ``ttft_bias`` the
    median predicted / measured TTFT by engine. ``coverage`` is the share of
    measured throughputs inside their 90 % interval; ``failures`` counts those measured and the
    predicted ones of them, ``invented`` names points that ran and are predicted not to.
    """
    ran = [one for one in predictions if one.point.failure is None]
    failed = [one for one in predictions if one.point.failure is not None]
    engines = dict.fromkeys(one.point.engine for one in ran)
    return {
        "points": len(ran),
        "throughput": _error(one.throughput / one.measured for one in ran),
        "left_out": {kind: _unseen(ran, kind) for kind in _kinds(predictions)},
        "times": {
            name: _error(one.ratio(metric) for one in ran) for name, metric in _TIMES.items()
        },
        "ttft_bias": {
            engine: _median(one.ratio(_TIMES["TTFT"]) for one in ran if one.point.engine == engine)
            for engine in engines
        },
        "coverage": float(np.mean([one.inside for one in ran])) if ran else None,
        "failures": {
            "measured": len(failed),
            "predicted": sum(one.failure is not None for one in failed),
        },
        "invented": [one.point.label for one in ran if one.failure is not None],
    }


def _error(ratios: Iterable[float | None]) -> float | None:
    """Return the median error of the predicted over the measured values that there are."""
    return _median(None if ratio is None else abs(ratio - 1) for ratio in ratios)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _unseen(ran: Predictions, kind: str) -> Json:
    """Return the errors of complete points by fits that had not seen their group of a kind."""
    pairs = [(one.measured, one.left_out[kind]) for one in ran if kind in one.left_out]
    return {
        "throughput": _error(found.throughput / measured for measured, found in pairs),
        "inside": float(
            np.mean([found.low <= measured <= found.high for measured, found in pairs])
        ),
        "width": _median(found.high / found.low for _, found in pairs if found.low),
    }


def error_lines(summary: JsonObject) -> list[str]:
    """Return the figures of `errors` in words, one sentence a line."""
    failures = summary["failures"]
    invented = summary["invented"]
    names = f"{len(invented)} ({', '.join(invented)})" if invented else "none"
    predicted = f"{failures['predicted']} of {failures['measured']} predicted"
    return [
        f"{summary['points']} points; "
        f"median error of total token throughput {_percent(summary['throughput'])}",
        *(
            f"with its {kind} left out: {_percent(one['throughput'])}, "
            f"inside the 90 % interval {_percent(one['inside'])}, {one['width'] or math.inf:.1f} wide"
            for kind, one in summary["left_out"].items()
        ),
        *(f"median error of mean {name}: {_percent(e)}" for name, e in summary["times"].items()),
        *(
            f"mean TTFT of {engine}: {bias:.2f} of the measured (median)"
            for engine, bias in summary["ttft_bias"].items()
            if bias is not None
        ),
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

Ranked = tuple[str, Predictions]
"""Name of a load, and its points."""


def rankings(predictions: Predictions) -> dict[str, list[Json]]:
    """Compare orders at one load (model, node, workload); configurations that did not start have no
    rank.

    ``rankings`` has the rank correlation of an engine or of all, None where there is no order;
    ``best_engine`` the best one as measured and as predicted.
    """
    # Takes a second to import, which bad input need not wait for.
    from scipy.stats import spearmanr

    at_one_load: dict[tuple[Hashable, ...], list[Predicted]] = defaultdict(list)
    for predicted in predictions:
        point = predicted.point
        if point.failure is None and point.weight >= _LEAST_WEIGHT:
            load = (point.model.id, point.gpu, point.resolved.context.gpus, point.workload.name)
            at_one_load[load].append(predicted)
    of_all: list[Ranked] = []
    of_one: list[Ranked] = []
    best = []
    for members in at_one_load.values():
        point = members[0].point
        node = f"{point.resolved.context.gpus}×{point.gpu}"
        name = f"{model_name(point.model)} {node} {point.workload.name}"
        engines = dict.fromkeys(one.point.engine for one in members)
        if len(engines) > 1:
            of_all.append((f"all engines, {name}", members))
            measured_best = max(members, key=attrgetter("measured")).point.engine
            predicted_best = max(members, key=attrgetter("throughput")).point.engine
            best.append({"name": name, "measured": measured_best, "predicted": predicted_best})
        for engine in engines:
            own = [one for one in members if one.point.engine == engine]
            of_one.append((f"{engine} {name}", own))
    ranked: list[Json] = []
    for name, ordered in of_all + of_one:
        if len(ordered) < _LEAST:
            continue
        measured = [one.measured for one in ordered]
        expected = [one.throughput for one in ordered]
        # Equal figures have no order.
        alike = 1 in (len(set(measured)), len(set(expected)))
        spearman = None if alike else float(spearmanr(measured, expected).statistic)
        ranked.append({"name": name, "points": len(ordered), "spearman": spearman})
    return {"rankings": ranked, "best_engine": best}


def ranking_lines(order: Mapping[str, Sequence[JsonObject]]) -> list[str]:
    """Return the orders of `rankings` in words, one sentence a line."""
    lines = [
        f"rank correlation (Spearman), {one['name']}, {one['points']} points: "
        + ("no order" if one["spearman"] is None else f"{one['spearman']:.2f}")
        for one in order["rankings"]
    ]
    for best in order["best_engine"]:
        measured = best["measured"]
        predicted = best["predicted"]
        verdict = "right" if measured == predicted else f"wrong: {predicted} is predicted"
        lines.append(f"best engine, {best['name']}: {measured} measured, {verdict}")
    return lines
