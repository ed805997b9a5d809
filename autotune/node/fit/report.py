"""Compare measured with predicted values: a line per point, prediction errors, and rank
correlations."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter

import numpy as np

from autotune.base import Json

from ..resolve_command import ResolvedCommand
from .calibrate import Predicted
from .reading import model_name

Predictions = Sequence[Predicted]
_SIZES = {
    "tensor_parallel": "TP",
    "data_parallel": "DP",
    "expert_parallel": "EP",
    "pipeline_parallel": "PP",
}
_TIMES = {"TTFT": "mean_ttft_ms", "TPOT": "mean_tpot_ms"}


def _kinds(predictions: Predictions) -> list[str]:
    return list(dict.fromkeys(kind for one in predictions for kind in one.left_out))


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
