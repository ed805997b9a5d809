"""The conclusion in plain words, for the terminal and for the report."""

from __future__ import annotations

import math

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.engines.failure import FailureKind
from autotune.load.capacity.search import LOADS, SHAPES, described
from autotune.load.metrics import readable
from autotune.load.metrics.formulas import SHORT_S, Slo
from autotune.load.metrics.table import GOODPUT, VIOLATIONS, Metrics, title_of
from autotune.load.workloads import how_fixed, load_workload
from autotune.tuner.study.recommendation import (
    EXTERNAL,
    Choice,
    NearestMiss,
    Objective,
    PromisedValue,
    Recommendation,
    Regression,
    Verdict,
)

from . import text

WHO = {"baseline": "the baseline", "recommended": "the recommended command"}
_FEW_GOOD = 0.1
"""Share of good requests below which goodput shows that the load is too heavy."""
_WORSE = 1.1
"""Latency ratio to the baseline; smaller ratios are noise of one launch."""


def conclusion(outcome: Recommendation) -> str:
    """Summarise the study in a few sentences; no claim exceeds the evidence."""
    return " ".join(sentences(outcome))


def sentences(outcome: Recommendation) -> list[str]:
    """Return the conclusion, a paragraph per topic."""
    lost = trade_off(outcome)
    parts = [
        _sentence(outcome),
        _open(outcome),
        *_way_on(outcome),
        load_shape(outcome),
        _few_good(outcome),
    ]
    parts += [
        gain(outcome),
        prompts(outcome),
        f"It {lost}." if lost else "",
        crossing(outcome),
        _answers(outcome),
    ]
    return [*filter(None, [*parts, _speculation(outcome), _front(outcome), short_load(outcome)])]


def brief(outcome: Recommendation) -> list[str]:
    """Return the conclusion for a terminal: verdict with gain, its cost, and the remaining
    potential."""
    choice, baseline, cost = outcome.recommended, outcome.baseline, outcome.study_cost
    told = [_sentence(outcome), *_way_on(outcome)]
    if choice and baseline and choice.fingerprint != baseline.fingerprint:
        verdict, (name, unit) = outcome.qualified_verdict, title_of(choice.objective.metric)
        verdict = (
            verdict.capitalize()
            if outcome.origin is Evidence.MEASURED
            else f"{outcome.label}: {verdict}"
        )
        mine, theirs = readable.numbers(one.objective.value for one in (choice, baseline))
        metric, at = choice.objective.metric, carried(_of_objective(outcome))
        figure = " ".join(filter(None, (name, mine, unit, at)))
        gained = readable.gain_within(metric, outcome.gain_percent, outcome.gain_ci95)
        told = [
            f"{verdict}. {figure} on {choice.objective.workload} with {choice.engine}, baseline "
            f"{theirs} with {baseline.engine}: {gained}."
        ]
        if ends := outcome.gain_interval90_on_a_node:
            both = filter(None, (on_a_node(choice.objective), readable.gains(metric, ends)))
            told[0] += f" On a real node {', '.join(both)} (90 %)."
        if (over := outcome.gain_over_recipe) and over.ci95 is not None:
            led = readable.gain_in_words(metric, over.percent, f"{over.engine}'s recipe")
            told[0] += f" {led[:1].upper()}{led[1:]}."
        if outcome.verdict is Verdict.BETTER and outcome.origin.predicted:
            told.append(f"Measure it: autotune verify {outcome.study} --on process")
    told.insert(1, _open(outcome))
    lost = trade_off(outcome)
    told += [
        not_simulated(outcome),
        load_shape(outcome),
        _few_good(outcome),
        f"It {lost}." if lost else "",
    ]
    told += [crossing(outcome), _answers(outcome), _front(outcome)]
    costs = [*_trade_offs(outcome), *_slower(outcome)]
    costs += [] if outcome.address else beside_the_baseline(outcome)
    if choice and choice.longest_request_tokens:
        costs.append(f"Longest request {choice.longest_request_tokens:,} tokens.")
    costs += [f"Another command {other.label}: see the report." for other in outcome.alternatives]
    hours = f"The study took {readable.number(cost.node_hours)} node-hours." if cost else ""
    told += [
        " ".join(own_command(outcome)),
        " ".join(costs),
        f"{remaining(outcome)} {hours}".strip(),
    ]
    return [*filter(None, told)]


def _open(outcome: Recommendation) -> str:
    """Say that no finalist was measured; empty where one was, or there was nothing to confirm."""
    return f"Nothing is confirmed: {outcome.unconfirmed}." if outcome.unconfirmed else ""


def regression(one: Regression, outcome: Recommendation) -> list[str]:
    """Report a comparison of two versions: each command's change, possible causes, the verdict, the
    next step."""
    label = "" if one.evidence is Evidence.MEASURED else f" ({one.evidence.upper()})"
    metric = outcome.recommended.objective.metric if outcome.recommended else ""
    lines = [
        f"{one.engine} {one.to_version} against {one.from_version}{label}, {one.launches} launches:"
    ]
    for row in one.commands:
        told = f"does not run: {row.failure}" if row.failure else "no valid launch"
        if row.change_percent is not None:
            told = readable.gain_within(metric, row.change_percent, row.change_ci95)
        now = getattr(outcome, row.role)
        earlier = (
            ", an earlier one"
            if row.fingerprint and now and now.fingerprint != row.fingerprint
            else ""
        )
        lines.append(
            f"{WHO[row.role]}{earlier}: {told}, {text.count(row.launches, 'launch', 'launches')}"
        )
    if one.old == "rows":
        lines.append(
            "the old version was not launched: the study's launches are used instead, from another day"
        )
    if any(row.role == "baseline" for row in one.commands):
        ahead = {True: "still ahead of", False: "behind", None: "indistinguishable from"}[
            one.still_ahead
        ]
        lines.append(f"on {one.to_version} the recommended command is {ahead} the baseline")
    changed = [
        f"{row.get('knob', row.get('flag'))} {text.scalar(row['from'])} → {text.scalar(row['to'])}"
        for row in one.changed_defaults
    ]
    lines += [f"changed defaults, most likely cause first: {', '.join(changed)}"] if changed else []
    lines += [*one.notes, f"verdict: {one.verdict} (margin {one.margin_percent:g} %)"]
    if one.tune_again is not None:
        cost, hours = outcome.study_cost, ""
        if cost:
            hours = f" and {readable.number(cost.node_hours)} node-hours"
            hours += f", {readable.number(cost.cost)} in money" if cost.cost else ""
        took = f"the study took {outcome.launches} launches{hours}"
        lines.append(
            f"the best configuration changed: tune again, starting from this study ({took})"
        )
    return lines


def promises(outcome: Recommendation) -> list[str]:
    """Describe longest request and trade-offs of the recommended command, and its alternatives: a
    sentence each."""
    choice = outcome.recommended
    if not choice:
        return []
    kept, head = served(choice), []
    if kept:
        baseline = outcome.baseline.longest_request_tokens if outcome.baseline else None
        against = f", the baseline's {baseline:,}" if baseline is not None else ""
        head = [f"{kept[:1].upper()}{kept[1:]}{against}."]
    replayed = outcome.origin is Evidence.REPLAYED
    if outcome.gives_up is None or outcome.address or (replayed and not outcome.gives_up):
        return head  # what a table's rows promise is not known, nor what was recommended before it was recorded
    lines = [*_trade_offs(outcome), *beside_the_baseline(outcome), *own_command(outcome)]
    lines += (
        []
        if kept or outcome.origin is not Evidence.MEASURED
        else ["The longest request is unknown."]
    )
    for other in outcome.alternatives:
        metric = other.objective.metric
        lead = readable.gain_in_words(metric, other.lead_percent, "it")
        lead = f"is {lead}" if lead[0] in "+-" else lead
        ends = readable.gains(metric, other.lead_ci95)
        within = f", 95 % interval {ends}" if other.lead_ci95 else ""
        facts = (text.launches(other.objective.repeats), served(other))
        lines.append(
            f"The best command that {other.label} reaches {_value(outcome, other.objective)} "
            f"({'; '.join(filter(None, facts))}): the recommended one {lead}{within}."
        )
    return [*head, *lines, *_slower(outcome)]


def _trade_offs(outcome: Recommendation) -> list[str]:
    return [
        f"Trade-off: {one.knob} {text.scalar(one.to)} instead of {text.scalar(one.from_)}: {one.what}."
        for one in outcome.gives_up or ()
    ]


def beside_the_baseline(outcome: Recommendation) -> list[str]:
    """Compare what the recommended command gives its users with the baseline, value by value: a
    sentence or two."""
    given = {one.knob for one in outcome.gives_up or ()}
    rows = [one for one in outcome.promised if one.knob not in given]
    differ = [one for one in rows if one.baseline != one.recommended]
    changed = [f"{one.what} {one.recommended} (baseline: {one.baseline})" for one in differ]
    same = [_valued(one) for one in rows if one not in differ]
    told = [f"Changed: {', '.join(changed)}."] if changed else []
    return [*told, f"Same {', '.join(same)}."] if same else told


def _valued(one: PromisedValue) -> str:
    forms = {"context": f"context ({one.recommended})", "KV cache": f"{one.recommended} KV cache"}
    return forms.get(one.what, f"{one.what} {one.recommended}")


def own_command(outcome: Recommendation) -> list[str]:
    """Say what has become of the options of the user's own command that are no knobs: a sentence
    for each fate."""
    fates = {
        "Kept from your command": outcome.kept,
        "Translated": outcome.translated,
        "Dropped (--drop)": outcome.dropped,
    }
    return [f"{fate}: {'; '.join(options)}." for fate, options in fates.items() if options]


def _slower(outcome: Recommendation) -> list[str]:
    """Name the tail latencies of the recommended command that are longer than the baseline's, if
    any, in a sentence."""
    found = []
    for workload, row in outcome.workloads.items():
        for name in ("p99_ttft_ms", "p99_tpot_ms"):
            old, new = (row.baseline or {}).get(name), (row.recommended or {}).get(name)
            if old and new and new / old > _WORSE:
                times = f"{new / old:.1f} times the baseline's {readable.number(old)}"
                found.append(f"{text.title(name)} {readable.number(new)} on {workload}, {times}")
    return [f"Slower: {_listed(found)}."] if found else []


def trade_off_mark(outcome: Recommendation, fingerprint: str) -> str:
    """Return a mark with the trade-offs of a launched configuration, for a table; empty without
    any."""
    kinds = outcome.given_up.get(fingerprint)
    return f" (trade-off: {', '.join(kinds)})" if kinds else ""


def served(choice: Choice) -> str:
    """Return the longest request of a command, its limit, and its odds of starting; empty if
    unknown."""
    longest, tokens, odds = (
        choice.longest_request_tokens,
        choice.kv_cache_tokens,
        choice.odds_of_starting,
    )
    if longest is None:
        return ""
    cache = f"KV cache of a replica {tokens:,}" if tokens is not None else ""
    starts = f"odds of starting {100 * odds:.0f} %" if odds is not None else ""
    return f"longest request {longest:,} tokens ({', '.join(filter(None, (cache, starts)))})"


def predictions(outcome: Recommendation) -> list[str]:
    """Compare prediction and measurement of each command of a verified study: a sentence each."""
    lines = []
    for one in outcome.predictions:
        within = (
            f" (90 % interval {readable.interval(one.predicted.interval90)})"
            if one.predicted.interval90
            else ""
        )
        came = f"{one.failure}, not measured" if one.failure else "not measured"
        if one.measured:
            error = readable.percent(one.predicted.error_percent)
            came = (
                f"{outcome.label} {readable.number(one.measured.value)}, prediction error {error}"
            )
        predicted = f"predicted {readable.number(one.predicted.value)}{within}"
        predicted += f" without {', '.join(one.not_simulated)}" if one.not_simulated else ""
        lines.append(f"{one.role[:1].upper()}{one.role[1:]} ({one.engine}): {predicted}, {came}.")
    return lines


def not_simulated(outcome: Recommendation) -> str:
    """Name the settings on which no predicted figure depends; empty without any."""
    one, other = (
        choice.not_simulated if choice else [] for choice in (outcome.recommended, outcome.baseline)
    )
    names = [*one, *(f"{name} (the baseline's)" for name in other if name not in one)]
    return f"Not simulated: {', '.join(names)}." if names else ""


def remaining(outcome: Recommendation) -> str:
    """Return how much better another configuration may be (the regret); empty if unknown."""
    regret = outcome.regret
    if not regret or not outcome.recommended:
        return ""
    if regret.percent >= 100:
        return "The launches do not bound the regret: another configuration may be twice as good."
    # Of a cost, twice as good is half of it.
    better = abs(readable.changed(outcome.recommended.objective.metric, regret.percent) or 0.0)
    sure = f"{100 * regret.odds:.0f} % sure"
    return f"{sure} that no other configuration is more than {better:.1f} % better."


def carried(metrics: Metrics | None) -> str:
    """Name the load of a capacity, e.g. ``at 304 in flight``; empty for other metrics."""
    metrics = metrics or {}
    found = [(by, metrics.get(f"capacity_{name}")) for by, name in LOADS.items()]
    at = next((f"at {described(by, load)}" for by, load in found if load), "")
    speedup = metrics.get("capacity_speedup") if at else None
    return at + (f", {speedup:.3g} times as fast as recorded," if speedup else "")


def load_shape(outcome: Recommendation) -> str:
    """Describe the shape of the load of a capacity; empty for other metrics."""
    metrics = _of_objective(outcome)
    told = [shape for key, shape in SHAPES.items() if metrics.get(f"capacity_{key}")]
    return f"The load is {told[0]}." if told else ""


def _answers(outcome: Recommendation) -> str:
    """Summarise the check of answers; empty without a check."""
    check, worse = outcome.accuracy, outcome.failures.get(FailureKind.ACCURACY.value, 0)
    if not check or not outcome.recommended:
        return ""
    kinds = {"builtin": "agreement with the baseline", "tasks": "right answers", "command": "score"}
    fell = (
        f" {text.count(worse, 'launch', 'launches')} of other commands rejected for different answers."
        if worse
        else ""
    )
    if check.passed is None:
        return f"Answers not compared with the baseline's: too few launches were left.{fell}"
    if not outcome.baseline or outcome.recommended.fingerprint == outcome.baseline.fingerprint:
        return fell.strip()
    mine = score(check.kind, check.recommended, check.recommended_ci95)
    theirs, threshold = (
        score(check.kind, check.baseline, check.baseline_ci95),
        score(check.kind, check.threshold),
    )
    return f"Answers pass: {kinds[check.kind]} {mine}, the baseline's {theirs}, threshold {threshold}.{fell}"


def unjudged(outcome: Recommendation) -> str:
    """Say what is not known of the answers' quality."""
    if not outcome.accuracy or outcome.accuracy.passed is None:
        return "The quality of the answers was not judged."
    return "The quality of the answers was judged by the check above alone."


def score(kind: str, value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Return a score of a check of answers, with its interval; in percent except for a
    command's."""
    if value is None:
        return "–"
    unit = "" if kind == "command" else " %"
    within = f" ({readable.interval(interval)}{unit})" if interval else ""
    return f"{readable.number(value)}{unit}{within}"


def _speculation(outcome: Recommendation) -> str:
    """Describe the source of the draft acceptance if prompts are not real text."""
    told = [choice.speculation for choice in (outcome.recommended, outcome.baseline) if choice]
    one = next((one for one in told if one and one.random), None)
    if not outcome.recommended or not one or outcome.origin is Evidence.REPLAYED:
        return ""
    came = "".join(f"; {length:.3g} were counted" for length in list(one.accepted.values())[:1])
    drafted = text.count(one.drafted, "drafted token")
    if one.forced is None:
        return (
            f"Draft acceptance (speculative decoding) was measured on random tokens (at {drafted}"
            f"{came} per step), not on real prompts: compare the number of speculative tokens with "
            "`--workload prose` or `code`."
        )
    assumed = "" if outcome.origin is Evidence.MEASURED else ": assumed, not measured"
    return (
        f"With random prompts, draft acceptance was forced to {one.forced:.3g} tokens per step at {drafted}{came}"
        f" (the model's on text is {one.stated:g}, by {one.source}{assumed}); the command does not force it."
    )


def measured(outcome: Recommendation) -> str:
    """Describe the measurement of a server that somebody else runs, with its interval."""
    choice, label = (
        outcome.recommended,
        "Measured" if outcome.origin is Evidence.MEASURED else outcome.label,
    )
    if not choice:
        miss = outcome.nearest_miss
        return f"{outcome.address} does not meet the limits. {_missed(outcome, miss) if miss else ''}".rstrip()
    goal = choice.objective
    interval = f"95 % interval {readable.interval(goal.ci95)}" if goal.ci95 else "no interval"
    repeats = text.count(goal.repeats, "measurement")
    value = _value(outcome, goal, _of_objective(outcome))
    return f"{label}: {value} at {outcome.address} ({interval}, {repeats})."


def _way_on(outcome: Recommendation) -> list[str]:
    """Say how to search from a server that somebody else runs; empty for other studies and for a
    verification."""
    if not outcome.address or outcome.predictions:
        return []
    asked = f"--model {outcome.model} --hw {outcome.hardware} --gpus {outcome.gpus}"
    return [
        "autotune cannot reconfigure this server.",
        f"To search: autotune run {asked} --baseline '<your command>'",
        f"To check a result on it: autotune verify STUDY --on {EXTERNAL}{outcome.address}",
    ]


def _sentence(outcome: Recommendation) -> str:
    if outcome.address:
        return measured(outcome)
    where = f"for {outcome.model} on {outcome.gpus} x {outcome.hardware} ({outcome.label})"
    choice, baseline = outcome.recommended, outcome.baseline
    if not choice:
        nothing = f"No configuration is feasible {where}: there is no command to recommend."
        miss = outcome.nearest_miss
        return f"{nothing} {_missed(outcome, miss)}" if miss else nothing
    value = _value(outcome, choice.objective, _of_objective(outcome))
    figure = f"{choice.engine} {choice.engine_version} reaches {value} {where}"
    if choice.objective.interval90_on_a_node:
        figure += f", {on_a_node(choice.objective)} on a real node (90 %)"
    if not baseline:
        could = (
            "carry any load within the limits"
            if choice.objective.metric.startswith("capacity_")
            else "run"
        )
        return f"{figure}. The baseline could not {could}, so there is no comparison."
    if choice.fingerprint == baseline.fingerprint:
        known = "" if outcome.unconfirmed else ": no configuration is significantly better"
        return f"{figure}. This is the baseline{known}."
    both = outcome.workloads.get(baseline.objective.workload)
    value = _value(outcome, baseline.objective, both.baseline if both else None)
    theirs = f"{value} with {baseline.engine} {baseline.engine_version}"
    if outcome.verdict is Verdict.INDISTINGUISHABLE:
        return (
            f"{figure}. It is indistinguishable from the baseline ({theirs}) by these launches; of the equally good "
            "configurations, this command is the simplest."
        )
    return f"{figure}; the baseline reaches {theirs}."


def _of_objective(outcome: Recommendation) -> Metrics:
    """Return the metrics of the recommended command under the objective's workload."""
    row = (
        outcome.workloads.get(outcome.recommended.objective.workload)
        if outcome.recommended
        else None
    )
    return (row.recommended if row else None) or {}


def _missed(outcome: Recommendation, miss: NearestMiss) -> str:
    """Name the limits that the closest attempt violates, by how much, and the load search if it was
    not used."""
    at = "" if miss.load is None else f" at the lightest load, {miss.load:g}"
    parts = []
    for one in miss.broken or [miss]:
        if one.metric == VIOLATIONS:
            parts.append(f"{100 - one.value:.1f} % of the requests within the goodput limits")
        else:
            beyond = f"{readable.beyond(Slo.parse(one.slo).excess(one.value))} beyond the limit {one.slo}"
            parts.append(f"a {text.measure(one.metric, one.value)}{at}, {beyond}")
    told = f"{'Measured' if outcome.address else 'Closest attempt'}: {_listed(parts)}."
    broken = [
        one.metric for one in miss.broken if one.metric.endswith("_ms") or one.metric == VIOLATIONS
    ]
    try:
        workload = load_workload(next(iter(outcome.workloads)))
    except (BadInput, StopIteration):  # a file that is gone, or a load without a name of ours
        return told
    if (
        miss.load is not None
        or not broken
        or how_fixed(workload)
        or outcome.origin is Evidence.REPLAYED
    ):
        return told
    limits, how = "these limits" if len(miss.broken) > 1 else "this limit", ""
    if VIOLATIONS in broken:
        least = next(100 - one.limit for one in miss.broken if one.metric == VIOLATIONS)
        limits, how = f"the limits for {least:g} % of them", " with --slo"
    who = "it does not meet" if outcome.address else "no configuration meets"
    return (
        f"{told} With {workload.points[0].prompts:,} requests at once, {who} {limits}; "
        f"--find-load concurrency{how} finds the highest load that does."
    )


def _value(outcome: Recommendation, objective: Objective, metrics: Metrics | None = None) -> str:
    weighted = "" if objective.workload in outcome.workloads else " (weighted geometric mean)"
    at = f" {at}" if objective.metric.startswith("capacity_") and (at := carried(metrics)) else ""
    return (
        f"a {text.measure(objective.metric, objective.value)}{at} on {objective.workload}{weighted}"
    )


def gain(outcome: Recommendation) -> str:
    """Return the gain with its intervals, and the verdict, in a sentence or two."""
    choice, baseline = outcome.recommended, outcome.baseline
    if outcome.address:
        return ""
    if not choice or not baseline:
        unopposed = ": the baseline did not run, so the gain is unknown" if choice else ""
        return f"Verdict: {outcome.verdict.value}{unopposed}."
    if outcome.gain_percent is None or choice.fingerprint == baseline.fingerprint:
        return f"Verdict: {outcome.verdict.value}, so no gain is claimed."
    repeats = " against ".join(text.launches(one.objective.repeats) for one in (choice, baseline))
    metric, sure = choice.objective.metric, f"no interval, from {repeats}"
    if outcome.gain_ci95:
        sure = f"95 % interval {readable.gains(metric, outcome.gain_ci95)}, from {repeats}"
    if ends := outcome.gain_interval90_on_a_node:
        sure += f"; 90 % prediction interval on a real node {readable.gains(metric, ends)}"
    meaning = (
        ": the difference may be chance" if outcome.verdict is Verdict.INDISTINGUISHABLE else ""
    )
    if outcome.verdict is Verdict.BETTER and outcome.origin.predicted:
        meaning = f": measure these commands with `autotune verify {outcome.study} --on process`"
    elif outcome.verdict is Verdict.BETTER and outcome.gain_ci95:
        meaning = ": the test of the finals passed"
    gained, over = readable.gain_in_words(metric, outcome.gain_percent), outcome.gain_over_recipe
    told = f"Gain {gained} ({sure})" if gained[0] in "+-" else f"It {gained} ({sure})"
    if over:
        recipe = f"{over.engine}'s recipe {over.recipe}"
        against = readable.gain_within(metric, over.percent, over.ci95, recipe)
        told += f"; {against if over.ci95 else f'the command is {recipe}'}"
    return f"{told}. Verdict: {outcome.qualified_verdict}{meaning}."


def on_a_node(goal: Objective) -> str:
    """Return the interval of a predicted objective on a real node; empty if none."""
    ends = goal.interval90_on_a_node
    return f"{readable.interval(ends)} {title_of(goal.metric)[1]}".rstrip() if ends else ""


def prompts(outcome: Recommendation) -> str:
    """Compare the gain of the finals with the search's estimate; empty if the launches do not show
    it."""
    row = next(iter(outcome.workloads.values()), None)
    if not outcome.recommended or not row or not row.prompts:
        return ""
    told = f"The finals used prompts that the search {'had used' if row.prompts == 'seen' else 'had not used'}"
    told += f" ({row.sent})" if row.sent else ""
    gained, expected, within = (
        outcome.gain_percent,
        outcome.search_gain_percent,
        outcome.search_gain_ci95,
    )
    if expected is None or gained is None or not within:
        return f"{told}."
    halves = [(high - low) / 2 for low, high in filter(None, (within, outcome.gain_ci95))]
    shrinks = len(halves) > 1 and expected - gained > math.hypot(*halves)
    metric = outcome.recommended.objective.metric
    sure = f"(95 % interval {readable.gains(metric, within)})"
    told += f"; the search's estimate was {readable.gain(metric, expected)} {sure}"
    return told + (
        ": the gain on new prompts is smaller by more than chance explains." if shrinks else "."
    )


def short_load(outcome: Recommendation) -> str:
    """Warn of a load too short to represent a busy server; empty for longer loads."""
    seconds = _of_objective(outcome).get("duration")
    if seconds is None or seconds >= SHORT_S:
        return ""
    return f"The load took {seconds:.0f} s, mostly ramp-up and drain: use more prompts."


def _few_good(outcome: Recommendation) -> str:
    """Warn if the objective is goodput and almost no request is good; empty otherwise."""
    choice, metrics = outcome.recommended, _of_objective(outcome)
    good, done = metrics.get(GOODPUT), metrics.get("request_throughput")
    if (
        not choice
        or choice.objective.metric != GOODPUT
        or good is None
        or not done
        or good / done >= _FEW_GOOD
    ):
        return ""
    return (
        f"Only {100 * good / done:.1g} % of the requests are good: this load is far beyond the limits, so a gain means "
        "little; --find-load concurrency with --slo finds a load that meets them."
    )


def crossing(outcome: Recommendation) -> str:
    """Name the faster command by concurrency, in one or two sentences; empty without two curves."""
    curves = outcome.curves
    both = [p for p in curves.points if p.gain_percent is not None] if curves else []
    if not curves or not both:
        return ""
    open_ = _listed([str(p.concurrency) for p in both if p.faster is None])
    if all(p.faster is None for p in both):
        return f"At {open_} in flight the two are indistinguishable: they differ no more than repeated launches."
    said = []
    for one in curves.crossings:
        low, high = one.between
        within = f" (between {low:.3g} and {high:.3g})" if high > low else ""
        at = f"Below about {one.concurrency:.3g} in flight{within}"
        said.append(f"{at} {WHO[one.below]} is faster, above {WHO[one.above]}.")
    for side, who in WHO.items() if not said else ():
        if at := _listed([str(p.concurrency) for p in both if p.faster == side]):
            said.append(f"{who[:1].upper()}{who[1:]} is faster at {at} in flight.")
    return " ".join(
        [*said, f"At {open_} in flight the two are indistinguishable." if open_ else ""]
    ).strip()


def money(outcome: Recommendation) -> list[str]:
    """Describe the study's cost; empty where no time is known."""
    cost = outcome.study_cost
    if not cost:
        return []
    whose = {Evidence.SIMULATED: " of the simulated node", Evidence.REPLAYED: ", as recorded"}.get(
        outcome.evidence, ""
    )
    hours = f"{readable.number(cost.node_hours)} node-hours{whose}"
    if cost.gpu_hours is not None:
        hours += f" ({readable.number(cost.gpu_hours)} GPU-hours)"
    if ranking := cost.node_hours_by_fidelity.get("random_weights", 0.0):
        hours += f", {readable.number(ranking)} node-hours of them for launches with random weights"
    return [f"The study took {hours}.", *filter(None, [cost.in_money])]


def trade_off(outcome: Recommendation) -> str:
    """Name the workloads on which the recommended command is best and those on which it loses,
    without a subject."""
    row = next((row for row in outcome.matrix if row.role == "recommended"), None)
    if not row or len(row.workloads) < 2:
        return ""
    lost = [
        f"loses {abs(readable.changed(row.objective.metric, cell.gain_percent) or 0):.0f} % on {name}"
        for name, cell in row.workloads.items()
        if cell.gain_percent is not None
        and cell.gain_percent < 0
        and (cell.ci95 is None or cell.ci95[1] < 0)
    ]
    if not lost:
        return ""
    first = [name for name, cell in row.workloads.items() if cell.best]
    best = [f"has the best mean on {_listed(first)}"] if first else []
    return f"{_listed([*best, *lost])} against the baseline"


def _front(outcome: Recommendation) -> str:
    if not outcome.front:
        return ""
    goals = [
        text.title(goal.metric) for goal in (outcome.front[0].objective, outcome.front[0].second)
    ]
    points = text.count(len(outcome.front), "configuration makes", "configurations make")
    return f"{points} the front of {goals[0]} against {goals[1]}; the report gives the command of each."


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
