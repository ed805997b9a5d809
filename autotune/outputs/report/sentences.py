"""The conclusion in sentences, for the terminal and for the report."""

from functools import partial

from autotune.base import BadInput, Evidence, Interval
from autotune.load.capacity.goal import carried, shape_carried
from autotune.load.metrics import readable
from autotune.load.metrics.formulas import SHORT_S, Slo
from autotune.load.metrics.table import VIOLATIONS, Metrics, title_of
from autotune.load.workloads import how_fixed, load_workload
from autotune.tuner.study.recommendation import Contribution, Objective, Recommendation
from autotune.tuner.trial import named

from .templates import templates_of, write

_SENTENCES = templates_of("sentences.yaml")


def said(name: str, outcome: Recommendation, **known: object) -> str:
    """Return what a template of ``sentences.yaml`` makes of a recommendation; empty where it does
    not apply."""
    choice = outcome.recommended
    return write(
        _SENTENCES[name],
        outcome=outcome,
        choice=choice,
        baseline=outcome.baseline,
        metric=choice.objective.metric if choice else "",
        main=_of_objective(outcome),
        carried=carried,
        shape_carried=shape_carried,
        named=named,
        on_a_node=on_a_node,
        score=score,
        said=partial(said, outcome=outcome),
        unsearched=_unsearched,
        excess=lambda miss: readable.beyond(Slo.parse(miss.slo).excess(miss.value)),
        short_s=SHORT_S,
        violations=VIOLATIONS,
        **known,
    )


def lines(name: str, outcome: Recommendation, **known: object) -> list[str]:
    """Return the lines of a template, or of a list of templates; no claim exceeds the evidence."""
    templates = _SENTENCES[name]
    names = templates if isinstance(templates, list) else [name]
    texts = (said(one, outcome, **known) for one in names)
    return [line for text in texts for line in text.split("\n") if line]


brief = partial(lines, "brief")
paragraphs = partial(lines, "paragraphs")


def score(kind: str, value: float | None, interval: Interval | None = None) -> str:
    """Return a score of a check of answers, with its interval; in percent except for a
    command's."""
    if value is None:
        return "–"
    unit = "" if kind == "command" else " %"
    within = f" ({readable.interval(interval)}{unit})" if interval else ""
    return f"{readable.number(value)}{unit}{within}"


def _of_objective(outcome: Recommendation) -> Metrics:
    """Return the metrics of the recommended command under the objective's workload."""
    if not outcome.recommended:
        return {}
    row = outcome.workloads.get(outcome.recommended.objective.workload)
    return (row and row.recommended) or {}


def _unsearched(outcome: Recommendation) -> int:
    """Return the prompts of a load that is sent at once, and could be searched; 0 for others."""
    try:
        workload = load_workload(next(iter(outcome.workloads)))
    except (BadInput, StopIteration):  # a file that is gone, or a load without a name of ours
        return 0
    fixed = how_fixed(workload) or outcome.origin is Evidence.REPLAYED
    return 0 if fixed else workload.points[0].prompts


def on_a_node(goal: Objective) -> str:
    """Return the interval of a predicted objective on a real node; empty if none."""
    ends = goal.interval90_on_a_node
    return f"{readable.interval(ends)} {title_of(goal.metric)[1]}".rstrip() if ends else ""


def added(row: Contribution, metric: str) -> str:
    """Say what a setting adds to the recommended command: gain, interval and odds."""
    return write(_SENTENCES["added"], row=row, metric=metric)
