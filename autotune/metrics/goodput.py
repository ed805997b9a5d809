"""Limits that a single request keeps to count as good: ``--goodput 'ttft:2000 tpot:50'``, the form of vLLM's bench."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotune.errors import BadInput
from autotune.metrics.formulas import Slo
from autotune.metrics.table import VIOLATIONS

LATENCIES = ("ttft", "tpot", "e2el")
"""What a request has one of."""

MOST_VIOLATIONS = Slo(metric=VIOLATIONS, sense="<=", limit=55)
"""A study of goodput ends where this limit is out of reach (`autotune.search.reach`): at most 17 % of the requests were
good in each launch, and at most 28 % are foreseen to be of any configuration. A gain then says little.

So V3.2's burst ends with 2 s and 100 ms a request (27 % foreseen, 11 % measured), and a burst of 256 that comes from 21
to 34 % goes on. The limit is on what is not good, as that is foreseen better: 99.0 for 99.4 %, not 1.0 for 0.6 %."""

_FORM = "write latency:ms, …, e.g. 'ttft:2000 tpot:50'; the latencies are ttft, tpot and e2el, the limits milliseconds"


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Latency to its limit in ms, from one text or several; raises `BadInput` on anything else."""
    limits: dict[str, float] = {}
    for word in (word for text in texts for word in text.split() or [text]):
        name, colon, number = word.partition(":")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not colon or name not in LATENCIES or math.isnan(limit):
            raise BadInput(f"--goodput {word!r}: {_FORM}")
        if not (limit > 0 and math.isfinite(limit)):
            raise BadInput(f"--goodput {word!r}: the limit must be a number above 0")
        if limits.get(name, limit) != limit:
            raise BadInput(f"--goodput: {name} has two limits, {limits[name]:g} and {limit:g} ms; give it one")
        limits[name] = limit
    return limits


def goodput_limits(limits: Mapping[str, float]) -> tuple[Slo, ...]:
    """Limits as `autotune.metrics.formulas.summarize` takes them."""
    return tuple(Slo(metric=f"{name}_ms", sense="<=", limit=limit) for name, limit in limits.items())
