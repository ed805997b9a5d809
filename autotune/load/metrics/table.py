"""Table of metrics: name, title, unit, direction, scaling, derivation, and places of display.

A new metric is one row of ``metrics.yaml``. A client's counts are summed up in
`autotune.load.metrics.formulas`; those with a formula follow from other metrics. Names and
definitions are those of ``vllm bench serve --save-result`` where it has one
(https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeGuard

from autotune.base import BadInput, Json, JsonObject, Strings, UnknownName, beside, frozen
from autotune.engines.entry import parse_yaml
from autotune.engines.expression import evaluate

Metrics = Json
"""Metrics of one workload under the names of `autotune.load.metrics.formulas`."""

HEADLINE = "total_token_throughput"
"""The default objective, and the metric with the best known prediction error."""
STEADY = "steady_total_token_throughput"
GOODPUT = "request_goodput"
PER_GPU = "total_token_throughput_per_gpu"
PER_USER = "output_tokens_per_s_per_user"
VIOLATIONS = "request_violations_percent"

ENERGY = ("energy_joules_per_output_token", "mean_power_w", "tokens_per_joule")
"""Metrics available if a node's drivers report the energy of its GPUs."""

CURVE = "curve"
"""Key, among a workload's metrics, of the metrics at other loads: a list of flat rows."""
INVALID = "invalid"
"""Key, in a row of a curve, of the reason for an invalid measurement."""

Place = Literal["report", "mlflow", "bench", "capacity"]
"""Default places of display: in reports and MLflow for every workload (``report``), in MLflow for
the objective's workload alone (``mlflow``), behind vLLM's figures in the table of ``autotune
bench``, and there after a load search (``capacity``)."""


@frozen
class Rent:
    """GPUs of a server, and the hourly price of one, in any currency; None if unknown."""

    gpus: int | None = None
    gpu_hour_price: float | None = None

    @classmethod
    def checked(cls, gpus: int | None, gpu_hour_price: float | None) -> Rent:
        """Return the rent of this number of GPUs; raises `BadInput` for an invalid price, or one
        without GPUs."""
        if gpu_hour_price is None:
            return cls(gpus)
        if not 0 < gpu_hour_price < math.inf:
            raise BadInput(
                f"--gpu-hour-price {gpu_hour_price:g}: the price of one GPU for an hour is a number above 0, e.g. 3.20"
            )
        if gpus is None:
            raise BadInput(
                "--gpu-hour-price needs the number of GPUs that serve: add --gpus, e.g. --gpus 8"
            )
        return cls(gpus, gpu_hour_price)

    def break_even(self, gain: float) -> float | None:
        """Return the hourly price at which a GPU that carries `gain` times as much costs the same a
        token."""
        return None if self.gpu_hour_price is None else self.gpu_hour_price * gain

    def __str__(self) -> str:
        if self.gpu_hour_price is None:
            return "no price given"
        return f"{self.gpu_hour_price:.2f} a GPU hour"

    def derived(self, metrics: JsonObject) -> Metrics:
        """Add derived metrics to the metrics of one load, and to the rows of its curve.

        Recorded values stay, except costs with a price given. A metric without its inputs is left
        out.
        """
        known = {**metrics, "gpus": self.gpus, "gpu_hour_price": self.gpu_hour_price}
        scope = {
            n: value for n, value in known.items() if is_number(value) and 0 <= value < math.inf
        }
        derived = dict(metrics)
        for name, formula in DERIVED.items():
            if name in metrics and name not in COSTS:
                continue
            with suppress(NameError, ZeroDivisionError):
                if (value := evaluate(formula, scope)) > 0:
                    derived[name] = value
        if isinstance(rows := metrics.get(CURVE), list):
            derived[CURVE] = [self.derived(row) for row in rows]
        return derived


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Metric(NamedTuple):
    """A row of the table.

    Attributes:
        title: for tables and sentences.
        maximise: True if more of it is better.
        time_power: scaling with a node that is faster by a factor f: the metric is multiplied by f
            ** time_power. An objective scales (`time_power` is not 0).
        is_work: True if a gain in it is a gain in work per hour.
        may_be_zero: True if 0 is a possible measurement.
        less: says by how much less of it there is, where less is better.
        needs: the option without which it is not measured.
        shown: places that show it unasked.
        predicted_as: the predicted metric that orders candidates alike, where it is not predicted
            itself.
        formula: of one that follows from others.
    """

    name: str
    title: str
    unit: str = ""
    maximise: bool = True
    time_power: int = 0
    is_work: bool = False
    may_be_zero: bool = False
    less: str = ""
    needs: Literal[
        "", "--gpu-hour-price", "--find-load", "--find-load concurrency", "--find-load rate"
    ] = ""
    shown: Sequence[Place] = ()
    predicted_as: str = ""
    formula: str = ""


_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "end-to-end latency"}


def _words(name: str) -> tuple[str, str]:
    """Return title and unit by a metric's name: ``p99_ttft_ms`` is ``P99 TTFT`` in ms."""
    shown = " ".join(_WORDS.get(word, word) for word in name.removesuffix("_ms").split("_"))
    return shown[:1].upper() + shown[1:], "ms" if name.endswith("_ms") else ""


_ROWS = parse_yaml(beside(__file__, "metrics.yaml"))
TABLE = {row["name"]: Metric(**row) for row in _ROWS["metrics"]}
"""Every metric."""
DERIVED = {name: row.formula for name, row in TABLE.items() if row.formula}
"""Formulas of the metrics that follow from others. A missing input, a division by 0 or a result
that is not above 0 leaves the metric out.

Each cost is the whole bill over some of the tokens, so that the parts do not add up to the whole:
no figure says how a node's time is divided between prefill and decode.
"""

METRICS = {name: row for name, row in TABLE.items() if name != VIOLATIONS}
"""Metrics that an objective or an SLO may name. Violations are missing if every request meets the
limits."""
COSTS = tuple(name for name, row in METRICS.items() if row.needs == "--gpu-hour-price")


def shown_in(place: Place) -> Strings:
    """Return the names of the metrics of a place of display, in the table's order."""
    return tuple(name for name, row in TABLE.items() if place in row.shown)


def scaled(metrics: Mapping[str, object], factor: float) -> Metrics:
    """Scale metrics to a node faster by a factor: rates multiplied, times divided; of a curve each
    row."""
    result = dict(metrics)
    for name, value in metrics.items():
        if name == CURVE and isinstance(value, list):
            result[name] = [scaled(row, factor) for row in value]
        elif name in METRICS and is_number(value):
            result[name] = value * factor ** METRICS[name].time_power
    return result


def curve_of(metrics: JsonObject) -> Sequence[Metrics]:
    """Return the rows of a workload's curve, which a ladder or a load search measured."""
    return metrics.get(CURVE) or ()


def is_valid_row(row: JsonObject) -> bool:
    """Return whether a row of a curve is a valid measurement."""
    return not row.get(INVALID) and not row.get("client_bound")


def title_of(name: str) -> tuple[str, str]:
    """Return title and unit of a metric, also of one without a row."""
    row = TABLE.get(name)
    return (row.title, row.unit) if row is not None else _words(name)


def check_metric(text: str, what: str = "metric", known: Collection[str] = METRICS) -> str:
    """Return the known metric for a name, as in `metric_meant`; raises `UnknownName` otherwise."""
    name = metric_meant(text, known)
    if name not in known:
        usual = [one for one in _ROWS["usual"] if one in known]
        raise UnknownName(what, text, known, meant=_with_words(text, known), usual=usual)
    return name


def metric_meant(text: str, known: Collection[str] = METRICS) -> str:
    """Return the only metric with the words of a text, or words that start with them
    (``p99-ttft``); else the text."""
    meant = [text] if text in known else _with_words(text, known)
    return meant[0] if len(meant) == 1 else text


def _with_words(text: str, known: Collection[str]) -> list[str]:
    words = [word for word in text.strip().lower().replace("-", "_").split("_") if word]

    def has(metric: str, word: str) -> bool:
        return any(part.startswith(word) for part in metric.split("_"))

    asked = any(word.startswith("cap") for word in words)
    named = [metric for metric in known if asked or not metric.startswith("capacity_")]
    return [metric for metric in named if words and all(has(metric, word) for word in words)]
