"""The conclusion in sentences, for the terminal and for the report."""

import math

from autotune.base import BadInput, Evidence, Interval, by_key
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
from .templates import templates_of, write

_SENTENCES = templates_of("sentences.yaml")
WHO = {"baseline": "the baseline", "recommended": "the recommended command"}
_FEW_GOOD = 0.1
"""Share of good requests below which goodput shows that the load is too heavy."""
_MOST_NOT_TRIED, _LEAST_EXPECTED = 5, 0.1
"""Values that no launch had, and the percent expected of them, from which they are named."""
_WORSE = 1.1
"""Latency ratio to the baseline; smaller ratios are noise of one launch."""


def _say(name: str, outcome: Recommendation, **known: object) -> str:
    """Return a sentence of ``sentences.yaml``; empty where it does not apply."""
    choice = outcome.recommended
    return write(
        _SENTENCES[name],
        outcome=outcome,
        choice=choice,
        baseline=outcome.baseline,
        metric=choice.objective.metric if choice else "",
        main=_of_objective(outcome),
        carried=carried,
        named=named,
        on_a_node=on_a_node,
        score=score,
        value_of=_value,
        **known,
    )


def paragraphs(outcome: Recommendation) -> list[str]:
    """Return the conclusion, a paragraph per topic; no claim exceeds the evidence."""
    parts = [
        _sentence(outcome),
        _unconfirmed(outcome),
        *_way_on(outcome),
        shape_carried(_of_objective(outcome)),
        _few_good(outcome),
        gain(outcome),
        _prompts(outcome),
        _loss(outcome),
        crossing(outcome),
        drafted(outcome),
        _say("answers", outcome),
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
        _say("answers", outcome),
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
    if not choice or not baseline or choice.fingerprint == baseline.fingerprint:
        return []
    verdict = _say("verdict", outcome)
    if outcome.verdict is Verdict.BETTER and outcome.origin.predicted:
        return [verdict, f"Measure it: autotune verify {outcome.study} --on process"]
    return [verdict]


def _unconfirmed(outcome: Recommendation) -> str:
    """Say that no finalist was measured; empty where one was, or there was nothing to confirm."""
    return f"Nothing is confirmed: {outcome.unconfirmed}." if outcome.unconfirmed else ""


def regression(one: Regression, outcome: Recommendation) -> list[str]:
    """Report a comparison of two versions: each command's change, possible causes, the verdict, the
    next step."""
    lines = [
        _say("regression", outcome, one=one),
        *(
            _say("regression_of", outcome, row=row, now=getattr(outcome, row.role), who=WHO)
            for row in one.commands
        ),
        *(
            _say(name, outcome, one=one)
            for name in ("old_version", "still_ahead", "changed_defaults")
        ),
        *one.notes,
        f"verdict: {one.verdict} (margin {one.margin_percent:g} %)",
        _say("tune_again", outcome, one=one),
    ]
    return [line for line in lines if line]


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
        lines.append(f"{text.capital(longest)}{against}.")
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
    return [_say("prediction", outcome, one=one) for one in outcome.predictions]


def not_simulated(outcome: Recommendation) -> str:
    """Name the settings on which no predicted figure depends; empty without any."""
    one, other = (
        choice.not_simulated if choice else [] for choice in (outcome.recommended, outcome.baseline)
    )
    names = [*one, *(f"{name} (the baseline's)" for name in other if name not in one)]
    return f"Not simulated: {', '.join(names)}." if names else ""


def remaining(outcome: Recommendation) -> str:
    """Return how much better another configuration may be (the regret); empty if unknown."""
    return _say("remaining", outcome)


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
    return _say("speculation", outcome, one=one)


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


def _advice(outcome: Recommendation) -> list[str]:
    """Say what a server could carry, which options to look at first, and how to measure them."""
    advice = outcome.advice
    if advice is None:
        return [
            "Its configuration is unknown or not simulated; --baseline '<its command>' names it."
        ]
    options = [_say("with_options", outcome, one=one, headline=HEADLINE) for one in advice.options]
    none = "SIMULATED: no other options of its engine carry more."
    return [_say("could_carry", outcome, advice=advice), *(options or [none])]


def _sentence(outcome: Recommendation) -> str:
    name = "sentence"
    if outcome.address:
        name = "carries" if outcome.recommended and _is_traffic(outcome) else "measured"
    miss = outcome.nearest_miss
    return _say(name, outcome, missed=f" {_missed(outcome, miss)}" if miss else "")


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
    return _say("gain", outcome)


def on_a_node(goal: Objective) -> str:
    """Return the interval of a predicted objective on a real node; empty if none."""
    ends = goal.interval90_on_a_node
    return f"{readable.interval(ends)} {title_of(goal.metric)[1]}".rstrip() if ends else ""


def _prompts(outcome: Recommendation) -> str:
    """Compare the gain of the finals with the search's estimate; empty if the launches do not show
    it."""
    row = next(iter(outcome.workloads.values()), None)
    if not outcome.recommended or not row or not row.prompts:
        return ""
    intervals = (outcome.search_gain_ci95, outcome.gain_ci95)
    halves = [(high - low) / 2 for low, high in filter(None, intervals)]
    lost = (outcome.search_gain_percent or 0.0) - (outcome.gain_percent or 0.0)
    smaller = len(halves) > 1 and lost > math.hypot(*halves)
    return _say("prompts", outcome, row=row, smaller=smaller)


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
                sentences.append(f"{text.capital(name)} is faster at {loads} in flight.")
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
    return [_say("money", outcome, cost=cost), *filter(None, [cost.in_money])]


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
