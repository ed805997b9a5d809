"""The launches in tables: best per engine, finals, nodes, all launches, failures, exclusions."""

from __future__ import annotations

from statistics import mean, stdev

from autotune import redact
from autotune.outputs.report import StudyRecord, text, words
from autotune.outputs.report.figures import (
    average,
    best_per_engine,
    broken_slos,
    by_configuration,
    differing,
    lower_is_better,
    objective_value,
    references,
    values_of,
)
from autotune.study.recommendation import NodeShare
from autotune.trial import Launch, Role, State


def _label(study: StudyRecord) -> str:
    return words.label(study.recommendation.evidence)


def engines(study: StudyRecord) -> str:
    """The best configuration of each engine, and the engines that were not searched."""
    usual = references(study.launches)
    rows = []
    for launch, value, count in best_per_engine(study):
        engine = launch.trial.configuration.engine
        changed = text.knobs(differing(launch, usual[engine])) or "its reference configuration"
        rows.append((f"{engine} {launch.trial.engine_version}", text.number(value), str(count), changed))
    headings = (
        "Engine",
        text.title(study.spec.objective),
        "Launches",
        "Best configuration, where it differs from the reference",
    )
    table = text.table(headings, rows, " rr") or "No launch gave a figure within the limits."
    parts = [f"## Best configuration per engine ({_label(study)})", table]
    excluded = study.recommendation.excluded
    if excluded:
        parts.append("Not searched:")
        parts.append("\n".join(f"- **{text.plain(row.engine)}**: {text.plain(row.reason)}" for row in excluded))
    return "\n\n".join(parts)


def finals(study: StudyRecord) -> str:
    """Each repeat of the finalists and the baseline."""
    if not any(launch.trial.role is Role.FINAL for launch in study.launches):
        return ""
    compared = (launch for launch in study.launches if launch.trial.role in (Role.FINAL, Role.BASELINE, Role.CONTROL))
    rows = []
    for fingerprint, group in by_configuration(study, compared).items():
        values = values_of(study, group)
        each = ", ".join(f"{text.number(objective_value(study, launch))} (#{launch.trial.number})" for launch in group)
        spread = f"{stdev(values) / mean(values) * 100:.1f} %" if len(values) > 1 and mean(values) else "–"
        name = f"{_who(study, fingerprint, group)} {text.code(fingerprint)}"
        rows.append((name, each, text.number(average(values)), spread))
    headings = ("Configuration", "Each launch", "Mean", "Spread (standard deviation)")
    table = text.table(headings, rows, "  rr")
    note = (
        f"{text.title(study.spec.objective)}, {_label(study)}. Every repeat is a fresh launch, taken in turn; the "
        "baseline's earlier launches count too, those of the search do not."
    )
    return f"## Finals ({_label(study)})\n\n{note}\n\n{table}"


def _who(study: StudyRecord, fingerprint: str, group: list[Launch]) -> str:
    """Whose configuration it is; one that was launched once was there to show what a knob of the winner adds."""
    chosen, baseline = study.recommendation.recommended, study.recommendation.baseline
    own = {fingerprint, *(launch.trial.configuration.fingerprint for launch in group)}
    pairs = (("recommended", chosen), ("baseline", baseline))
    names = [name for name, choice in pairs if choice is not None and choice.fingerprint in own]
    if names or len(group) > 1:
        return " and ".join(names) or "finalist"
    configuration = group[0].trial.configuration
    if chosen is None or configuration.engine != chosen.engine:
        return "single"
    back = {name: value for name, value in configuration.knobs.items() if value != chosen.config.get(name)}
    return f"recommended, but {text.knobs(back)}"


def resolutions(study: StudyRecord) -> str:
    """What the engines made of their arguments, where it is not what was asked for; one sentence each."""
    lines = []
    for row in study.recommendation.resolutions:
        several, twin = len(row.launches) > 1, ""
        numbers = ", ".join(map(str, row.launches[:8])) + (" …" if len(row.launches) > 8 else "")
        if row.repeats_of is not None:
            twin = f", so that {'they are repeats' if several else 'it is a repeat'} of launch {row.repeats_of}"
        lines.append(f"- {row.note} ({'launches' if several else 'launch'} {numbers}){twin}.")
    if not lines:
        return ""
    asked = [row.result.resolved for row in study.launches]
    note = f"Read back from {sum(r is not None for r in asked)} of {len(asked)} launches, in the engines' own words."
    return "\n\n".join([f"## What the engines made of it ({_label(study)})", note, "\n".join(lines)])


def launches(study: StudyRecord) -> str:
    """Every launch in its order."""
    usual = references(study.launches)
    values = values_of(study, study.launches)
    best = (min if lower_is_better(study.spec.objective) else max)(values, default=0.0)
    rows = []
    for launch in study.launches:
        engine = launch.trial.configuration.engine
        is_reference = launch.trial.configuration == usual[engine].trial.configuration
        knobs = "reference" if is_reference else text.knobs(differing(launch, usual[engine]))
        value = objective_value(study, launch)
        share = f"{value / best * 100:.0f} %" if value is not None and best else "–"
        head = (str(launch.trial.number), launch.trial.role.value, engine, knobs)
        rows.append((*head, text.number(value), share, _state(study, launch)))
    headings = ("#", "Role", "Engine", "Knobs other than the reference's", text.title(study.spec.objective))
    table = text.table((*headings, "Of the best", "State"), rows, "r   rr")
    known = [
        f"- {engine} (launch {launch.trial.number}): {text.knobs(launch.trial.configuration.knobs)}"
        for engine, launch in usual.items()
    ]
    parts = [f"## Launches ({_label(study)})", table, "Reference of each engine, all knobs:" if known else ""]
    return "\n\n".join(part for part in (*parts, "\n".join(known)) if part)


def _state(study: StudyRecord, launch: Launch) -> str:
    result = launch.result
    if result.failure is not None:
        return f"{result.state.value}: {words.failed(result.failure)}"
    if study.spec.workloads[0] in result.shortened:
        return "cut short by an earlier version: not scored"
    broken = broken_slos(study, launch) if result.state is State.COMPLETE else []
    if broken:
        return f"breaks {text.plain('; '.join(broken))}"
    return "invalid measurement" if result.state is State.INVALID else result.state.value


def failures(study: StudyRecord) -> str:
    """What failed, by kind and message, with the telling line of the log."""
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch in study.launches:
        if (failure := launch.result.failure) is not None:
            fault = "" if failure.blames_the_configuration else " (not the configuration's fault)"
            groups.setdefault((f"{words.failed(failure)}{fault}", failure.message), []).append(launch)
    parts = [_failure(study, kind, message, group) for (kind, message), group in sorted(groups.items())]
    return "\n\n".join(["## Configurations that failed, and why", *(parts or ["None failed."])])


def _failure(study: StudyRecord, kind: str, message: str, group: list[Launch]) -> str:
    usual = references(study.launches)
    lines = [f"### {kind}", text.plain(redact.text(message))]
    excerpt = next((row.result.failure.log_excerpt for row in group if row.result.failure), "")
    if excerpt:
        lines.append(text.block(redact.text(excerpt)))
    rows = []
    for launch in group:
        engine = launch.trial.configuration.engine
        knobs = text.knobs(differing(launch, usual[engine])) or "reference"
        rows.append(f"- launch {launch.trial.number}, {engine} {launch.trial.engine_version}: {knobs}")
    return "\n\n".join([*lines, "\n".join(rows)])


def nodes(study: StudyRecord) -> str:
    """A table of the nodes, and a sentence for each that is off beyond noise; empty where there was one."""
    shares = study.recommendation.nodes
    if not shares:
        return ""
    headings = (
        "Node",
        "Launches",
        f"Baseline: {text.title(study.spec.objective)}",
        "Against the others",
        "Corrected by",
    )
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
    off = [sentence for share in shares if (sentence := _sentence(share))]
    said = "\n".join(off) if off else "No node differs from the others beyond noise."
    return "\n\n".join([f"## Nodes ({_label(study)})", note, text.table(headings, rows, " rrrr"), said])


def _sentence(share: NodeShare) -> str:
    if not share.certain:
        return ""
    how = "slower" if share.offset_percent < 0 else "faster"
    return (
        f"- Node {text.code(share.node)} is {abs(share.offset_percent):.0f} % {how} than the others, which noise does "
        "not explain: nothing more was launched there, and scores of its launches are corrected."
    )
