"""Tags, metrics and curves of launches and studies, as plain values; `runs` writes them to
MLflow."""

import json
import math
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune.base import FloatDict, Json, JsonObject, StringDict, beside, redact
from autotune.engines.entry import parse_yaml
from autotune.load.metrics.table import PER_USER, Metrics, is_valid_row, shown_in
from autotune.tuner.search.decide.verdict import best_so_far
from autotune.tuner.search.objective import maximises, on_workloads, scores_of
from autotune.tuner.study.recommendation import SERVED, Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch

from ..report.render import PICTURES
from ..report.templates import write

TEXT_LENGTH = 5000
"""Longest value of a tag or param; MLflow 3.17 takes 8000 and 6000 characters."""

OBJECTIVE = "objective"
"""Metric of every run that holds the objective's value, for every objective."""

_TAGS = parse_yaml(beside(__file__, "tags.yaml"))
_NAME_CHARACTERS = re.compile(r"[^\w.\- :]")


def metric_name(text: str) -> str:
    """Return a name for a metric or param with the characters that MLflow accepts.

    MLflow reads a name as a path and refuses one that would resolve to another: no "/", no leading
    dot.
    """
    name = _NAME_CHARACTERS.sub("_", text)[:250]
    return name if name and not name.startswith(".") else f"_{name}"


def experiment_name(spec: StudySpec) -> str:
    """Name the experiment of a model and its hardware, e.g. ``deepseek-ai/DeepSeek-V3.2 on
    8xh200``."""
    return f"{spec.model.id} on {spec.gpus}x{spec.hardware.name}"


def _numbers(values: JsonObject) -> FloatDict:
    """Return the finite numbers of a mapping; MLflow metrics hold no others."""
    numbers = ((name, value) for name, value in values.items() if isinstance(value, int | float))
    return {name: float(value) for name, value in numbers if math.isfinite(value)}


def goal_of(spec: StudySpec) -> str:
    """Return one quantity under one workload, by which runs can be sorted: ``total_token_throughput
    on sharegpt``."""
    return f"{spec.objective} on {on_workloads(spec)}".replace("'", "")[:TEXT_LENGTH]


def _figures(
    spec: StudySpec, metrics: Metrics | None, prefix: str, more: Sequence[str] = ()
) -> FloatDict:
    """Return the metrics of one load in the report, in the study's goals and limits, and others
    with their prefix."""
    names = (*shown_in("report"), *more, *spec.asked_metrics.values())
    return _numbers({f"{prefix}{name}": (metrics or {}).get(name) for name in names})


class Point(NamedTuple):
    """A metric's value at a step; its time is the measurement's, so that a repeated send is
    identical."""

    name: str
    value: float
    step: int
    at_ms: int


def launch_points(
    spec: StudySpec, launch: Launch, baseline: Launch | None, start_ms: int
) -> list[Point]:
    """Return a launch's main numbers: the objective also as `OBJECTIVE`, and its gain over a
    baseline launch.

    Figures at other loads follow; their step is the concurrency, else the requests per minute.
    """
    result = launch.result
    scores = scores_of(spec, result)
    metrics: Json = dict.fromkeys((OBJECTIVE, spec.objective), scores.value)
    mine = scores.score
    base = scores_of(spec, baseline.result).score if baseline else None
    if mine is not None and base is not None:
        metrics["gain_percent"] = 100 * math.expm1(mine - base)
    for workload, values in result.metrics.items():
        more = shown_in("mlflow") if workload == spec.workloads[0] else ()
        metrics |= _figures(spec, values, f"{workload}.", more)
    metrics |= {name: getattr(result, name) for name in SERVED}
    metrics |= {f"time_s.{phase}": seconds for phase, seconds in result.times_s.items()}
    # The time stamp is the launch's own, so that writing a metric again does not add a second
    # point.
    points = [Point(name, value, 0, start_ms) for name, value in _numbers(metrics).items()]
    workload, (_, ends) = spec.workloads[0], span_ms(result.began_s, result.seconds)
    for row in filter(is_valid_row, result.curve(workload)):
        load = row["concurrency"] if "concurrency" in row else 60 * row["request_rate"]
        figures = _figures(spec, row, f"{workload}.curve.", (PER_USER,))
        points += [Point(name, value, round(load), ends) for name, value in figures.items()]
    return points


def progress_points(spec: StudySpec, launches: Iterable[Launch]) -> list[Point]:
    """Return the objective of each launch, given by number, and the best so far; the step is the
    launch's number."""
    rows = list(launches)
    results = {launch.number: launch.result for launch in rows}
    values = [(number, scores_of(spec, one).value) for number, one in results.items()]
    best = best_so_far(spec, rows)
    ends = {number: span_ms(one.began_s, one.seconds)[1] for number, one in results.items()}
    return [
        Point(name, value, number, ends[number])
        for name, points in (("launch_objective", values), ("best_so_far", best))
        for number, value in points
        if value is not None
    ]


def launch_tags(spec: StudySpec, launch: Launch) -> StringDict:
    """Return a launch's tags; ``verdict`` if it violates a limit, else `StudyRuns.finish` adds it
    at the end."""
    trial = launch.trial
    result = launch.result
    words = redact.argv(trial.command.words)
    settings = {} if trial.command.container else redact.env(trial.command.env)
    violations = scores_of(spec, result).violations
    return _tags(
        "launch",
        spec=spec,
        goal=goal_of(spec),
        trial=trial,
        result=result,
        command=" ".join([*(f"{k}={shlex.quote(v)}" for k, v in settings.items()), *words]),
        broken=[slo for slo, beyond in violations.items() if beyond > 0],
    )


def _tags(kind: str, **known: object) -> StringDict:
    tags = {name: write(text, **known)[:TEXT_LENGTH] for name, text in _TAGS[kind].items()}
    return {name: value for name, value in tags.items() if value}


def study_tags(spec: StudySpec) -> StringDict:
    """Return the tags of a new study; `outcome_tags` follow at its end."""
    return _tags("study", spec=spec, goal=goal_of(spec))


def study_params(spec: StudySpec) -> Json:
    """Return the settings of a study for its run's page."""
    names = ("objective", "baseline", "launches", "hours", "on", "executor", "sampler", "noise")
    return {
        **_tags("params", spec=spec),
        "pins": json.dumps(spec.pins),
        **{name: getattr(spec, name) for name in (*names, "seed", "gpus")},
    }


def outcome_metrics(spec: StudySpec, outcome: Recommendation) -> FloatDict:
    """Return the figures of a finished study."""
    figures: Json = {"gain_percent": outcome.gain_percent}
    for name in ("gain_ci95", "gain_interval90_on_a_node"):
        low, high = getattr(outcome, name) or (None, None)
        figures |= {f"{name}_low": low, f"{name}_high": high}
    names = ("search_gain_percent", "launches", "trials", "duration_s")
    figures |= {name: getattr(outcome, name) for name in names}
    if outcome.baseline:
        figures["baseline_objective"] = outcome.baseline.objective.value
    if outcome.recommended:
        goal = outcome.recommended.objective
        figures |= dict.fromkeys((OBJECTIVE, goal.metric), goal.value)
    for choice, prefix in ((outcome.recommended, ""), (outcome.baseline, "baseline_")):
        figures |= {f"{prefix}{name}": getattr(choice, name, None) for name in SERVED}
    for workload, both in outcome.workloads.items():
        figures |= _figures(spec, both.recommended, f"{workload}.")
        figures |= _figures(spec, both.baseline, f"baseline.{workload}.")
    for one in outcome.regressions:
        for row in one.commands:
            figures[f"regress.{one.to_version}.{row.role}.change_percent"] = row.change_percent
    return _numbers(figures)


def both_curves(outcome: Recommendation, at_ms: int) -> list[Point]:
    """Return the curves of the recommended command and of the baseline; the step is the
    concurrency."""
    if not outcome.curves:
        return []
    name = f"{outcome.curves.workload}.curve.{outcome.curves.metric}"
    return [
        Point(side, value, row.concurrency, at_ms)
        for row in outcome.curves.points
        for side, value in ((name, row.recommended), (f"baseline.{name}", row.baseline))
        if value is not None
    ]


def note(report: str, run_id: str) -> str:
    """Return the head of ``report.md`` for the run's page, without headings; links lead to its own
    pictures."""
    opening, *sections = report.split("\n## ")
    parts = [opening.partition("\n")[2], *(section.partition("\n")[2] for section in sections[:2])]
    link = f"](get-artifact?run_uuid={run_id}&path={PICTURES}%2F"
    return "\n".join(parts).strip().replace(f"]({PICTURES}/", link)[:TEXT_LENGTH]


def outcome_tags(outcome: Recommendation) -> StringDict:
    """Return the tags of a finished study."""
    regressions = {f"regress.{one.to_version}": one.verdict for one in outcome.regressions}
    return _tags("outcome", outcome=outcome, choice=outcome.recommended) | regressions


def span_ms(began_s: float | None, seconds: float) -> tuple[int, int]:
    """Return start and end of a launch in ms; virtual seconds make runs overlap."""
    start = int((time.time() if began_s is None else began_s) * 1000)
    return start, start + int(seconds * 1000)


def view_of(spec: StudySpec, experiment_id: str) -> tuple[str, str]:
    """Return the id of the saved view of one goal's launches, and the page's address that shows it.

    The last part of the address leads past the pages for traces, with which MLflow 3.17 begins
    otherwise.
    """
    view_id = f"autotune-{re.sub(r'[^A-Za-z0-9_.-]+', '-', goal_of(spec))}"[:200]
    return (
        view_id,
        f"#/experiments/{experiment_id}/runs?viewStateShareKey={view_id}&workflowType=machine_learning",
    )


def experiment_tags(spec: StudySpec, experiment_id: str, at_ms: int) -> StringDict:
    """Return tags that shape an experiment's pages: a description, and a view of one goal's
    launches.

    MLflow has no setting for the columns that a list of runs begins with. Since 3.15 it has saved
    views (menu *Views* above the list; https://mlflow.org/releases/3.15.0): a tag of the experiment
    each, with filter, order and columns.
    """
    goal = goal_of(spec)
    metric = f"metrics.`{spec.objective}`"
    view_id, link = view_of(spec, experiment_id)
    latencies = (f"{spec.workloads[0]}.{name}" for name in ("mean_ttft_ms", "mean_tpot_ms"))
    columns = [
        metric,
        "metrics.`gain_percent`",
        *(f"tags.`{tag}`" for tag in ("engine", "verdict", "role")),
        *(f"metrics.`{name}`" for name in latencies),
        *(f"tags.`{tag}`" for tag in ("study", "evidence")),
    ]
    # Show the launches that ran, the best one first: those of one goal, as a column of two would
    # hold different quantities.
    state = {
        "searchFilter": "tags.kind = 'launch' and tags.state = 'complete' and "
        f"tags.goal = '{goal}'",
        "orderByKey": metric,
        "orderByAsc": not maximises(spec.objective),
        "selectedColumns": columns,
        "columnOrder": columns,
    }
    view = {"name": f"{goal}, best first", "createdAt": at_ms, "state": json.dumps(state)}
    return {
        f"mlflow.sharedViewState.{view_id}": json.dumps(view),
        "mlflow.note.content": write(_TAGS["experiment"], spec=spec, goal=goal, link=link) + "\n",
    }
