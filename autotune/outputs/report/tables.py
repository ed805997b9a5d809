"""The launches in tables: best per engine, finals, nodes, all launches, failures, exclusions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean, mean, stdev

from autotune.base import redact
from autotune.engines.command import Scalar
from autotune.load.metrics import readable
from autotune.outputs.report import StudyRecord, text, words
from autotune.tuner.search.equivalents import canonical_of
from autotune.tuner.search.objective import achieved, maximises
from autotune.tuner.study.spec import StudySpec, is_beside
from autotune.tuner.trial import Launch, Role, State


def engines(study: StudyRecord) -> list[str]:
    """Tabulate the best configuration of each engine, and list the engines that were not
    searched."""
    usual = references(study.launches)
    rows = []
    if study.recommendation.address:
        return []
    for launch, value, count in best_per_engine(study):
        engine = launch.trial.configuration.engine
        changed = text.knobs(differing(launch, usual[engine])) or "its reference configuration"
        changed += words.marked(study.recommendation, launch.trial.configuration.fingerprint)
        rows.append(
            {
                "Engine": f"{engine} {launch.trial.engine_version}",
                text.title(study.spec.objective): readable.number(value),
                "Launches": str(count),
                "Best configuration, differences from the reference": changed,
            }
        )
    table = text.table(rows, " rr")
    excluded = [
        f"- **{text.plain(e.engine)}**: {text.plain(e.reason)}"
        for e in study.recommendation.excluded
    ]
    left_out = ["Not searched:", "\n".join(excluded)] if excluded else []
    return [table or "No launch meets the limits.", *left_out]


def finals(study: StudyRecord) -> list[str]:
    """Tabulate each repeat of the finalists and the baseline."""
    rows = []
    for fingerprint, who, group in finalists(study):
        values = values_of(study, group)
        shown = readable.numbers(achieved(study.spec, row) for row in group)
        each = ", ".join(
            f"{value} (#{row.trial.number})" for value, row in zip(shown, group, strict=True)
        )
        spread = (
            f"{stdev(values) / mean(values) * 100:.1f} %"
            if len(values) > 1 and mean(values)
            else "–"
        )
        who = f"{who} {text.code(fingerprint)}{words.marked(study.recommendation, fingerprint)}"
        row = {"Configuration": who, "Each launch": each, "Mean": readable.number(average(values))}
        rows.append({**row, "Spread (standard deviation)": spread})
    return [text.table(rows, "  rr")]


def finalists(study: StudyRecord) -> list[tuple[str, str, list[Launch]]]:
    """Return fingerprint, role and launches of each configuration that the finals compared.

    One that was launched once, to show what a setting adds, is left out unless it is recommended or
    the baseline.
    """
    if not any(launch.trial.role is Role.FINAL for launch in study.launches):
        return []
    sides = (
        ("recommended", study.recommendation.recommended),
        ("baseline", study.recommendation.baseline),
    )
    compared = (
        launch for launch in undisturbed(study) if launch.trial.role in study.spec.judged_by
    )
    rows = []
    for fingerprint, group in by_configuration(study, compared).items():
        own = {fingerprint, *(launch.trial.configuration.fingerprint for launch in group)}
        names = [name for name, choice in sides if choice is not None and choice.fingerprint in own]
        if names or len(group) > 1:
            rows.append((fingerprint, " and ".join(names) or "finalist", group))
    return rows


def resolutions(study: StudyRecord) -> list[str]:
    """Describe the arguments that engines resolved to another value than requested; one sentence
    each."""
    lines = []
    for row in study.recommendation.resolutions:
        several, twin = len(row.launches) > 1, ""
        numbers = ", ".join(map(str, row.launches[:8])) + (" …" if len(row.launches) > 8 else "")
        if row.repeats_of is not None:
            twin = f", so that {'they are repeats' if several else 'it is a repeat'} of launch {row.repeats_of}"
        lines.append(f"- {row.note} ({'launches' if several else 'launch'} {numbers}){twin}.")
    told = sum(row.result.resolved is not None for row in study.launches)
    note = f"As logged by the engines, from {told} of {len(study.launches)} launches."
    return [note, "\n".join(lines)] if lines else []


def launches(study: StudyRecord) -> list[str]:
    """Tabulate every launch in order, by the knobs that differ from its engine's reference."""
    usual = references(study.launches)
    values = values_of(study, study.launches)
    best = (max if maximises(study.spec.objective) else min)(values, default=0.0)
    rows = []
    varied: dict[str, set[str]] = {engine: set() for engine in usual}
    for launch in study.launches:
        made, result = launch.trial.configuration, launch.result
        changed = differing(launch, usual[made.engine])
        varied[made.engine] |= changed.keys()
        knobs = (
            "reference" if made == usual[made.engine].trial.configuration else text.knobs(changed)
        )
        knobs += words.marked(study.recommendation, made.fingerprint)
        value = achieved(study.spec, launch)
        row = {
            "#": str(launch.trial.number),
            "Role": launch.trial.role.value,
            "Engine": made.engine,
            "Knobs that differ from the reference": knobs,
            text.title(study.spec.objective): readable.number(value),
            "Of the best": f"{value / best * 100:.0f} %" if value is not None and best else "–",
            "KV cache (tokens of a replica)": readable.number(result.kv_cache_tokens),
            "Longest request (tokens)": readable.number(result.longest_request_tokens),
            "State": result.state.value,
        }
        if result.failure is not None:
            row["State"] += f": {words.failed(result.failure)}"
        elif result.state is State.INVALID:
            row["State"] = "invalid measurement"
        elif launch.trial.role is Role.SCREEN:
            row["State"] = "random weights, used for ranking only"
        elif broken := broken_slos(study.spec, launch):
            row["State"] = f"breaks {text.plain('; '.join(broken))}"
        rows.append(row)
    known = []
    for engine, launch in usual.items():
        own = {
            name: value
            for name, value in launch.trial.configuration.knobs.items()
            if name in varied[engine]
        }
        known.append(
            f"- {engine} (launch {launch.trial.number}): {text.knobs(own) or 'nothing differs'}"
        )
    note = (
        "Reference of each engine, with the knobs that its launches vary (for all engines, "
        "`tensor_parallel` is the GPUs of an attention replica, `data_parallel` the replicas):"
    )
    return [text.table(rows, "r   rrrr"), *([note, "\n".join(known)] if known else [])]


def failures(study: StudyRecord) -> list[str]:
    """List failures by kind and message, with the decisive line of the log."""
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch in study.launches:
        if (failure := launch.result.failure) is not None:
            fault = "" if failure.blames_the_configuration else " (not the configuration's fault)"
            groups.setdefault((f"{words.failed(failure)}{fault}", failure.message), []).append(
                launch
            )
    parts = []
    for (kind, message), group in sorted(groups.items(), key=lambda one: one[0]):
        numbers = ", ".join(
            f"{row.trial.number} ({row.trial.configuration.engine})" for row in group
        )
        parts += [
            f"### {kind}",
            f"{text.plain(redact.text(message))} Launches: {text.plain(numbers)}.",
        ]
        excerpt = group[0].result.failure.log_excerpt if group[0].result.failure else ""
        parts += [text.block(redact.text(excerpt))] if excerpt else []
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
        "The baseline ran on every node. The search corrects differences beyond noise. A configuration and the "
        "baseline are compared by launches on the same node."
    )
    told = ""
    if disturbed := sorted(_disturbed(study)):
        names = " and ".join(map(text.code, disturbed))
        told = f"Launches side by side on {names} are invalid; from then on, launches ran one at a time."
    elif not any(share.certain for share in shares):
        told = "No node differs from the others beyond noise."
    return [note, text.table(rows, " rrrr"), told]


def broken_slos(spec: StudySpec, launch: Launch) -> list[str]:
    """Return the SLOs that a launch violates, with excess and value; a missing metric violates its
    SLO."""
    metrics = launch.result.metrics.get(spec.workloads[0], {})
    broken = []
    for slo in spec.slos:
        value = metrics.get(slo.metric)
        if not isinstance(value, int | float):
            broken.append(f"{slo.told} (not measured)")
        elif slo.violation(value) > 0:
            broken.append(slo.broken_by(value))
    return broken


def by_configuration(study: StudyRecord, launches: Iterable[Launch]) -> dict[str, list[Launch]]:
    """Return fingerprint to its launches, equivalents included, in the order of their first
    launch."""
    launched = {launch.trial.configuration.fingerprint for launch in study.launches}
    own = (
        row.trial.configuration.fingerprint
        for row in study.launches
        if row.trial.role is Role.BASELINE
    )
    canonical = canonical_of(study.launches, launched, next(own, None))
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        fingerprint = launch.trial.configuration.fingerprint
        groups.setdefault(canonical.get(fingerprint, fingerprint), []).append(launch)
    return groups


def _disturbed(study: StudyRecord) -> set[str]:
    """Return the shares of the GPUs on which launches slowed each other: all launches there are
    invalid."""
    return {
        share.node
        for share in study.recommendation.nodes
        if share.baseline is None and is_beside(share.node)
    }


def undisturbed(study: StudyRecord) -> list[Launch]:
    """Return the launches whose shares were not disturbed."""
    disturbed = _disturbed(study)
    return [launch for launch in study.launches if launch.result.node not in disturbed]


def counted(study: StudyRecord, group: Sequence[Launch]) -> list[Launch]:
    """Return the valid launches of one configuration: those of the finals, and all of the baseline.

    Those of the search are biased, as they decided who came into the finals; they count where there
    are no others.
    """
    chosen = [launch for launch in group if launch.trial.role in study.spec.judged_by]
    return chosen or list(group)


def average(values: Sequence[float]) -> float | None:
    """Return the geometric mean, as in the recommendation; None for no values."""
    positive = [value for value in values if value > 0]
    return geometric_mean(positive) if positive else None


def values_of(study: StudyRecord, group: Iterable[Launch]) -> list[float]:
    """Return the objective of each launch that has a valid figure."""
    return [value for launch in group if (value := achieved(study.spec, launch)) is not None]


def best_per_engine(study: StudyRecord) -> list[tuple[Launch, float, int]]:
    """Return a launch, the mean and the count of the best feasible configuration per engine, the
    best engine first."""
    sign = 1 if maximises(study.spec.objective) else -1
    best: dict[str, tuple[Launch, float, int]] = {}
    for launches in by_configuration(study, undisturbed(study)).values():
        group = [
            launch for launch in counted(study, launches) if launch.result.state is State.COMPLETE
        ]
        values = values_of(study, group)
        middle = average(values)
        if middle is None or any(broken_slos(study.spec, launch) for launch in group):
            continue
        engine = group[0].trial.configuration.engine
        if engine not in best or sign * middle > sign * best[engine][1]:
            best[engine] = (group[0], middle, len(values))
    return sorted(best.values(), key=lambda row: -sign * row[1])


def references(launches: Sequence[Launch]) -> dict[str, Launch]:
    """Return per engine the reference launch of its descriptions: its default, the baseline, or its
    first."""
    order = {Role.DEFAULT: 0, Role.BASELINE: 1}
    chosen: dict[str, Launch] = {}
    for launch in sorted(
        launches, key=lambda row: (order.get(row.trial.role, 2), row.trial.number)
    ):
        chosen.setdefault(launch.trial.configuration.engine, launch)
    return chosen


def differing(launch: Launch, reference: Launch) -> dict[str, Scalar]:
    """Return the knobs in which a launch differs from the reference."""
    usual = reference.trial.configuration.knobs
    return {
        name: value
        for name, value in launch.trial.configuration.knobs.items()
        if name not in usual or usual[name] != value
    }


def capacities(study: StudyRecord) -> list[str]:
    """Tabulate the loads tried on the last launch (of the finals, if any) of the recommended
    command and baseline."""
    outcome, spec, parts = study.recommendation, study.spec, list[str]()
    key = spec.load_key
    unit = "in flight" if key == "concurrency" else "requests per second"
    shown = ["steady_total_token_throughput", *dict.fromkeys(slo.metric for slo in spec.slos)]
    complete = [launch for launch in study.launches if launch.result.state is State.COMPLETE]
    for name, choice in (
        {"Recommended": outcome.recommended, "Baseline": outcome.baseline}.items() if key else ()
    ):
        own = [
            row
            for row in complete
            if choice and row.trial.configuration.fingerprint == choice.fingerprint
        ]
        if not own:
            continue
        launch = max(own, key=lambda row: (row.trial.role is Role.FINAL, row.trial.number))
        metrics = launch.result.metrics.get(spec.workloads[0], {})
        told = "No load meets the limits: the lightest violates one."
        if capacity := metrics.get(f"capacity_{key}"):
            above = metrics.get("capacity_broken_at")
            told = f"Capacity: {capacity:g} {unit}"
            told += (
                f"; {above:g} violate a limit."
                if above
                else ", the heaviest load tried; it may be higher."
            )
            if (dead := metrics.get("capacity_died_at")) is not None:
                told += f" The server died at {dead:g}."
            if (pair := metrics.get("capacity_not_monotone")) is not None:
                told += f" Not monotone: {pair[0]:g} violate a limit that {pair[1]:g} meet."
        rows = [
            {
                unit.capitalize(): f"{row[key]:g}",
                **{text.title(metric): readable.number(row.get(metric)) for metric in shown},
                "Output tok/s per user": readable.number(
                    1e3 / row["mean_tpot_ms"] if row.get("mean_tpot_ms") else None
                ),
                "Meets the limits": "yes" if row.get("kept") else "no",
            }
            for row in metrics.get("curve") or ()
        ]
        parts += [
            f"### {name}, launch {launch.trial.number}",
            told,
            text.table(rows, "r" * (len(shown) + 2)),
        ]
    return parts


_ANSWERS = {
    "builtin": "Share of tokens without an error against the baseline's first launch, on autotune's own contexts, "
    "sent alone and under load. The normal variation is the difference between the baseline's launches.",
    "tasks": "Share of right answers to the items of the task file. A drop fails if its 95 % interval is below one "
    "point.",
    "command": "The score printed by the command. A drop of more than a point beyond its errors fails.",
}


def answers(study: StudyRecord) -> list[str]:
    """Tabulate the launches with checked answers, with reasons and examples of failures."""
    baseline, rows, parts = study.recommendation.baseline, list[dict[str, str]](), list[str]()
    checked = [(launch.trial, launch.result.accuracy) for launch in study.launches]
    for trial, check in checked:
        if check is None:
            continue
        own = baseline is not None and baseline.fingerprint == trial.configuration.fingerprint
        engine = f"{trial.configuration.engine} {text.code(trial.configuration.fingerprint)}"
        outcome = {
            None: "compared with" if own else "not compared",
            True: "passes",
            False: "**fails**",
        }
        rows.append(
            {
                "#": str(trial.number),
                "Role": trial.role.value,
                "Configuration": "the baseline" if own else engine,
                "Score (95 % interval)": words.score(check.kind, check.score, check.ci95),
                "Baseline": words.score(check.kind, check.baseline, check.baseline_ci95),
                "Threshold": words.score(check.kind, check.threshold),
                "Outcome": outcome[check.passed],
                "Took": text.seconds(check.seconds),
            }
        )
        if check.examples:
            parts += [
                f"### Launch {trial.number} gives different answers",
                text.plain(f"{'; '.join(check.reasons)}."),
            ]
        for one in check.examples:
            lines = (
                f"prompt    {one.prompt}",
                f"baseline  {one.baseline}",
                f"here      {one.finalist}",
            )
            parts.append(text.block(redact.text("\n".join(lines))))
    known = [check for _, check in checked if check is not None]
    notes = dict.fromkeys(text.plain(check.note) + "." for check in known if check.note)
    return [_ANSWERS[known[0].kind], text.table(rows, "r  rrr r"), *notes, *parts] if known else []
