"""Check the objective and its weights, the second objective, and the SLOs.

An objective's metric must change with the speed of the node, so that a gain in percent means something; an SLO may be
on any metric. SLOs and the second objective are about the first workload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from autotune.errors import BadInput, UnknownName
from autotune.metrics.formulas import Slo, parse_goodput
from autotune.metrics.table import GOODPUT, METRICS, PER_USER, check_metric, check_price
from autotune.study.options import RunOptions
from autotune.study.spec import EngineChoice, InstalledEngine
from autotune.trial import Scalar

_WEIGHT = re.compile(r"\s*(?P<workload>.+?)\s*=(?P<weight>[^,=]*)(?:,|$)")
_CONCURRENCY = re.compile(r"[1-9]\d{0,5}")
DEFAULT_LADDER = (1, 4, 16, 64, 256)
"""Where the front is over the loads of a ladder and none was given."""
CAPACITY = "capacity_total_token_throughput"
"""The objective where every server is loaded to its capacity."""
_FORM = "write workload=weight,… with numbers above 0, e.g. sharegpt=2,long=1"


class Asked(TypedDict):
    """The fields of `autotune.study.spec.StudySpec` of these names: where trials run, and what is launched."""

    on: str
    engines: tuple[EngineChoice, ...]
    workloads: tuple[str, ...]
    baseline: str | None
    pins: dict[str, Scalar]
    table_sha256: NotRequired[str]
    recipe: NotRequired[str | None]
    baseline_files: NotRequired[dict[str, str]]
    engine_args: NotRequired[dict[str, str]]
    installed: NotRequired[dict[str, InstalledEngine]]
    calibration: NotRequired[dict[str, Any] | None]
    images: NotRequired[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Goals:
    """The fields of `autotune.study.spec.StudySpec` of these names."""

    objective: str
    weights: dict[str, float]
    pareto: str | None
    slos: tuple[Slo, ...]
    goodput: dict[str, float]
    ladder: tuple[int, ...]
    gpu_hour_price: float | None
    notes: tuple[str, ...]


def goals_of(options: RunOptions, workloads: Sequence[str]) -> Goals:
    """Parse the goals; raises `BadInput` for unknown metrics and for options that contradict each other."""
    usual = "total_token_throughput" if options.find_load is None else CAPACITY
    objective = _goal(options.objective or usual, "objective")
    weights = _weights(options.weights, workloads)
    pareto = None if options.pareto is None else _goal(options.pareto, "--pareto")
    if pareto == objective:
        raise BadInput(
            f"--pareto {pareto} and --objective {objective}: a front needs two metrics, e.g. --pareto p99_ttft_ms"
        )
    notes: list[str] = []
    if pareto is not None and options.sampler != "gp":
        alone = f"--sampler {options.sampler} looks for the objective alone"
        notes.append(f"{alone}: the front against {pareto} is that of what it came upon; gp looks for the front")
    slos, goodput, price = slos_of(options.slos), parse_goodput(options.goodput), check_price(options.gpu_hour_price)
    _check_money(objective, pareto, slos, price)
    _check_find_load(options, (objective, pareto, *(slo.metric for slo in slos)), weights)
    if objective == GOODPUT and not goodput and not any(slo.metric.endswith("_ms") for slo in slos):
        notes.append(f"without --goodput every request counts in {GOODPUT}; e.g. --goodput 'ttft:2000 tpot:50'")
    # A load search has a curve of its own.
    usual_ladder = DEFAULT_LADDER if pareto == PER_USER and options.find_load is None else ()
    ladder = usual_ladder if options.ladder is None else _ladder(options.ladder)
    return Goals(objective, weights, pareto, slos, goodput, ladder, price, tuple(notes))


def _check_money(objective: str, pareto: str | None, slos: Sequence[Slo], price: float | None) -> None:
    """Raise `BadInput` for a cost that nobody can tell."""
    asked = [("--objective", objective), ("--pareto", pareto), *(("--slo", slo.metric) for slo in slos)]
    for option, metric in asked if price is None else ():
        if metric and METRICS[metric].needs == "--gpu-hour-price":
            raise BadInput(f"{option} {metric}: no cost can be told without a price; add --gpu-hour-price, e.g. 3.20")


def _ladder(text: str | None) -> tuple[int, ...]:
    """Concurrencies, the lightest first; raises `BadInput` for anything else."""
    words = [] if text is None else text.split(",")
    if not all(_CONCURRENCY.fullmatch(word.strip()) for word in words):
        raise BadInput(f"--ladder {text!r}: write concurrencies, whole numbers of at least 1, e.g. 1,4,16,64,256")
    return tuple(sorted({int(word) for word in words}))


def _check_find_load(options: RunOptions, metrics: Sequence[str | None], weights: Mapping[str, float]) -> None:
    """Raise `BadInput` for a capacity that is not searched for, or one of several workloads."""
    for metric in metrics:
        option, _, by = METRICS[metric].needs.partition(" ") if metric else ("", "", "")
        if option == "--find-load" and (options.find_load is None or by not in ("", options.find_load)):
            raise BadInput(f"{metric} is measured with --find-load {by or 'concurrency or rate'}: ask for that too")
    if options.find_load is not None and options.ladder is not None:
        raise BadInput("--ladder: the load search has a curve of its own; leave out --ladder or --find-load")
    if options.find_load is not None and weights:
        raise BadInput("--weights: the load search is of one workload, the first; leave out --weights or --find-load")


def slos_of(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Parse the SLOs, each once; raises `BadInput` for one that nothing can keep, or that asks for worse."""
    slos = tuple(dict.fromkeys(Slo.parse(text) for text in texts))
    for slo in slos:
        check_metric(slo.metric, "SLO metric")
        right = ">=" if METRICS[slo.metric].maximise else "<="
        if slo.sense != right:
            better = "more" if right == ">=" else "less"
            raise BadInput(
                f"--slo '{slo}': of {slo.metric} {better} is better; write '{slo.metric}{right}{slo.limit:g}'"
            )
        if right == "<=" and slo.limit < 0:
            raise BadInput(f"--slo '{slo}': no metric is ever below 0; the limit must be a number of at least 0")
    return slos


def _goal(name: str, what: str) -> str:
    goals = [metric for metric, formula in METRICS.items() if formula.time_power != 0]
    return check_metric(name, f"{what} metric", goals)


def _weights(text: str | None, workloads: Sequence[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    rest = text or ""
    while rest:
        match = _WEIGHT.match(rest)
        if match is None:
            raise BadInput(f"--weights {text!r}: {rest!r} has no weight; {_FORM}")
        name, weight = match["workload"], math.nan
        with suppress(ValueError):
            weight = float(match["weight"])
        if name not in workloads:
            raise UnknownName("workload in --weights", name, workloads, "Each must also be given by --workload.")
        if name in weights:
            raise BadInput(f"--weights {text!r}: {name!r} has two weights; give it one")
        if not (weight > 0 and math.isfinite(weight)):
            raise BadInput(f"--weights {text!r}: {match['weight'].strip()!r} is no weight for {name!r}; {_FORM}")
        weights[name] = weight
        rest = rest[match.end() :]
    if text is not None and not weights:
        raise BadInput(f"--weights {text!r}: {_FORM}")
    return {name: weights[name] for name in workloads if name in weights}
