"""Check the objective and its weights, the second objective, and the SLOs.

An objective's metric must change with the speed of the node, so that a gain in percent means
something; an SLO may be on any metric. SLOs and the second objective are about the first workload.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress

from autotune.base import BadInput, FloatDict, UnknownName
from autotune.load.metrics.formulas import parse_goodput, slos_of
from autotune.load.metrics.table import COSTS, GOODPUT, METRICS, Rent, check_metric

from .options import RunOptions
from .spec import StudySpec

_WEIGHT = re.compile(r"\s*(?P<workload>.+?)\s*=(?P<weight>[^,=]*)(?:,|$)")
_FORM = "write workload=weight,… with numbers above 0, e.g. sharegpt=2,long=1"


def with_goals(spec: StudySpec, options: RunOptions) -> StudySpec:
    """Return a study with the typed goals; otherwise with its own goals, checked in the same way.

    Raises `BadInput` for unknown metrics and for options that contradict each other.
    """
    notes = []
    pareto = spec.pareto if options.pareto is None else options.pareto
    weights = options.weights
    if weights is None and spec.weights:
        weights = ",".join(f"{name}={weight!r}" for name, weight in spec.weights.items())
    limits = [f"{name}:{limit!r}" for name, limit in spec.goodput.items()]
    price = spec.gpu_hour_price if options.gpu_hour_price is None else options.gpu_hour_price
    asked = spec.with_fields(
        objective=_goal(options.objective or spec.objective, "objective"),
        weights=_weights(weights, spec.workloads),
        pareto=None if pareto is None else _goal(pareto, "--pareto"),
        slos=slos_of(options.slos or list(map(str, spec.slos))),
        goodput=parse_goodput(options.goodput or limits),
        gpu_hour_price=price,
    )
    if asked.pareto == asked.objective:
        raise BadInput(
            f"--pareto {asked.pareto} and --objective {asked.objective}: a front needs two "
            "metrics, e.g. --pareto p99_ttft_ms"
        )
    if asked.pareto is not None and options.sampler != "gp":
        notes.append(
            f"--sampler {options.sampler} optimises only the objective: the front against "
            f"{asked.pareto} is that of its launches; gp searches for the front"
        )
    _check_needs(asked)
    if (
        asked.objective == GOODPUT
        and not asked.goodput
        and not any(slo.metric.endswith("_ms") for slo in asked.slos)
    ):
        notes.append(
            f"{GOODPUT} counts every request without --goodput; e.g. --goodput 'ttft:2000 tpot:50'"
        )
    return asked.with_fields(notes=(*notes, *spec.notes))


def _check_needs(spec: StudySpec) -> None:
    """Raise `BadInput` for a cost without a price, or a capacity without a load search."""
    Rent.checked(spec.gpus, spec.gpu_hour_price)
    for option, metric in spec.asked_metrics.items():
        needs = METRICS[metric].needs
        if not spec.lacks(needs):
            continue
        if metric in COSTS:
            flag = option.partition(" ")[0]
            raise BadInput(
                f"{flag} {metric}: a cost needs a price; add --gpu-hour-price, e.g. 3.20"
            )
        by = "" if " " in needs else " concurrency or rate"
        raise BadInput(f"{metric} needs {needs}{by}: add that option")


def _goal(name: str, what: str) -> str:
    goals = [metric for metric, formula in METRICS.items() if formula.time_power != 0]
    return check_metric(name, f"{what} metric", goals)


def _weights(text: str | None, workloads: Sequence[str]) -> FloatDict:
    weights = {}
    rest = text or ""
    while rest:
        match = _WEIGHT.match(rest)
        if match is None:
            raise BadInput(f"--weights {text!r}: {rest!r} has no weight; {_FORM}")
        name = match["workload"]
        weight = math.nan
        with suppress(ValueError):
            weight = float(match["weight"])
        if name not in workloads:
            raise UnknownName(
                "workload in --weights", name, workloads, "Each must also be given by --workload."
            )
        if name in weights:
            raise BadInput(f"--weights {text!r}: {name!r} has two weights; give it one")
        if not (weight > 0 and math.isfinite(weight)):
            raise BadInput(
                f"--weights {text!r}: {match['weight'].strip()!r} is not a weight for {name!r}; {_FORM}"
            )
        weights[name] = weight
        rest = rest[match.end() :]
    if text is not None and not weights:
        raise BadInput(f"--weights {text!r}: {_FORM}")
    return {name: weights[name] for name in workloads if name in weights}
