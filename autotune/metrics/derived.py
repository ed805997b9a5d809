"""Metrics that follow from others: per GPU, per user, and in money.

With the GPUs of the server and the price of an hour of one of them:

- ``total_token_throughput_per_gpu``: total token throughput over the GPUs;
- ``output_tokens_per_s_per_user``: 1000 / mean TPOT in ms, the speed at which a user sees an answer written;
- ``request_violations_percent``: share of the requests that break a limit of the goodput, where any does;
- ``cost_per_million_tokens``: GPUs x price / 3600 / throughput x 1e6. Of total tokens, of input tokens
  (``cost_per_million_input_tokens``) and of output tokens (``cost_per_million_output_tokens``). Each is the whole bill
  over those tokens alone, so that the two parts do not add up to the first: no figure says how a node's time is to
  be divided between reading and writing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.errors import BadInput
from autotune.trial import Metrics

PER_GPU = "total_token_throughput_per_gpu"
PER_USER = "output_tokens_per_s_per_user"
COST = "cost_per_million_tokens"
COSTS = (COST, "cost_per_million_input_tokens", "cost_per_million_output_tokens")
DERIVED = (PER_GPU, PER_USER, *COSTS)
VIOLATIONS = "request_violations_percent"
"""No goal by itself: it is left out where no request breaks a limit, as it would be of a run without limits."""

CURVE = "curve"
"""The key among a workload's metrics of what was measured at other loads: a list of flat rows."""

INVALID = "invalid"
"""The key in a row of a curve that was not measured as it should be: why its figures do not count."""


def counts(row: Mapping[str, Any]) -> bool:
    """Whether the figures of a row of a curve count."""
    return not row.get(INVALID) and not row.get("client_bound")


def with_derived(metrics: Mapping[str, Any], gpus: int | None, price: float | None = None) -> Metrics:
    """Metrics of one load with those that follow from them, the rows of its curve too.

    What was recorded stays, but for costs where a price is given. A metric that cannot be told is left out.

    Args:
        gpus: those of the server; None: not known.
        price: of one GPU for an hour, in any currency.
    """
    speeds = dict(_speeds(metrics, gpus))
    costs = dict(_costs(metrics, gpus, price)) if gpus is not None and price is not None else {}
    derived = {**speeds, **metrics, **costs}
    if isinstance(rows := metrics.get(CURVE), list):
        derived[CURVE] = [with_derived(row, gpus, price) for row in rows]
    return derived


def _speeds(metrics: Mapping[str, Any], gpus: int | None) -> Iterator[tuple[str, float]]:
    total, tpot_ms = _positive(metrics.get("total_token_throughput")), _positive(metrics.get("mean_tpot_ms"))
    if total and gpus:
        yield PER_GPU, total / gpus
    if tpot_ms:
        yield PER_USER, 1e3 / tpot_ms
    done, good = _positive(metrics.get("request_throughput")), metrics.get("request_goodput")
    if good is not None and _positive(good) < done:
        yield VIOLATIONS, 100 * (1 - _positive(good) / done)


def _costs(metrics: Mapping[str, Any], gpus: int, price: float) -> Iterator[tuple[str, float]]:
    total, output = _positive(metrics.get("total_token_throughput")), _positive(metrics.get("output_throughput"))
    rates = (total, total - output if output else 0.0, output)
    for name, tokens_per_s in zip(COSTS, rates, strict=True):
        if tokens_per_s > 0:
            yield name, gpus * price / 3600 / tokens_per_s * 1e6


def _positive(value: object) -> float:
    """A figure that may be divided by; 0 where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value < math.inf else 0.0


def check_price(price: float | None, option: str = "--gpu-hour-price") -> float | None:
    """Return a price; raise `BadInput` unless it is a number above 0."""
    if price is not None and not (price > 0 and math.isfinite(price)):
        raise BadInput(f"{option} {price:g}: the price of one GPU for an hour is a number above 0, e.g. 3.20")
    return price
