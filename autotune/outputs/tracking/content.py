"""What is written to MLflow of a launch and of a study: plain values, no mlflow here."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from autotune import redact
from autotune.search.objective import achieved, maximises, on_workloads, score, violations
from autotune.study.recommendation import Recommendation
from autotune.study.spec import StudySpec
from autotune.trial import Launch

TEXT_LENGTH = 5000
"""Longest value of a tag or param; MLflow 3.17 takes 8000 and 6000 characters."""

OBJECTIVE = "objective"
"""The metric of every run that has the objective's value, whatever metric that is."""

UNFINISHED = "unfinished"
"""The parent run's tag ``verdict`` until there is one."""

_NAME_CHARACTERS = re.compile(r"[^\w.\- :]")


def metric_name(text: str) -> str:
    """A name for a metric or param with the characters that MLflow takes.

    MLflow reads a name as a path and refuses one that would resolve to another: no "/", no leading dot.
    """
    name = _NAME_CHARACTERS.sub("_", text)[:250]
    return name if name and not name.startswith(".") else f"_{name}"


def experiment_name(spec: StudySpec) -> str:
    """One experiment per model and hardware, e.g. ``deepseek-ai/DeepSeek-V3.2 on 8xh200``."""
    return f"{spec.model.id} on {spec.gpus}x{spec.hardware.name}"


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers of a mapping; what is not a number has no place among MLflow's metrics."""
    return {
        f"{prefix}{name}": float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def goal_of(spec: StudySpec) -> str:
    """One quantity under one workload, e.g. ``total_token_throughput on sharegpt``: what may be sorted together."""
    return f"{spec.objective} on {on_workloads(spec)}".replace("'", "")[:TEXT_LENGTH]


def launch_metrics(spec: StudySpec, launch: Launch, baseline: Launch | None = None) -> dict[str, float]:
    """Every number of a launch; the objective's value under its metric's name and as `OBJECTIVE`, to sort by.

    Args:
        baseline: a launch of it, over which the gain is taken.
    """
    metrics = _numbers(launch.result.times_s, "time_s.")
    mine, base = score(spec, launch), None if baseline is None else score(spec, baseline)
    if mine is not None and base is not None:
        metrics["gain_percent"] = 100 * math.expm1(mine - base)
    metrics.update(_numbers(dict.fromkeys((OBJECTIVE, spec.objective), achieved(spec, launch))))
    for workload, values in launch.result.metrics.items():
        if workload in launch.result.shortened:
            continue  # forecasts
        metrics.update(_numbers(values, f"{workload}."))
    return metrics


def launch_tags(spec: StudySpec, launch: Launch) -> dict[str, str]:
    """Of a launch; ``verdict`` where it breaks a limit, else `StudyRuns.finish` gives it to those that decided."""
    trial, result = launch.trial, launch.result
    command = redact.argv(trial.command.words)
    settings = {} if trial.command.container else redact.env(trial.command.env)
    tags = {
        "study": spec.study,
        "kind": "launch",
        "goal": goal_of(spec),
        "number": str(trial.number),
        "role": trial.role.value,
        "engine": trial.configuration.engine,
        "engine_version": trial.engine_version,
        "fingerprint": trial.configuration.fingerprint,
        "workloads": ", ".join(trial.workloads),
        "state": result.state.value,
        "failure_kind": result.failure.kind.value if result.failure else "none",
        "evidence": result.evidence.value,
        "started_at": result.started_at,
        "node": result.node,
        "gpu_ids": ", ".join(result.gpu_ids),
        "command": " ".join([*(f"{k}={shlex.quote(v)}" for k, v in settings.items()), *command]),
        "mlflow.source.name": "autotune",
    }
    if broken := [slo for slo, beyond in violations(spec, launch).items() if beyond > 0]:
        tags["verdict"] = f"breaks {', '.join(broken)}"
    if result.failure:
        tags["failure"] = redact.text(f"{result.failure.message}\n{result.failure.log_excerpt}".strip())
    return {name: value[:TEXT_LENGTH] for name, value in tags.items()}


def study_tags(spec: StudySpec) -> dict[str, str]:
    """Of a study that has just begun; what it found comes with `outcome_tags`."""
    return {
        "study": spec.study,
        "kind": "study",
        "goal": goal_of(spec),
        "verdict": UNFINISHED,
        "mlflow.source.name": "autotune",
        "workloads": ", ".join(spec.workloads),
    }


def study_params(spec: StudySpec) -> dict[str, Any]:
    names = ("objective", "baseline", "launches", "hours", "on", "executor", "sampler", "noise", "seed", "gpus")
    return {
        "model": spec.model.id,
        "hardware": spec.hardware.name,
        "engines": ", ".join(f"{engine.name} {engine.version}" for engine in spec.engines),
        "workloads": ", ".join(spec.workloads),
        "weights": ", ".join(f"{name}={weight:g}" for name, weight in spec.weights.items()) or "none",
        "pareto": spec.pareto or "none",
        "slos": ", ".join(map(str, spec.slos)) or "none",
        "pins": json.dumps(spec.pins),
        **{name: getattr(spec, name) for name in names},
    }


def outcome_metrics(outcome: Recommendation) -> dict[str, float]:
    low, high = outcome.gain_ci95 or (None, None)
    lowest, highest = outcome.gain_interval90_on_a_node or (None, None)
    figures: dict[str, Any] = {
        "gain_percent": outcome.gain_percent,
        "gain_ci95_low": low,
        "gain_ci95_high": high,
        "gain_interval90_on_a_node_low": lowest,
        "gain_interval90_on_a_node_high": highest,
        "launches": outcome.launches,
        "trials": outcome.trials,
        "duration_s": outcome.duration_s,
        "baseline_objective": outcome.baseline.objective.value if outcome.baseline else None,
    }
    metrics = _numbers(figures)
    if outcome.recommended is not None:
        goal = outcome.recommended.objective
        metrics.update(_numbers(dict.fromkeys((OBJECTIVE, goal.metric), goal.value)))
    for workload, comparison in outcome.workloads.items():
        metrics.update(_numbers(comparison.recommended or {}, f"{workload}."))
        metrics.update(_numbers(comparison.baseline or {}, f"baseline.{workload}."))
    return metrics


def outcome_tags(outcome: Recommendation) -> dict[str, str]:
    tags = {"verdict": outcome.verdict.value, "stop_reason": outcome.stop_reason, "evidence": outcome.evidence.value}
    if outcome.recommended is None:
        return tags
    choice = outcome.recommended
    command = redact.text(choice.command, redact.secrets_in(choice.argv, choice.env))
    note = f"**{outcome.evidence.value.upper()}**: verdict *{outcome.verdict.value}*\n\n```bash\n{command}\n```\n"
    chosen = {"engine": choice.engine, "engine_version": choice.engine_version, "fingerprint": choice.fingerprint}
    chosen["gives_up"] = ", ".join(f"{one.knob}: {one.what}" for one in outcome.gives_up or ()) or "nothing"
    return {**tags, **chosen, "command": command[:TEXT_LENGTH], "mlflow.note.content": note[:TEXT_LENGTH]}


def started_ms(launch: Launch) -> int:
    try:
        return int(datetime.fromisoformat(launch.result.started_at).timestamp() * 1000)
    except ValueError:
        return int(time.time() * 1000)


def ended_ms(launch: Launch) -> int:
    """The end by the phases' seconds; virtual ones make runs overlap, and each as long as it would have been."""
    return started_ms(launch) + int(sum(launch.result.times_s.values()) * 1000)


def experiment_tags(spec: StudySpec, experiment_id: str, at_ms: int) -> dict[str, str]:
    """How an experiment looks in MLflow's pages: a saved view of one goal's launches, and a description.

    MLflow has no setting for the columns that a list of runs begins with. Since 3.15 it has saved views (menu *Views*
    above the list; https://mlflow.org/releases/3.15.0): a tag of the experiment each, with filter, order and columns.

    Args:
        at_ms: when the view is made, milliseconds since 1970.
    """
    goal, metric = goal_of(spec), f"metrics.`{spec.objective}`"
    view_id = f"autotune-{re.sub(r'[^A-Za-z0-9_.-]+', '-', goal)}"[:200]
    tags = (f"tags.`{tag}`" for tag in ("engine", "verdict", "study", "role", "evidence"))
    columns = [metric, "metrics.`gain_percent`", *tags]
    # The launches that ran, the best one first: those of one goal, as a column of two would hold different quantities.
    state = {
        "searchFilter": f"tags.kind = 'launch' and tags.state = 'complete' and tags.goal = '{goal}'",
        "orderByKey": metric,
        "orderByAsc": not maximises(spec.objective),
        "selectedColumns": columns,
        "columnOrder": columns,
    }
    view = {"name": f"{goal}, best first", "createdAt": at_ms, "state": json.dumps(state)}
    link = f"#/experiments/{experiment_id}/runs?viewStateShareKey={view_id}"
    # Markdown above the list of runs. The page shows the first line; the rest unfolds.
    description = (
        f"[Launches by {goal}, best first]({link}): this view is in the menu *Views*, too. By hand: filter by "
        f"`tags.goal`, then *Sort* by `{spec.objective}`, which also adds its column.\n\n"
        "Serving configurations tried by autotune: a run per study, and below it one per launch.\n"
    )
    return {f"mlflow.sharedViewState.{view_id}": json.dumps(view), "mlflow.note.content": description}
