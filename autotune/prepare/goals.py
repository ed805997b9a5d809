"""Check the objective and its weights, the second objective, and the SLOs.

An objective's metric must change with the speed of the node, so that a gain in percent means something; an SLO may be
on any metric. SLOs and the second objective are about the first workload.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from autotune.errors import BadInput, UnknownName
from autotune.metrics.formulas import METRICS, Slo, check_metric
from autotune.study.options import RunOptions

_WEIGHT = re.compile(r"\s*(?P<workload>.+?)\s*=(?P<weight>[^,=]*)(?:,|$)")
_FORM = "write workload=weight,… with numbers above 0, e.g. sharegpt=2,long=1"


@dataclass(frozen=True, slots=True)
class Goals:
    """The fields of `autotune.study.spec.StudySpec` of these names."""

    objective: str
    weights: dict[str, float]
    pareto: str | None
    slos: tuple[Slo, ...]
    notes: tuple[str, ...]


def goals_of(options: RunOptions, workloads: Sequence[str]) -> Goals:
    """Parse the goals; raises `BadInput` for unknown metrics and for options that contradict each other."""
    objective = _goal(options.objective, "objective")
    weights = _weights(options.weights, workloads)
    pareto = None if options.pareto is None else _goal(options.pareto, "--pareto")
    if pareto == objective:
        raise BadInput(
            f"--pareto {pareto} and --objective {objective}: a front needs two metrics, e.g. --pareto p99_ttft_ms"
        )
    notes: tuple[str, ...] = ()
    if pareto is not None and options.sampler != "gp":
        alone = f"--sampler {options.sampler} looks for the objective alone"
        notes = (f"{alone}: the front against {pareto} is that of what it came upon; gp looks for the front",)
    return Goals(objective, weights, pareto, slos_of(options.slos), notes)


def slos_of(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Parse the SLOs, each once; raises `BadInput` for one, or two together, that nothing can keep."""
    slos = tuple(dict.fromkeys(Slo.parse(text) for text in texts))
    for slo in slos:
        check_metric(slo.metric, "SLO metric")
        if slo.sense == "<=" and slo.limit < 0:
            raise BadInput(f"--slo '{slo}': no metric is ever below 0; the limit must be a number of at least 0")
    for one, other in itertools.combinations(slos, 2):
        upper, lower = (one, other) if one.sense == "<=" else (other, one)
        if one.metric == other.metric and one.sense != other.sense and lower.limit > upper.limit:
            raise BadInput(
                f"--slo '{one}' and --slo '{other}' contradict each other: nothing is at most {upper.limit:g} and at "
                f"least {lower.limit:g}; leave one of them out"
            )
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
