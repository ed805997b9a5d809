"""The conclusion in sentences, for the terminal and for the report."""

import math

from autotune.base import BadInput, Evidence, Interval, by_key
from autotune.engines import FailureKind
from autotune.load.capacity.goal import carried, shape_carried
from autotune.load.metrics import readable
from autotune.load.metrics.formulas import SHORT_S, Slo
from autotune.load.metrics.table import GOODPUT, HEADLINE, VIOLATIONS, Metrics, title_of
from autotune.load.workloads import how_fixed, load_workload
from autotune.tuner.study.recommendation import (
    EXTERNAL,
    Choice,
    Contribution,
    NearestMiss,
    Objective,
    Recommendation,
    Regression,
    Verdict,
)
from autotune.tuner.trial import named

from . import text

WHO = {"baseline": "the baseline", "recommended": "the recommended command"}
_FEW_GOOD = 0.1
"""Share of good requests below which goodput shows that the load is too heavy."""
_MOST_NOT_TRIED, _LEAST_EXPECTED = 5, 0.1
"""Values that no launch had, and the percent expected of them, from which they are named."""
_WORSE = 1.1
"""Latency ratio to the baseline; smaller ratios are noise of one launch."""


def paragraphs(outcome: Recommendation) -> list[str]:
    """Return the conclusion, a paragraph per topic; no claim exceeds the evidence."""
    parts = [
        _sentence(outcome),
        _unconfirmed(outcome),
        *_way_on(outcome),
        shape_carried(_of_objective(outcome)),
        _few_good(outcome),
        gain(outcome),
        prompts(outcome),
        _loss(outcome),
        crossing(outcome),
        drafted(outcome),
        _answers(outcome),
        _speculation(outcome),
        _front(outcome),
        short_load(outcome),
    ]
    return [part for part in parts if part]


def brief(outcome: Recommendation) -> list[str]:
    """Return the conclusion for a terminal: verdict with gain, its cost, and the remaining
    potential."""
    choice = outcome.recommended
    cost = outcome.study_cost
    costs = []
    first, *rest = _verdict(outcome) or (_sentence(outcome), *_way_on(outcome))
    costs += [*_trade_offs(outcome), *_slower(outcome)]
    if not outcome.address:
        costs += promised_values(outcome)
    if choice and choice.longest_request_tokens:
        costs.append(f"Longest request {choice.longest_request_tokens:,} tokens.")
    costs += [f"Another command {other.label}: see the report." for other in outcome.alternatives]
    hours = f"The study took {readable.number(cost.node_hours)} node-hours." if cost else ""
    parts = [
        first,
        _unconfirmed(outcome),
        *rest,
        not_simulated(outcome),
        shape_carried(_of_objective(outcome)),
        _few_good(outcome),
        _loss(outcome),
        crossing(outcome),
        drafted(outcome),
        _answers(outcome),
        _front(outcome),
        " ".join(own_command(outcome)),
        " ".join(costs),
        f"{remaining(outcome)} {hours}".strip(),
    ]
    return [part for part in parts if part]


def _verdict(outcome: Recommendation) -> list[str]:
    """Return the verdict on another command than the baseline with its gain, and how to measure a
    prediction; [] for other outcomes."""
    choice = outcome.recommended
    baseline = outcome.baseline
    verdict = outcome.qualified_verdict
    if not choice or not baseline or choice.fingerprint == baseline.fingerprint:
        return []
    metric, (name, unit) = choice.objective.metric, title_of(choice.objective.metric)
    label = f"{outcome.label}: {verdict}"
    if outcome.origin is Evidence.MEASURED:
        label = verdict.capitalize()
    mine, theirs = readable.numbers(one.objective.value for one in (choice, baseline))
    figure = " ".join(filter(None, (name, mine, unit, carried(_of_objective(outcome)))))
    gained = readable.gain_within(metric, outcome.gain_percent, outcome.gain_ci95)
    sentence = (
        f"{label}. {figure} on {choice.objective.workload} with {choice.engine}, baseline "
        f"{theirs} with {baseline.engine}: {gained}."
    )
    if ends := outcome.gain_interval90_on_a_node:
        both = filter(None, (on_a_node(choice.objective), readable.gains(metric, ends)))
        sentence += f" On a real node {', '.join(both)} (90 %)."
    if (over := outcome.gain_over_recipe) and over.ci95:
        lead = readable.gain_in_words(metric, over.percent, f"{over.engine}'s recipe")
        sentence += f" {lead[:1].upper()}{lead[1:]}."
    if outcome.verdict is Verdict.BETTER and outcome.origin.predicted:
        return [sentence, f"Measure it: autotune verify {outcome.study} --on process"]
    return [sentence]


def _unconfirmed(outcome: Recommendation) -> str:
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
        change = f"does not run: {row.failure}" if row.failure else "no valid launch"
        if row.change_percent is not None:
            change = readable.gain_within(metric, row.change_percent, row.change_ci95)
        now = getattr(outcome, row.role)
        earlier = ""
        if row.fingerprint and now and now.fingerprint != row.fingerprint:
            earlier = ", an earlier one"
        lines.append(f"{WHO[row.role]}{earlier}: {change}, {text.launches(row.launches)}")
    if one.old == "rows":
        lines.append(
            "the old version was not launched: the study's launches are used instead, from another "
            "day"
        )
    if any(row.role == "baseline" for row in one.commands):
        places = {True: "still ahead of", False: "behind", None: "indistinguishable from"}
        place = places[one.still_ahead]
        lines.append(f"on {one.to_version} the recommended command is {place} the baseline")
    if changed := [
        f"{row.get('knob', row.get('flag'))} {text.scalar(row['from'])} → {text.scalar(row['to'])}"
        for row in one.changed_defaults
    ]:
        lines.append(f"changed defaults, most likely cause first: {', '.join(changed)}")
    lines += [*one.notes, f"verdict: {one.verdict} (margin {one.margin_percent:g} %)"]
    if one.tune_again is not None:
        cost = f"the study took {outcome.launches} launches"
        if spent := outcome.study_cost:
            cost += f" and {readable.number(spent.node_hours)} node-hours"
            if spent.cost:
                cost += f", {readable.number(spent.cost)} in money"
        lines.append(
            f"the best configuration changed: tune again, starting from this study ({cost})"
        )
    return lines


def promises(outcome: Recommendation) -> list[str]:
    """Describe longest request and trade-offs of the recommended command, and its alternatives: a
    sentence each."""
    choice = outcome.recommended
    if not choice:
        return []
    lines = []
    longest = served(choice)
    if longest:
        known = outcome.baseline.longest_request_tokens if outcome.baseline else None
        against = f", the baseline's {known:,}" if known is not None else ""
        lines.append(f"{longest[:1].upper()}{longest[1:]}{against}.")
    replayed = outcome.origin is Evidence.REPLAYED
    if outcome.gives_up is None or outcome.address or (replayed and not outcome.gives_up):
        # The promises of a table's rows are unknown, and those of an old recommendation.
        return lines
    lines += [*_trade_offs(outcome), *promised_values(outcome), *own_command(outcome)]
    if not longest and outcome.origin is Evidence.MEASURED:
        lines.append("The longest request is unknown.")
    for other in outcome.alternatives:
        metric = other.objective.metric
        lead = readable.gain_in_words(metric, other.lead_percent, "it")
        if lead[0] in "+-":
            lead = f"is {lead}"
        if other.lead_ci95:
            lead += f", 95 % interval {readable.gains(metric, other.lead_ci95)}"
        facts = "; ".join(filter(None, (text.launches(other.objective.repeats), served(other))))
        lines.append(
            f"The best command that {other.label} reaches {_value(outcome, other.objective)} "
            f"({facts}): the recommended one {lead}."
        )
    return [*lines, *_slower(outcome)]


def _trade_offs(outcome: Recommendation) -> list[str]:
    return [
        f"Trade-off: {one.knob} {text.scalar(one.to)} instead of {text.scalar(one.from_)}: {one.what}."
        for one in outcome.gives_up or ()
    ]


def promised_values(outcome: Recommendation) -> list[str]:
    """Compare what the recommended command gives its users with the baseline, value by value: a
    sentence or two."""
    given_up = {one.knob for one in outcome.gives_up or ()}
    changed = []
    same = []
    for one in outcome.promised:
        if one.knob in given_up:
            continue
        if one.baseline != one.recommended:
            changed.append(f"{one.what} {one.recommended} (baseline: {one.baseline})")
        elif one.what == "context":
            same.append(f"context ({one.recommended})")
        elif one.what == "KV cache":
            same.append(f"{one.recommended} KV cache")
        else:
            same.append(f"{one.what} {one.recommended}")
    sides = {"Changed:": changed, "Same": same}
    return [f"{name} {', '.join(values)}." for name, values in sides.items() if values]


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
    slower = []
    for workload, row in outcome.workloads.items():
        for name in ("p99_ttft_ms", "p99_tpot_ms"):
            old = (row.baseline or {}).get(name)
            new = (row.recommended or {}).get(name)
            if old and new and new / old > _WORSE:
                times = f"{new / old:.1f} times the baseline's {readable.number(old)}"
                slower.append(f"{text.title(name)} {readable.number(new)} on {workload}, {times}")
    return [f"Slower: {_enumerate(slower)}."] if slower else []


def served(choice: Choice) -> str:
    """Return the longest request of a command, its limit, and its odds of starting; empty if
    unknown."""
    if choice.longest_request_tokens is None:
        return ""
    facts = []
    if choice.kv_cache_tokens is not None:
        facts.append(f"KV cache of a replica {choice.kv_cache_tokens:,}")
    if choice.odds_of_starting is not None:
        facts.append(f"odds of starting {100 * choice.odds_of_starting:.0f} %")
    return f"longest request {choice.longest_request_tokens:,} tokens ({', '.join(facts)})"


def predictions(outcome: Recommendation) -> list[str]:
    """Compare prediction and measurement of each command of a verified study: a sentence each."""
    lines = []
    for one in outcome.predictions:
        predicted = f"predicted {readable.number(one.predicted.value)}"
        if ends := one.predicted.interval90:
            predicted += f" (90 % interval {readable.interval(ends)})"
        if one.not_simulated:
            predicted += f" without {', '.join(one.not_simulated)}"
        measured = f"{one.failure}, not measured" if one.failure else "not measured"
        if one.measured:
            error = readable.percent(one.predicted.error_percent)
            figure = readable.number(one.measured.value)
            measured = f"{outcome.label} {figure}, prediction error {error}"
        role = f"{one.role[:1].upper()}{one.role[1:]}"
        lines.append(f"{role} ({one.engine}): {predicted}, {measured}.")
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
    # A cost that is twice as good is half as high.
    better = abs(readable.changed(outcome.recommended.objective.metric, regret.percent) or 0.0)
    sure = f"{100 * regret.odds:.0f} % sure that no"
    if not regret.left_out:
        return f"{sure} other configuration is more than {better:.1f} % better."
    return (
        f"Open: the speed of {named(regret.left_out)}, which failed without an "
        f"explanation. {sure} further configuration is more than {better:.1f} % better."
    )


def not_looked_at(outcome: Recommendation) -> str:
    """Name the values that no launch had, with what is expected of each; empty for none."""
    if not (rows := outcome.not_tried):
        return ""
    named = [
        f"{one.knob}={text.scalar(one.value)} ({one.expected_percent:.1f} % expected)"
        for one in rows[:_MOST_NOT_TRIED]
        if one.expected_percent >= _LEAST_EXPECTED
    ]
    if others := len(rows) - len(named):
        named.append(f"{others} other values of knobs, each less")
    return (
        f"Not looked at with {outcome.recommended.engine}: {', '.join(named)}."
        if outcome.recommended
        else ""
    )


def _answers(outcome: Recommendation) -> str:
    """Summarise the check of answers; empty without a check."""
    check = outcome.accuracy
    worse = outcome.failures.get(FailureKind.ACCURACY.value, 0)
    if not check or not outcome.recommended:
        return ""
    kinds = {"builtin": "agreement with the baseline", "tasks": "right answers", "command": "score"}
    rejected = ""
    if worse:
        rejected = f" {text.launches(worse)} of other commands rejected for different answers."
    if check.passed is None:
        return f"Answers not compared with the baseline's: too few launches were left.{rejected}"
    if not outcome.baseline or outcome.recommended.fingerprint == outcome.baseline.fingerprint:
        return rejected.strip()
    mine = score(check.kind, check.recommended, check.recommended_ci95)
    theirs = score(check.kind, check.baseline, check.baseline_ci95)
    limit = f"the baseline's {theirs}, threshold {score(check.kind, check.threshold)}"
    return f"Answers pass: {kinds[check.kind]} {mine}, {limit}.{rejected}"


def unjudged(outcome: Recommendation) -> str:
    """Say what is not known of the answers' quality."""
    if not outcome.accuracy or outcome.accuracy.passed is None:
        return "The quality of the answers was not judged."
    return "The quality of the answers was judged by the check above alone."


def score(kind: str, value: float | None, interval: Interval | None = None) -> str:
    """Return a score of a check of answers, with its interval; in percent except for a
    command's."""
    if value is None:
        return "–"
    unit = "" if kind == "command" else " %"
    within = f" ({readable.interval(interval)}{unit})" if interval else ""
    return f"{readable.number(value)}{unit}{within}"


def _speculation(outcome: Recommendation) -> str:
    """Describe the source of the draft acceptance if prompts are not real text."""
    choices = (outcome.recommended, outcome.baseline)
    drafts = (choice.speculation for choice in choices if choice)
    one = next((one for one in drafts if one and one.random), None)
    if not outcome.recommended or not one or outcome.origin is Evidence.REPLAYED:
        return ""
    drafted = text.count(one.drafted, "drafted token")
    if one.accepted:
        drafted += f"; {next(iter(one.accepted.values())):.3g} were counted"
    if one.forced is None:
        return (
            f"Draft acceptance (speculative decoding) was measured on random tokens (at {drafted} "
            "per step), not on real prompts: compare the number of speculative tokens with "
            "`--workload prose` or `code`."
        )
    assumed = "" if outcome.origin is Evidence.MEASURED else ": assumed, not measured"
    return (
        f"With random prompts, draft acceptance was forced to {one.forced:.3g} tokens per step at "
        f"{drafted} (the model's on text is {one.stated:g}, by {one.source}{assumed}); the command "
        "does not force it."
    )


def _measured(outcome: Recommendation) -> str:
    """Describe the measurement of a server that somebody else runs, with its interval."""
    choice = outcome.recommended
    miss = outcome.nearest_miss
    if not choice:
        missed = f" {_missed(outcome, miss)}" if miss else ""
        return f"{outcome.address} does not meet the limits.{missed}"
    goal = choice.objective
    if _is_traffic(outcome):
        return _carries(outcome, _of_objective(outcome) or {})
    label = outcome.label
    if outcome.origin is Evidence.MEASURED:
        label = "Measured"
    interval = f"95 % interval {readable.interval(goal.ci95)}" if goal.ci95 else "no interval"
    repeats = text.count(goal.repeats, "measurement")
    value = _value(outcome, goal, _of_objective(outcome))
    return f"{label}: {value} at {outcome.address} ({interval}, {repeats})."


def _way_on(outcome: Recommendation) -> list[str]:
    """Say how to search from a server that somebody else runs; empty for other studies and for a
    verification."""
    if not outcome.address or outcome.predictions:
        return []
    if _is_traffic(outcome):
        return _advice(outcome)
    asked = f"--model {outcome.model} --hw {outcome.hardware} --gpus {outcome.gpus}"
    return [
        "autotune cannot reconfigure this server.",
        f"To search: autotune run {asked} --baseline '<your command>'",
        f"To check a result on it: autotune verify STUDY --on {EXTERNAL}{outcome.address}",
    ]


def _is_traffic(outcome: Recommendation) -> bool:
    """Return whether a server was not loaded, but its own traffic was read."""
    return any(name == f"live:{outcome.address}" for name in outcome.workloads)


def _carries(outcome: Recommendation, metrics: Metrics) -> str:
    """Say what a server carried by its own counters."""
    rate, speed = (metrics[name] for name in ("request_throughput", "total_token_throughput"))
    facts = [f"{readable.number(rate)} requests/s, {readable.number(speed)} tok/s"]
    if flying := metrics.get("mean_concurrent_requests"):
        facts.append(f"{readable.number(flying)} in flight")
    for name in ("ttft", "tpot"):
        if (mean := metrics.get(f"mean_{name}_ms")) is not None:
            values = (mean, *(metrics[f"{one}_{name}_ms"] for one in ("p95", "p99")))
            mean, p95, p99 = map(readable.number, values)
            facts.append(f"{name.upper()} {mean} ms (P95 {p95}, P99 {p99})")
    if (hits := metrics.get("cache_hit_rate")) is not None:
        facts.append(f"{100 * hits:.0f} % of prompt tokens from the prefix cache")
    label = "Measured" if outcome.origin is Evidence.MEASURED else outcome.label
    over = f"over {metrics['duration']:.0f} s, nothing was sent"
    return f"{label}: {outcome.address} carries {', '.join(facts)} ({over})."


def _advice(outcome: Recommendation) -> list[str]:
    """Say what a server could carry, which options to look at first, and how to measure them."""
    advice = outcome.advice
    if advice is None:
        return [
            "Its configuration is unknown or not simulated; --baseline '<its command>' names it."
        ]
    on_node = "90 % interval on a real node"
    rates = readable.interval(advice.request_rate_interval90)
    lines = [
        f"SIMULATED: its configuration could carry {readable.number(advice.request_rate)} of these "
        f"requests/s, {readable.number(advice.total_token_throughput)} tok/s "
        f"({on_node} {rates} requests/s)."
    ]
    for one in advice.options:
        changes = ", ".join(
            f"{name} {text.scalar(new)} (now {text.scalar(old)})"
            for name, (old, new) in one.options.items()
        )
        gain = readable.gain(HEADLINE, one.gain_percent)
        within = readable.gains(HEADLINE, one.gain_interval90)
        lines.append(f"SIMULATED: {gain} tok/s by {changes} ({on_node} {within}).")
    if not advice.options:
        lines.append("SIMULATED: no other options of its engine carry more.")
    return lines


def _sentence(outcome: Recommendation) -> str:
    if outcome.address:
        return _measured(outcome)
    where = f"for {outcome.model} on {outcome.gpus} x {outcome.hardware} ({outcome.label})"
    choice = outcome.recommended
    baseline = outcome.baseline
    if not choice:
        missed = f" {_missed(outcome, outcome.nearest_miss)}" if outcome.nearest_miss else ""
        return f"No configuration is feasible {where}: there is no command to recommend.{missed}"
    goal = choice.objective
    value = _value(outcome, choice.objective, _of_objective(outcome))
    figure = f"{choice.engine} {choice.engine_version} reaches {value} {where}"
    if goal.interval90_on_a_node:
        figure += f", {on_a_node(goal)} on a real node (90 %)"
    if not baseline:
        could = "run"
        if goal.metric.startswith("capacity_"):
            could = "carry any load within the limits"
        return f"{figure}. The baseline could not {could}, so there is no comparison."
    if choice.fingerprint == baseline.fingerprint:
        known = "" if outcome.unconfirmed else ": no configuration is significantly better"
        return f"{figure}. This is the baseline{known}."
    both = outcome.workloads.get(baseline.objective.workload)
    value = _value(outcome, baseline.objective, both.baseline if both else None)
    theirs = f"{value} with {baseline.engine} {baseline.engine_version}"
    if outcome.verdict is Verdict.INDISTINGUISHABLE:
        return (
            f"{figure}. It is indistinguishable from the baseline ({theirs}) by these launches; of "
            "the equally good configurations, this command is the simplest."
        )
    return f"{figure}; the baseline reaches {theirs}."


def _of_objective(outcome: Recommendation) -> Metrics:
    """Return the metrics of the recommended command under the objective's workload."""
    if not outcome.recommended:
        return {}
    row = outcome.workloads.get(outcome.recommended.objective.workload)
    return (row and row.recommended) or {}


def _missed(outcome: Recommendation, miss: NearestMiss) -> str:
    """Name the limits that the closest attempt violates, by how much, and the load search if it was
    not used."""
    at = "" if miss.load is None else f" at the lightest load, {miss.load:g}"
    parts = []
    for one in miss.broken or [miss]:
        if one.metric == VIOLATIONS:
            parts.append(f"{100 - one.value:.1f} % of the requests within the goodput limits")
        else:
            beyond = readable.beyond(Slo.parse(one.slo).excess(one.value))
            figure = text.measure(one.metric, one.value)
            parts.append(f"a {figure}{at}, {beyond} beyond the limit {one.slo}")
    label = "Measured" if outcome.address else "Closest attempt"
    sentence = f"{label}: {_enumerate(parts)}."
    broken = {one.metric: one.limit for one in miss.broken}
    try:
        workload = load_workload(next(iter(outcome.workloads)))
    except (BadInput, StopIteration):  # a file that is gone, or a load without a name of ours
        return sentence
    searchable = any(metric.endswith("_ms") or metric == VIOLATIONS for metric in broken)
    fixed = miss.load is not None or how_fixed(workload) or outcome.origin is Evidence.REPLAYED
    if fixed or not searchable:
        return sentence
    limits = "these limits" if len(miss.broken) > 1 else "this limit"
    option = ""
    if VIOLATIONS in broken:
        limits = f"the limits for {100 - broken[VIOLATIONS]:g} % of them"
        option = " with --slo"
    subject = "it does not meet" if outcome.address else "no configuration meets"
    return (
        f"{sentence} With {workload.points[0].prompts:,} requests at once, {subject} {limits}; "
        f"--find-load concurrency{option} finds the highest load that does."
    )


def _value(outcome: Recommendation, objective: Objective, metrics: Metrics | None = None) -> str:
    figure = text.measure(objective.metric, objective.value)
    load = carried(metrics or {})
    if load and objective.metric.startswith("capacity_"):
        figure += f" {load}"
    weighted = "" if objective.workload in outcome.workloads else " (weighted geometric mean)"
    return f"a {figure} on {objective.workload}{weighted}"


def gain(outcome: Recommendation) -> str:
    """Return the gain with its intervals, and the verdict, in a sentence or two."""
    choice = outcome.recommended
    baseline = outcome.baseline
    if outcome.address:
        return ""
    if not choice or not baseline:
        unopposed = ": the baseline did not run, so the gain is unknown" if choice else ""
        return f"Verdict: {outcome.verdict.value}{unopposed}."
    if outcome.gain_percent is None or choice.fingerprint == baseline.fingerprint:
        return f"Verdict: {outcome.verdict.value}, so no gain is claimed."
    metric = choice.objective.metric
    interval = "no interval"
    if outcome.gain_ci95:
        interval = f"95 % interval {readable.gains(metric, outcome.gain_ci95)}"
    repeats = (text.launches(one.objective.repeats) for one in (choice, baseline))
    interval += f", from {' against '.join(repeats)}"
    if ends := outcome.gain_interval90_on_a_node:
        interval += f"; 90 % prediction interval on a real node {readable.gains(metric, ends)}"
    gained = readable.gain_in_words(metric, outcome.gain_percent)
    sentence = f"{'Gain' if gained[0] in '+-' else 'It'} {gained} ({interval})"
    if over := outcome.gain_over_recipe:
        recipe = f"{over.engine}'s recipe {over.recipe}"
        against = f"the command is {recipe}"
        if over.ci95:
            against = readable.gain_within(metric, over.percent, over.ci95, recipe)
        sentence += f"; {against}"
    return f"{sentence}. Verdict: {outcome.qualified_verdict}{_meaning(outcome)}."


def _meaning(outcome: Recommendation) -> str:
    if outcome.verdict is Verdict.INDISTINGUISHABLE:
        return ": the difference may be chance"
    if outcome.verdict is not Verdict.BETTER:
        return ""
    if outcome.origin.predicted:
        return f": measure these commands with `autotune verify {outcome.study} --on process`"
    return ": the test of the finals passed" if outcome.gain_ci95 else ""


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
    used = "had used" if row.prompts == "seen" else "had not used"
    sentence = (
        f"The finals used prompts that the search {used}{f' ({row.sent})' if row.sent else ''}"
    )
    gained = outcome.gain_percent
    expected = outcome.search_gain_percent
    within = outcome.search_gain_ci95
    metric = outcome.recommended.objective.metric
    if expected is None or gained is None or not within:
        return f"{sentence}."
    estimate = f"{readable.gain(metric, expected)} (95 % interval {readable.gains(metric, within)})"
    halves = [(ends[1] - ends[0]) / 2 for ends in (within, outcome.gain_ci95) if ends]
    end = "."
    if len(halves) > 1 and expected - gained > math.hypot(*halves):
        end = ": the gain on new prompts is smaller by more than chance explains."
    return f"{sentence}; the search's estimate was {estimate}{end}"


def short_load(outcome: Recommendation) -> str:
    """Warn of a load too short to represent a busy server; empty for longer loads."""
    seconds = _of_objective(outcome).get("duration")
    if seconds is None or seconds >= SHORT_S:
        return ""
    return f"The load took {seconds:.0f} s, mostly ramp-up and drain: use more prompts."


def _few_good(outcome: Recommendation) -> str:
    """Warn if the objective is goodput and almost no request is good; empty otherwise."""
    choice = outcome.recommended
    metrics = _of_objective(outcome)
    good = metrics.get(GOODPUT)
    done = metrics.get("request_throughput")
    if not choice or choice.objective.metric != GOODPUT or good is None or not done:
        return ""
    if good / done >= _FEW_GOOD:
        return ""
    return (
        f"Only {100 * good / done:.1g} % of the requests are good: this load is far beyond the "
        "limits, so a gain means little; --find-load concurrency with --slo finds a load that "
        "meets them."
    )


def crossing(outcome: Recommendation) -> str:
    """Name the faster command by concurrency, in one or two sentences; empty without two curves."""
    curves = outcome.curves
    points = [point for point in curves.points if point.gain_percent is not None] if curves else []
    if not curves or not points:
        return ""
    faster = by_key((point.faster, str(point.concurrency)) for point in points)
    open_ = ""
    if None in faster:
        open_ = f"At {_enumerate(faster.pop(None))} in flight the two are indistinguishable"
    if not faster:
        return f"{open_}: they differ no more than repeated launches."
    sentences = []
    for one in curves.crossings:
        low, high = one.between
        within = f" (between {low:.3g} and {high:.3g})" if high > low else ""
        sentences.append(
            f"Below about {one.concurrency:.3g} in flight{within} {WHO[one.below]} is faster, "
            f"above {WHO[one.above]}."
        )
    if not sentences:
        for side, name in WHO.items():
            if side in faster:
                loads = _enumerate(faster[side])
                sentences.append(f"{name[:1].upper()}{name[1:]} is faster at {loads} in flight.")
    if open_:
        sentences.append(f"{open_}.")
    return " ".join(sentences)


def drafted(outcome: Recommendation) -> str:
    """Say how many tokens to draft at which load; empty where that was no question."""
    parts = []
    for row in outcome.drafts_by_load if outcome.curves else ():
        if row.up_to_concurrency is None:
            part = "not measured, as no launch was left"
        else:
            part = f"up to {row.up_to_concurrency} in flight"
        if row.ci95 and outcome.curves:
            metric = outcome.curves.metric
            part += f", {readable.gain_within(metric, row.gain_percent, row.ci95)}"
        parts.append(f"{row.speculative_tokens} {part}")
    return f"Tokens to draft: {'; '.join(parts)}." if parts else ""


def added(row: Contribution, metric: str) -> str:
    """Say what a setting adds to the recommended command: gain, interval and odds."""
    if row.gain_percent is None:
        return f"needed to {row.needed_to}"
    odds = "" if row.odds is None else f", odds of more than 0.5 %: {100 * row.odds:.0f} %"
    gained = readable.gain(metric, row.gain_percent)
    return f"{gained}, 95 % interval {readable.gains(metric, row.ci95)}{odds}"


def money(outcome: Recommendation) -> list[str]:
    """Describe the study's cost; empty where no time is known."""
    cost = outcome.study_cost
    if not cost:
        return []
    nodes = {Evidence.SIMULATED: " of the simulated node", Evidence.REPLAYED: ", as recorded"}
    hours = f"{readable.number(cost.node_hours)} node-hours{nodes.get(outcome.evidence, '')}"
    if cost.gpu_hours is not None:
        hours += f" ({readable.number(cost.gpu_hours)} GPU-hours)"
    return [f"The study took {hours}{cost.of_which}.", *filter(None, [cost.in_money])]


def _loss(outcome: Recommendation) -> str:
    lost = trade_off(outcome)
    return f"It {lost}." if lost else ""


def trade_off(outcome: Recommendation) -> str:
    """Name the workloads on which the recommended command is best and those on which it loses,
    without a subject."""
    row = next((row for row in outcome.matrix if row.role == "recommended"), None)
    if not row or len(row.workloads) < 2:
        return ""
    best = []
    lost = []
    for name, cell in row.workloads.items():
        if cell.best:
            best.append(name)
        gain = cell.gain_percent
        within = cell.ci95
        if gain is not None and gain < 0 and (not within or within[1] < 0):
            change = abs(readable.changed(row.objective.metric, gain) or 0)
            lost.append(f"loses {change:.0f} % on {name}")
    if not lost:
        return ""
    if best:
        lost.insert(0, f"has the best mean on {_enumerate(best)}")
    return f"{_enumerate(lost)} against the baseline"


def _front(outcome: Recommendation) -> str:
    if not outcome.front:
        return ""
    first = outcome.front[0]
    goals = " against ".join(text.title(goal.metric) for goal in (first.objective, first.second))
    points = text.count(len(outcome.front), "configuration makes", "configurations make")
    return f"{points} the front of {goals}; the report gives the command of each."


def _enumerate(parts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
