"""The launches in tables: best per engine, finals, nodes, all launches, failures, exclusions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean, mean, stdev

from autotune import redact
from autotune.outputs.report import StudyRecord, text, words
from autotune.search.equivalents import canonical_of
from autotune.search.objective import achieved, maximises
from autotune.study.places import is_beside
from autotune.study.recommendation import Choice, NodeShare
from autotune.study.spec import StudySpec
from autotune.trial import Configuration, Launch, Metrics, Role, Scalar, State

FINALS = (Role.FINAL, Role.BASELINE, Role.CONTROL)
"""The roles of launches that count as evidence; what the search launched decided what came into the finals."""


def engines(study: StudyRecord) -> list[str]:
    """The best configuration of each engine, and the engines that were not searched."""
    usual = references(study.launches)
    rows = []
    for launch, value, count in best_per_engine(study):
        engine = launch.trial.configuration.engine
        changed = text.knobs(differing(launch, usual[engine])) or "its reference configuration"
        changed += words.marked(study.recommendation, launch.trial.configuration.fingerprint)
        rows.append((f"{engine} {launch.trial.engine_version}", text.number(value), str(count), changed))
    best = "Best configuration, where it differs from the reference"
    table = text.table(("Engine", text.title(study.spec.objective), "Launches", best), rows, " rr")
    excluded = [f"- **{text.plain(e.engine)}**: {text.plain(e.reason)}" for e in study.recommendation.excluded]
    left_out = ["Not searched:", "\n".join(excluded)] if excluded else []
    shown = [launch.trial.configuration for launch, _, _ in best_per_engine(study)]
    return [table or "No launch gave a figure within the limits.", *layouts(study, shown), *left_out]


def layouts(study: StudyRecord, shown: Iterable[Configuration]) -> list[str]:
    """Footnotes on layouts whose options are not the knobs (`words.layouts`), as sentences."""
    return [text.plain(f"{line}.") for line in words.layouts(study.spec, shown)]


def finals(study: StudyRecord) -> list[str]:
    """Each repeat of the finalists and the baseline."""
    rows = []
    for fingerprint, who, group in finalists(study):
        values = values_of(study, group)
        each = ", ".join(f"{text.number(achieved(study.spec, row))} (#{row.trial.number})" for row in group)
        spread = f"{stdev(values) / mean(values) * 100:.1f} %" if len(values) > 1 and mean(values) else "–"
        who = f"{who} {text.code(fingerprint)}{words.marked(study.recommendation, fingerprint)}"
        rows.append((who, each, text.number(average(values)), spread))
    headings = ("Configuration", "Each launch", "Mean", "Spread (standard deviation)")
    return [text.table(headings, rows, "  rr")]


def finalists(study: StudyRecord) -> list[tuple[str, str, list[Launch]]]:
    """Fingerprint, role and launches of each configuration that the finals compared.

    What was launched once is none of them, unless it is recommended or the baseline: it shows what a setting adds.
    """
    if not any(launch.trial.role is Role.FINAL for launch in study.launches):
        return []
    sides = (("recommended", study.recommendation.recommended), ("baseline", study.recommendation.baseline))
    compared = (launch for launch in undisturbed(study) if launch.trial.role in FINALS)
    rows = []
    for fingerprint, group in by_configuration(study, compared).items():
        own = {fingerprint, *(launch.trial.configuration.fingerprint for launch in group)}
        names = [name for name, choice in sides if choice is not None and choice.fingerprint in own]
        if names or len(group) > 1:
            rows.append((fingerprint, " and ".join(names) or "finalist", group))
    return rows


def resolutions(study: StudyRecord) -> list[str]:
    """Describe the arguments that engines resolved otherwise than asked; one sentence each."""
    lines = []
    for row in study.recommendation.resolutions:
        several, twin = len(row.launches) > 1, ""
        numbers = ", ".join(map(str, row.launches[:8])) + (" …" if len(row.launches) > 8 else "")
        if row.repeats_of is not None:
            twin = f", so that {'they are repeats' if several else 'it is a repeat'} of launch {row.repeats_of}"
        lines.append(f"- {row.note} ({'launches' if several else 'launch'} {numbers}){twin}.")
    told = sum(row.result.resolved is not None for row in study.launches)
    note = f"Read back from {told} of {len(study.launches)} launches, in the engines' own words."
    return [note, "\n".join(lines)] if lines else []


def launches(study: StudyRecord) -> list[str]:
    """Every launch in its order."""
    usual = references(study.launches)
    values = values_of(study, study.launches)
    best = (max if maximises(study.spec.objective) else min)(values, default=0.0)
    rows = []
    for launch in study.launches:
        engine = launch.trial.configuration.engine
        is_reference = launch.trial.configuration == usual[engine].trial.configuration
        knobs = "reference" if is_reference else text.knobs(differing(launch, usual[engine]))
        knobs += words.marked(study.recommendation, launch.trial.configuration.fingerprint)
        value = achieved(study.spec, launch)
        share = f"{value / best * 100:.0f} %" if value is not None and best else "–"
        head = (str(launch.trial.number), launch.trial.role.value, engine, knobs)
        held = (launch.result.kv_cache_tokens, launch.result.longest_request_tokens)
        cells = (text.number(value), share, *("–" if n is None else f"{n:,}" for n in held))
        rows.append((*head, *cells, _state(study, launch)))
    headings = ("#", "Role", "Engine", "Knobs other than the reference's", text.title(study.spec.objective))
    told = ("Of the best", "KV cache (tokens of a replica)", "Longest request (tokens)", "State")
    table = text.table((*headings, *told), rows, "r   rrrr")
    known = [
        f"- {engine} (launch {launch.trial.number}): {text.knobs(_varied(study, launch)) or 'nothing differs'}"
        for engine, launch in usual.items()
    ]
    note = "Reference of each engine, the knobs in which its launches differ:" if known else ""
    return [table, note, "\n".join(known)]


def _varied(study: StudyRecord, reference: Launch) -> dict[str, Scalar]:
    """The reference's values of the knobs in which some launch of its engine differs from it."""
    engine, knobs = reference.trial.configuration.engine, reference.trial.configuration.knobs
    rows = [launch for launch in study.launches if launch.trial.configuration.engine == engine]
    names = {name for launch in rows for name in differing(launch, reference)}
    return {name: value for name, value in knobs.items() if name in names}


def _state(study: StudyRecord, launch: Launch) -> str:
    result = launch.result
    if result.failure is not None:
        return f"{result.state.value}: {words.failed(result.failure)}"
    broken = broken_slos(study.spec, launch) if result.state is State.COMPLETE else []
    if broken:
        return f"breaks {text.plain('; '.join(broken))}"
    return "invalid measurement" if result.state is State.INVALID else result.state.value


def failures(study: StudyRecord) -> list[str]:
    """List failures by kind and message, with the telling line of the log."""
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch in study.launches:
        if (failure := launch.result.failure) is not None:
            fault = "" if failure.blames_the_configuration else " (not the configuration's fault)"
            groups.setdefault((f"{words.failed(failure)}{fault}", failure.message), []).append(launch)
    parts = [_failure(kind, message, group) for (kind, message), group in sorted(groups.items())]
    return parts or ["None failed."]


def _failure(kind: str, message: str, group: list[Launch]) -> str:
    numbers = ", ".join(f"{row.trial.number} ({row.trial.configuration.engine})" for row in group)
    lines = [f"### {kind}", f"{text.plain(redact.text(message))} Launches: {text.plain(numbers)}."]
    excerpt = next((row.result.failure.log_excerpt for row in group if row.result.failure), "")
    if excerpt:
        lines.append(text.block(redact.text(excerpt)))
    return "\n\n".join(lines)


def nodes(study: StudyRecord) -> list[str]:
    """A table of the nodes, and a sentence for each that is off beyond noise; empty where there was one."""
    shares = study.recommendation.nodes
    if not shares:
        return []
    baseline = f"Baseline: {text.title(study.spec.objective)}"
    headings = ("Node", "Launches", baseline, "Against the others", "Corrected by")
    rows = [
        (
            text.code(share.node),
            str(share.launches),
            text.number(share.baseline),
            text.percent(share.difference_percent),
            text.percent(share.offset_percent),
        )
        for share in shares
    ]
    note = (
        "The baseline ran on every node. A difference beyond noise is corrected in the search. A configuration and the "
        "baseline are compared by launches on the same node, whatever it is like."
    )
    off = "\n".join(_sentence(share) for share in shares if share.certain)
    table = text.table(headings, rows, " rrrr")
    if disturbed := sorted(_disturbed(study)):
        names = " and ".join(map(text.code, disturbed))
        off = f"What ran side by side on {names} counts for nothing; launches were made one at a time from there on."
    return [note, table, off or "No node differs from the others beyond noise."]


def _sentence(share: NodeShare) -> str:
    how = "slower" if share.offset_percent < 0 else "faster"
    return (
        f"- Node {text.code(share.node)} is {abs(share.offset_percent):.0f} % {how} than the others, which noise does "
        "not explain: nothing more was launched there, and scores of its launches are corrected."
    )


def broken_slos(spec: StudySpec, launch: Launch) -> list[str]:
    """The SLOs that a launch breaks, by how much, each with its value; a metric that is missing breaks its SLO."""
    metrics = launch.result.metrics.get(spec.workloads[0], {})
    broken = []
    for slo in spec.slos:
        value = metrics.get(slo.metric)
        if not isinstance(value, int | float):
            broken.append(f"{slo} (not measured)")
        elif slo.violation(value) > 0:
            broken.append(f"{slo} by {100 * slo.excess(value):.0f} % ({text.number(value)})")
    return broken


def by_configuration(study: StudyRecord, launches: Iterable[Launch]) -> dict[str, list[Launch]]:
    """Fingerprint to its launches, equivalents included, in the order of the first."""
    launched = {launch.trial.configuration.fingerprint for launch in study.launches}
    own = (row.trial.configuration.fingerprint for row in study.launches if row.trial.role is Role.BASELINE)
    canonical = canonical_of(study.launches, launched, next(own, None))
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        fingerprint = launch.trial.configuration.fingerprint
        groups.setdefault(canonical.get(fingerprint, fingerprint), []).append(launch)
    return groups


def _disturbed(study: StudyRecord) -> set[str]:
    """The shares of the GPUs on which launches slowed each other: nothing of what ran there counts."""
    return {share.node for share in study.recommendation.nodes if share.baseline is None and is_beside(share.node)}


def undisturbed(study: StudyRecord) -> list[Launch]:
    """The launches that count."""
    disturbed = _disturbed(study)
    return [launch for launch in study.launches if launch.result.node not in disturbed]


def counted(group: Sequence[Launch]) -> list[Launch]:
    """The launches of one configuration that count as evidence: of the finals, and the baseline's own.

    Those of the search decided what came into the finals, so they are biased; they count where there are no others.
    """
    chosen = [launch for launch in group if launch.trial.role in FINALS]
    return chosen or list(group)


def average(values: Sequence[float]) -> float | None:
    """The geometric mean, as in the recommendation; None of nothing."""
    positive = [value for value in values if value > 0]
    return geometric_mean(positive) if positive else None


def values_of(study: StudyRecord, group: Iterable[Launch]) -> list[float]:
    """The objective of each launch that has a valid figure."""
    return [value for launch in group if (value := achieved(study.spec, launch)) is not None]


def best_per_engine(study: StudyRecord) -> list[tuple[Launch, float, int]]:
    """Per engine the best configuration that keeps the SLOs: a launch, the mean, how many launches.

    The best engine comes first.
    """
    sign = 1 if maximises(study.spec.objective) else -1
    best: dict[str, tuple[Launch, float, int]] = {}
    for launches in by_configuration(study, undisturbed(study)).values():
        group = [launch for launch in counted(launches) if launch.result.state is State.COMPLETE]
        values = values_of(study, group)
        middle = average(values)
        if middle is None or any(broken_slos(study.spec, launch) for launch in group):
            continue
        engine = group[0].trial.configuration.engine
        if engine not in best or sign * middle > sign * best[engine][1]:
            best[engine] = (group[0], middle, len(values))
    return sorted(best.values(), key=lambda row: -sign * row[1])


def references(launches: Sequence[Launch]) -> dict[str, Launch]:
    """Per engine the launch that the others are described against: its default, else the baseline, else its first."""
    order = {Role.DEFAULT: 0, Role.BASELINE: 1}
    chosen: dict[str, Launch] = {}
    for launch in sorted(launches, key=lambda row: (order.get(row.trial.role, 2), row.trial.number)):
        chosen.setdefault(launch.trial.configuration.engine, launch)
    return chosen


def differing(launch: Launch, reference: Launch) -> dict[str, Scalar]:
    """The knobs in which a launch differs from the reference."""
    usual = reference.trial.configuration.knobs
    return {
        name: value
        for name, value in launch.trial.configuration.knobs.items()
        if name not in usual or usual[name] != value
    }


def capacities(study: StudyRecord) -> list[str]:
    """A table for the baseline and one for the recommended configuration; empty where no load was searched for."""
    outcome = study.recommendation
    if not study.spec.load_key:
        return []
    chosen = {"Recommended": outcome.recommended, "Baseline": outcome.baseline}
    parts: list[str] = []
    for name, choice in chosen.items():
        launch = _launch(study, choice) if choice is not None else None
        if launch is not None:
            parts += [f"### {name}, launch {launch.trial.number}", *_curve(study, launch)]
    return parts


def _launch(study: StudyRecord, choice: Choice) -> Launch | None:
    """The last launch of a configuration that was measured, of the finals where it has any."""
    own = [
        launch
        for launch in study.launches
        if launch.trial.configuration.fingerprint == choice.fingerprint and launch.result.state is State.COMPLETE
    ]
    return max(own, key=lambda row: (row.trial.role is Role.FINAL, row.trial.number), default=None)


def _curve(study: StudyRecord, launch: Launch) -> list[str]:
    metrics, key = launch.result.metrics.get(study.spec.workloads[0], {}), study.spec.load_key
    limited = list(dict.fromkeys(slo.metric for slo in study.spec.slos))
    shown = ["steady_total_token_throughput", *limited]
    unit = "In flight" if key == "concurrency" else "Requests per second"
    rows = []
    for row in metrics.get("curve") or ():
        per_token_ms = row.get("mean_tpot_ms")
        per_user = 1e3 / per_token_ms if per_token_ms else None
        values = [text.number(row.get(name)) for name in shown]
        rows.append((f"{row[key]:g}", *values, text.number(per_user), "yes" if row.get("kept") else "no"))
    headings = (unit, *map(text.title, shown), "Output tok/s per user", "Keeps the limits")
    return [_capacity(metrics, key), text.table(headings, rows, "r" * (len(headings) - 1))]


def _capacity(metrics: Metrics, key: str) -> str:
    capacity, above = metrics.get(f"capacity_{key}"), metrics.get("capacity_broken_at")
    unit = "in flight" if key == "concurrency" else "requests per second"
    if not capacity:
        return "No load keeps the limits: the lightest breaks one."
    told = f"Capacity: {capacity:g} {unit}"
    told += f"; {above:g} break a limit." if above else ", the heaviest load that was tried: it may be higher."
    if (dead := metrics.get("capacity_died_at")) is not None:
        told += f" The server died at {dead:g}."
    if (pair := metrics.get("capacity_not_monotone")) is not None:
        told += f" Not monotone: {pair[0]:g} break a limit that {pair[1]:g} keep."
    return told
