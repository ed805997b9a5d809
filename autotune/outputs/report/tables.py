"""The launches in tables: best per engine, finals, nodes, all launches, failures, exclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, mean, stdev

from autotune.base import redact
from autotune.engines import Failure, Scalar
from autotune.engines.failure import without_numbers
from autotune.load.metrics import readable
from autotune.load.metrics.table import Metrics, curve_of
from autotune.tuner.search.objective import maximises
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial

from . import StudyRecord, sentences, text


def engines(study: StudyRecord) -> list[str]:
    """Tabulate the best configuration of each engine, and list the engines that were not
    searched."""
    if study.recommendation.address:
        return []
    usual = references(study.launches)
    rows = []
    for launch, value, count in best_per_engine(study):
        made = launch.trial.configuration
        changed = text.knobs(differing(launch, usual)) or "its reference configuration"
        rows.append(
            {
                "Engine": f"{made.engine} {launch.trial.engine_version}",
                text.title(study.spec.objective): readable.number(value),
                "Launches": str(count),
                "Best configuration, differences from the reference": f"{changed}{study.mark(made.fingerprint)}",
            }
        )
    excluded = [
        f"- **{text.escape(one.engine)}**: {text.escape(one.reason)}"
        for one in (*study.recommendation.excluded, *study.recommendation.not_searched)
    ]
    parts = [text.table(rows, " rr") or "No launch meets the limits."]
    return [*parts, "Not searched:", "\n".join(excluded)] if excluded else parts


def finals(study: StudyRecord) -> list[str]:
    """Tabulate each repeat of the finalists and the baseline."""
    rows = []
    for fingerprint, role, group in finalists(study):
        values = study.values(group)
        shown = readable.numbers(map(study.value, group))
        repeats = (
            f"{value} (#{launch.number})" for value, launch in zip(shown, group, strict=True)
        )
        spread = "–"
        if len(values) > 1 and mean(values):
            spread = f"{stdev(values) / mean(values) * 100:.1f} %"
        rows.append(
            {
                "Configuration": f"{role} {text.code(fingerprint)}{study.mark(fingerprint)}",
                "Each launch": ", ".join(repeats),
                "Mean": readable.number(average(values)),
                "Spread (standard deviation)": spread,
            }
        )
    return [text.table(rows, "  rr")]


def finalists(study: StudyRecord) -> list[tuple[str, str, list[Launch]]]:
    """Return fingerprint, role and launches of each configuration that the finals compared.

    One that was launched once, to show what a setting adds, is left out unless it is recommended or
    the baseline.
    """
    if not any(launch.role is Role.FINAL for launch in study.launches):
        return []
    rows = []
    for fingerprint, group in study.by_configuration(*study.spec.deciding_roles).items():
        own = {fingerprint, *(launch.fingerprint for launch in group)}
        roles = [role for role, choice in study.choices.items() if choice.fingerprint in own]
        if roles or len(group) > 1:
            rows.append((fingerprint, " and ".join(roles) or "finalist", group))
    return rows


def resolutions(study: StudyRecord) -> list[str]:
    """Describe the arguments that engines resolved to another value than requested; one sentence
    each."""
    lines = []
    for row in study.recommendation.resolutions:
        launches = "launch"
        repeats = "it is a repeat"
        twin = ""
        if len(row.launches) > 1:
            launches = "launches"
            repeats = "they are repeats"
        numbers = ", ".join(map(str, row.launches[:8]))
        if len(row.launches) > 8:
            numbers += " …"
        if row.repeats_of is not None:
            twin = f", so that {repeats} of launch {row.repeats_of}"
        lines.append(f"- {row.note} ({launches} {numbers}){twin}.")
    if not lines:
        return []
    reported = sum(bool(launch.result.resolved) for launch in study.launches)
    note = f"As logged by the engines, from {reported} of {len(study.launches)} launches."
    return [note, "\n".join(lines)]


def launches(study: StudyRecord) -> list[str]:
    """Tabulate every launch in order, by the knobs that differ from its engine's reference."""
    spec = study.spec
    usual = references(study.launches)
    better = max if maximises(spec.objective) else min
    best = better(study.values(study.launches), default=0.0)
    rows = []
    varied: dict[str, set[str]] = {engine: set() for engine in usual}
    for launch in study.launches:
        made = launch.trial.configuration
        result = launch.result
        changed = differing(launch, usual)
        varied[made.engine] |= changed.keys()
        is_reference = made == usual[made.engine].trial.configuration
        knobs = "reference" if is_reference else text.knobs(changed)
        value = study.value(launch)
        rows.append(
            {
                "#": str(launch.number),
                "Role": f"{launch.role.value}{again(launch.trial)}",
                "Engine": made.engine,
                "Knobs that differ from the reference": f"{knobs}{study.mark(made.fingerprint)}",
                text.title(spec.objective): readable.number(value),
                "Of the best": f"{value / best * 100:.0f} %" if value is not None and best else "–",
                "KV cache (tokens of a replica)": readable.number(result.kv_cache_tokens),
                "Longest request (tokens)": readable.number(result.longest_request_tokens),
                "State": _state(spec, launch),
            }
        )
    known = []
    for engine, launch in usual.items():
        own = launch.trial.configuration.knobs.items()
        knobs = text.knobs({name: value for name, value in own if name in varied[engine]})
        known.append(f"- {engine} (launch {launch.number}): {knobs or 'nothing differs'}")
    parts = [text.table(rows, "r   rrrr")]
    if known:
        parts += [
            "Reference of each engine, with the knobs that its launches vary (for all engines, "
            "`tensor_parallel` is the GPUs of an attention replica, `data_parallel` the replicas):",
            "\n".join(known),
        ]
    return parts


def again(trial: Trial) -> str:
    """Return a remark on another launch for a failure without an explanation; empty for others."""
    return f" (again, after #{trial.retry.of})" if trial.retry else ""


_RANKS_ONLY = "random weights, used for ranking only"


def _state(spec: StudySpec, launch: Launch) -> str:
    result = launch.result
    if result.failure:
        return f"{result.state.value}: {result.failure.summary}"
    if result.state is State.INVALID:
        return "invalid measurement"
    if launch.ranks_only:
        return _RANKS_ONLY
    broken = broken_slos(spec, result.metrics)
    return f"breaks {text.escape('; '.join(broken))}" if broken else result.state.value


def without_figure(launch: Launch) -> tuple[str, str]:
    """Return what a row has in place of a launch's figure, and why."""
    result = launch.result
    if launch.ranks_only and not result.failure:
        return "ranked", _RANKS_ONLY
    return result.state.value, result.failure.summary if result.failure else "unknown"


def with_figures(launches: Sequence[Launch]) -> tuple[list[Launch], dict[str, int]]:
    """Return the launches whose figures may be reported, and why how many others may not."""
    found = [launch for launch in launches if not launch.ranks_only]
    return found, {"with random weights, which rank only": len(launches) - len(found)}


def failures(study: StudyRecord) -> list[str]:
    """List failures by kind and message, numbers aside, with the decisive line of the log."""
    groups: dict[tuple[str, str], list[tuple[str, Failure]]] = {}
    for launch in study.launches:
        if failure := launch.result.failure:
            fault = "" if failure.blames_the_configuration else " (not the configuration's fault)"
            name = f"{launch.number} ({launch.engine})"
            key = f"{failure.summary}{fault}", without_numbers(failure.message)
            groups.setdefault(key, []).append((name, failure))
    parts = []
    for (kind, _), group in sorted(groups.items(), key=lambda item: item[0]):
        names = text.escape(", ".join(name for name, _ in group))
        first = group[0][1]
        parts += [f"### {kind}", f"{text.escape(redact.text(first.message))} Launches: {names}."]
        if first.log_excerpt:
            parts.append(text.block(redact.text(first.log_excerpt)))
    return parts or ["None failed."]


def nodes(study: StudyRecord) -> list[str]:
    """Tabulate the nodes; empty for one node. The conclusion names each node that differs beyond
    noise."""
    shares = study.recommendation.nodes
    if not shares:
        return []
    rows = [
        {
            "Node": text.code(share.node),
            "Launches": str(share.launches),
            f"Baseline: {text.title(study.spec.objective)}": readable.number(share.baseline),
            "Difference from the others": readable.percent(share.difference_percent),
            "Corrected by": readable.percent(share.offset_percent),
        }
        for share in shares
    ]
    note = (
        "The baseline ran on every node. The search corrects differences beyond noise. "
        "A configuration and the baseline are compared by launches on the same node."
    )
    finding = ""
    if study.disturbed_nodes:
        names = " and ".join(map(text.code, sorted(study.disturbed_nodes)))
        finding = (
            f"Launches side by side on {names} are invalid; from then on, launches ran one at "
            "a time."
        )
    elif not any(share.certain for share in shares):
        finding = "No node differs from the others beyond noise."
    return [note, text.table(rows, " rrrr"), finding]


def broken_slos(spec: StudySpec, measured: Mapping[str, Metrics]) -> list[str]:
    """Return the SLOs that a launch violates by its workloads' metrics, with excess and value; a
    missing metric violates its SLO."""
    metrics = measured.get(spec.workloads[0], {})
    broken = []
    for slo in spec.slos:
        value = metrics.get(slo.metric)
        if not isinstance(value, int | float):
            broken.append(f"{slo.description} (not measured)")
        elif slo.violation(value) > 0:
            broken.append(slo.broken_by(value))
    return broken


def average(values: Sequence[float]) -> float | None:
    """Return the geometric mean, as in the recommendation; None for no values."""
    positive = [value for value in values if value > 0]
    return geometric_mean(positive) if positive else None


def best_per_engine(study: StudyRecord) -> list[tuple[Launch, float, int]]:
    """Return a launch, the mean and the count of the best feasible configuration per engine, the
    best engine first."""
    ranked = []
    for launches in study.by_configuration().values():
        group = study.deciding(launches)
        complete = [launch for launch in group if launch.result.state is State.COMPLETE]
        values = study.values(complete)
        middle = average(values)
        if middle is not None and not any(
            broken_slos(study.spec, one.result.metrics) for one in complete
        ):
            ranked.append((complete[0], middle, len(values)))
    ranked.sort(key=lambda row: row[1], reverse=maximises(study.spec.objective))
    best: dict[str, tuple[Launch, float, int]] = {}
    for row in ranked:
        best.setdefault(row[0].engine, row)
    return list(best.values())


def references(launches: Sequence[Launch]) -> dict[str, Launch]:
    """Return per engine the reference launch of its descriptions: its default, the baseline, or its
    first."""
    order = {Role.DEFAULT: 0, Role.BASELINE: 1}
    chosen: dict[str, Launch] = {}
    for launch in sorted(launches, key=lambda row: order.get(row.role, 2)):
        chosen.setdefault(launch.engine, launch)
    return chosen


def differing(launch: Launch, references: Mapping[str, Launch]) -> dict[str, Scalar]:
    """Return the knobs in which a launch differs from its engine's reference."""
    usual = references[launch.engine].trial.configuration.knobs
    return {
        name: value
        for name, value in launch.trial.configuration.knobs.items()
        if name not in usual or usual[name] != value
    }


def capacities(study: StudyRecord) -> list[str]:
    """Tabulate the loads tried on the last launch (of the finals, if any) of the recommended
    command and baseline."""
    spec = study.spec
    parts = []
    if spec.load.fixed:
        return []
    shown = ["steady_total_token_throughput", *dict.fromkeys(slo.metric for slo in spec.slos)]
    for role, choice in study.choices.items():
        own = [
            launch
            for launch in study.launches
            if launch.result.state is State.COMPLETE and launch.fingerprint == choice.fingerprint
        ]
        if not own:
            continue
        launch = max(own, key=lambda row: (row.role is Role.FINAL, row.number))
        metrics = launch.result.metrics.get(spec.workloads[0], {})
        rows = [
            {
                spec.load.unit.capitalize(): f"{row[spec.load.key]:g}",
                **{text.title(metric): readable.number(row.get(metric)) for metric in shown},
                "Output tok/s per user": readable.number(
                    1e3 / row["mean_tpot_ms"] if row.get("mean_tpot_ms") else None
                ),
                "Meets the limits": "yes" if row.get("kept") else "no",
            }
            for row in curve_of(metrics)
        ]
        parts += [
            f"### {role.capitalize()}, launch {launch.number}",
            spec.load.sentence(metrics),
            text.table(rows, "r" * (len(shown) + 2)),
        ]
    return parts


_ANSWERS = {
    "builtin": "Share of tokens without an error against the baseline's first launch, on "
    "autotune's own contexts, sent alone and under load. The normal variation is the difference "
    "between the baseline's launches.",
    "tasks": "Share of right answers to the items of the task file. A drop fails if its 95 % "
    "interval is below one point.",
    "command": "The score printed by the command. A drop of more than a point beyond its errors "
    "fails.",
}


def answers(study: StudyRecord) -> list[str]:
    """Tabulate the launches with checked answers, with reasons and examples of failures."""
    baseline = study.choices.get("baseline")
    rows = list[dict[str, str]]()
    notes = dict[str, None]()
    parts = list[str]()
    kinds = []
    for launch in study.launches:
        trial = launch.trial
        check = launch.result.accuracy
        if not check:
            continue
        kinds.append(check.kind)
        made = trial.configuration
        own = baseline and baseline.fingerprint == made.fingerprint
        outcomes = {
            None: "compared with" if own else "not compared",
            True: "passes",
            False: "**fails**",
        }
        rows.append(
            {
                "#": str(trial.number),
                "Role": trial.role.value,
                "Configuration": "the baseline"
                if own
                else f"{made.engine} {text.code(made.fingerprint)}",
                "Score (95 % interval)": sentences.score(check.kind, check.score, check.ci95),
                "Baseline": sentences.score(check.kind, check.baseline, check.baseline_ci95),
                "Threshold": sentences.score(check.kind, check.threshold),
                "Outcome": outcomes[check.passed],
                "Took": text.seconds(check.seconds),
            }
        )
        if check.note:
            notes[f"{text.escape(check.note)}."] = None
        if check.examples:
            parts += [
                f"### Launch {trial.number} gives different answers",
                text.escape(f"{'; '.join(check.reasons)}."),
            ]
        for one in check.examples:
            example = f"prompt    {one.prompt}\nbaseline  {one.baseline}\nhere      {one.finalist}"
            parts.append(text.block(redact.text(example)))
    return [_ANSWERS[kinds[0]], text.table(rows, "r  rrr r"), *notes, *parts] if rows else []
