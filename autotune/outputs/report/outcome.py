"""The first sections of the report: conclusion, before and after, workloads, the front of two
goals, gain per knob.

Behind them what was asked and how it was measured, and how to do it again.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain

from autotune.base import redact
from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.load.metrics import readable
from autotune.load.metrics.table import COSTS, CURVE, INVALID, counts, shown_in, title_of
from autotune.load.workloads import load_workload
from autotune.outputs.report import StudyRecord, text, words
from autotune.tuner.search import objective
from autotune.tuner.study.home import Home, is_server, shown, tracking_uri, ui_command
from autotune.tuner.study.options import command_line, rows_of
from autotune.tuner.study.recommendation import Choice, MatrixCell, Objective, Verdict
from autotune.tuner.study.results import is_held
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Role, State

from .tables import average, best_per_engine, broken_slos, values_of

_WORTH = {
    Evidence.MEASURED: "The figures were measured on real servers on the named hardware.",
    Evidence.EMULATED: "No GPU ran: the servers were emulated. The figures are predictions of the hardware "
    "model, not measurements.",
    Evidence.SIMULATED: "No server ran: every figure is a prediction of the built-in model of engine and hardware. "
    "Measure before you rely on it.",
    Evidence.REPLAYED: "No server ran: every figure was read from recorded launches, and is as good as they were.",
}
SHOWN = shown_in("report")
"""Metrics shown for every workload."""


def opening(study: StudyRecord) -> list[str]:
    """Return title and evidence banner."""
    outcome = study.recommendation
    aim = text.plain(study.spec.objective.replace("_", " "))
    title = f"# {text.plain(outcome.model)} on {outcome.gpus}×{outcome.hardware.upper()}: tuned for {aim}"
    worth = f"> **{outcome.label}.** {_WORTH[outcome.origin]}"
    if outcome.verdict is not Verdict.UNFINISHED:
        return [title, worth]
    of = f"{outcome.launches} of at most {max(outcome.launches, study.spec.launches)} launches"
    return [
        title,
        f"> **UNFINISHED.** {of} have ended; nothing is decided, and nothing is recommended yet.",
        worth,
    ]


def conclusion(study: StudyRecord) -> list[str | text.Facts]:
    """Return verdict and gain, the command, its trade-offs, the alternatives with their cost, and a
    summary."""
    outcome, parts = study.recommendation, list[str | text.Facts]()
    if outcome.verdict is Verdict.UNFINISHED:
        return _so_far(study)
    parts.append(_facts(study))
    choice = outcome.recommended
    if choice is None:
        if (miss := outcome.nearest_miss) is not None and not outcome.address:
            parts += ["Command of the closest attempt:", _block(miss.command, miss.argv, miss.env)]
        ran = [launch for launch in study.launches if launch.result.metrics]
        spec = study.spec.strict
        asked = ", ".join(text.code(slo.told) for slo in spec.slos) or "none"
        broke = [(launch.trial.number, broken_slos(spec, launch)) for launch in ran]
        lines = [
            f"- launch {number}: {text.plain('; '.join(broken))}"
            for number, broken in broke
            if broken
        ]
        figures = f"Valid launches: {len(ran)}; beyond a limit: {len(lines)}. Limits: {asked}."
        parts += [
            figures if ran else "No launch is valid. The failures and their causes are below.",
            "\n".join(lines),
        ]
    elif choice.external:
        parts.append(
            f"autotune did not start the server ({text.code(choice.argv[0])}); its command is unknown."
        )
    else:
        what = (
            "The table has no command; its row in the form of one"
            if choice.stand_in
            else "Serving command"
        )
        parts += [
            f"{what} ({text.plain(choice.engine)} {choice.engine_version}):",
            _command(choice),
        ]
    told = [*words.sentences(outcome), *filter(None, [words.remaining(outcome)])]
    parts += [_listed(words.promises(outcome)), *map(_command, outcome.alternatives), _listed(told)]
    failures = (row.result.failure for row in study.launches if row.trial.role is Role.BASELINE)
    if outcome.baseline is None and (failure := next(filter(None, failures), None)):
        parts.append(
            f"The baseline failed with {words.failed(failure)}: {text.plain(redact.text(failure.message))}"
        )
    if outcome.stop_reason:
        parts.append(f"The study ended because: {text.plain(outcome.stop_reason)}.")
    return parts


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {text.prose(line)}" for line in lines)


def _so_far(study: StudyRecord) -> list[str | text.Facts]:
    """Return the best configuration of an unfinished study, and the command that continues it."""
    best = next(iter(best_per_engine(study)), None)
    parts: list[str | text.Facts] = ["No launch meets the limits so far."]
    if best is not None:
        launch, value, count = best
        trial, several = launch.trial, text.count(count, "launch", "launches")
        own = [row for row in study.launches if row.trial.role is Role.BASELINE]
        base = average(values_of(study, own)) if trial.role is not Role.BASELINE else None
        over = f", {readable.change(base, value)} against the baseline" if base else ""
        said = f"Best so far: {trial.configuration.engine} {trial.engine_version}"
        parts = [
            f"{said}, {text.measure(study.spec.objective, value)} ({several}{over}). It is not confirmed yet.",
            _block(trial.command.shell(), trial.command.words, trial.command.env),
        ]
    if is_held(study.folder):
        return [*parts, "A tuner is running on the study; `autotune list` shows its progress."]
    home = Home(study.folder.parent.parent)
    return [*parts, "Continue with:", text.block(home.resume_command(study.spec.study), "bash")]


def _facts(study: StudyRecord) -> text.Facts:
    """List the summary cells: verdict, gain with both intervals, launches and their hours."""
    outcome = study.recommendation
    facts = {} if outcome.address else {"Verdict": outcome.qualified_verdict}
    metric, baseline = study.spec.objective, None if outcome.address else outcome.baseline
    if outcome.gain_percent is not None and outcome.recommended is not None and not outcome.address:
        facts["Gain over the baseline"] = readable.gain_in_words(metric, outcome.gain_percent)
        facts["95 % interval, launch to launch"] = readable.gains(metric, outcome.gain_ci95)
    if ends := outcome.gain_interval90_on_a_node:
        facts["90 % interval on a real node"] = readable.gains(metric, ends)
    if outcome.recommended is not None:
        goal = outcome.recommended.objective
        values = [one.objective.value for one in (outcome.recommended, baseline) if one]
        facts[text.title(goal.metric)] = " from ".join(readable.numbers(values))
        facts |= {"95 % interval": readable.interval(goal.ci95)} if outcome.address else {}
        if goal.interval90_on_a_node:
            facts[f"{title_of(goal.metric)[0]} on a real node (90 %)"] = words.on_a_node(goal)
        if (longest := outcome.recommended.longest_request_tokens) is not None:
            known = outcome.baseline.longest_request_tokens if outcome.baseline else None
            facts["Longest request"] = f"{longest:,} tokens" + (
                f" from {known:,}" if known not in (None, longest) else ""
            )
        row = outcome.workloads.get(goal.workload)
        before, after = (
            (row.baseline if row and baseline else None),
            row.recommended if row else None,
        )
        for name in ("p99_ttft_ms", "p99_tpot_ms"):
            old, new = ((side or {}).get(name) for side in (before, after))
            if new and name != goal.metric:
                facts[text.title(name)] = " from ".join(
                    readable.numbers([new, old] if old else [new])
                )
    facts["Launches"] = f"{outcome.launches}, {text.seconds(outcome.duration_s)}"
    return text.Facts(facts)


def predictions(study: StudyRecord) -> list[str]:
    """List prediction and measurement of each command of the study that is verified."""
    outcome, verified = study.recommendation, study.spec.verifies
    if verified is None or not outcome.predictions:
        return []
    told = zip(words.predictions(outcome), outcome.predictions, strict=True)
    lines = [f"- {text.plain(line)} {text.code(redact.text(one.command))}" for line, one in told]
    what = f"{text.title(study.spec.objective)}, as study {text.code(verified.study)} predicted it ({verified.label})"
    return [f"{what}. The error is prediction over measurement.", "\n".join(lines)]


def regressions(study: StudyRecord) -> list[str]:
    """Report how the study's commands run on each later version of the engine."""
    parts = []
    for one in study.recommendation.regressions:
        head, *lines = words.regression(one, study.recommendation)
        parts += [f"{text.plain(head)}\n\n" + "\n".join(f"- {text.plain(line)}" for line in lines)]
        parts += [text.block(one.tune_again, "bash")] if one.tune_again else []
    return parts


def comparison(study: StudyRecord) -> list[str]:
    """Tabulate baseline and recommendation: the objective over the workloads, then the metrics of
    each."""
    outcome, spec, objective = study.recommendation, study.spec, study.spec.objective
    if not outcome.workloads or outcome.address:
        return []

    def row(
        heading: str, name: str, old: object, new: object, last: str, change: str
    ) -> dict[str, str]:
        before, after = readable.numbers([old, new])
        return {heading: name, "Baseline": before, "Recommended": after, last: change}

    heading_of_gains = readable.gain_heading(objective)
    sides = {
        name: (both.baseline or {}, both.recommended or {})
        for name, both in outcome.workloads.items()
    }
    rows = []
    for name, (before, after) in sides.items():
        gain, shown = (
            readable.gain(objective, outcome.workloads[name].gain_percent),
            text.code(name),
        )
        values = before.get(objective), after.get(objective)
        rows.append(row("Workload", shown, *values, heading_of_gains, gain))
    goals = [
        choice.objective if choice else None for choice in (outcome.baseline, outcome.recommended)
    ]
    if weighted := next(
        (goal for goal in goals if goal and goal.workload not in outcome.workloads), None
    ):
        name = f"weighted geometric mean, {text.code(weighted.workload)}"
        gain = readable.gain(objective, outcome.gain_percent)
        old, new = (goal.value if goal else None for goal in goals)
        rows.append(row("Workload", name, old, new, heading_of_gains, gain))
    parts = [
        f"{text.title(objective)}. Means over valid launches; – means not measured.",
        text.table(rows, " rrr"),
    ]
    asked = (objective, *([spec.pareto] if spec.pareto else []), *(slo.metric for slo in spec.slos))
    for name, (before, after) in sides.items():
        lines = []
        for metric in dict.fromkeys((*SHOWN, *asked, *COSTS)):
            old, new = before.get(metric), after.get(metric)
            if old is not None or new is not None:
                lines.append(
                    row("Metric", text.title(metric), old, new, "Change", readable.change(old, new))
                )
        parts += [f"### {text.code(name)}", text.table(lines, " rrr")]
    return parts


def alone(study: StudyRecord) -> list[str]:
    """Tabulate the metrics of a server that somebody else runs, by workload."""
    outcome, parts = study.recommendation, list[str]()
    for name, both in outcome.workloads.items() if outcome.address else ():
        found = both.recommended or {}
        known = (m for m in dict.fromkeys((*SHOWN, study.spec.objective, *COSTS)) if m in found)
        rows = [
            {"Metric": text.title(metric), "Measured": readable.number(found[metric])}
            for metric in known
        ]
        parts += [f"### {text.code(name)}", text.table(rows, " r")]
    return parts


def matrix(study: StudyRecord) -> list[str]:
    """Tabulate the finalists by workload, with the best command of each; [] for one workload."""
    outcome = study.recommendation
    spec, names = study.spec, study.spec.workloads
    if len(names) < 2 or not outcome.matrix:
        return []
    rows = []
    for row in outcome.matrix:
        who = f"{row.role}, {row.engine} {text.code(row.fingerprint)}{words.marked(outcome, row.fingerprint)}"
        cells = (_cell(spec.objective, row.workloads.get(name)) for name in names)
        rows.append({"Configuration": who, **dict(zip(map(text.code, names), cells, strict=True))})
    note = (
        f"{text.title(study.spec.objective)}: the mean, the gain over the baseline, and its 95 % interval; the best "
        "mean of each workload is bold. SLOs are those of the first workload."
    )
    lost = words.trade_off(outcome)
    parts = [note, text.table(rows, " " + "r" * len(names))]
    parts += [text.plain(f"The recommended configuration {lost}.")] if lost else []
    for row in outcome.matrix:
        best = [text.code(name) for name, cell in row.workloads.items() if cell.best]
        if best and (
            outcome.recommended is None or row.fingerprint != outcome.recommended.fingerprint
        ):
            parts.append(
                f"Best mean on {' and '.join(best)}: the {row.role}, {row.engine} {text.code(row.fingerprint)}."
            )
            parts += [_command(row)] if row.role != "baseline" else []
    return parts


def _cell(metric: str, cell: MatrixCell | None) -> str:
    if cell is None:
        return "–"
    value = f"**{readable.number(cell.value)}**" if cell.best else readable.number(cell.value)
    if cell.gain_percent is None:
        return value
    within = f" ({readable.gains(metric, cell.ci95)})" if cell.ci95 else ""
    return f"{value}, {readable.gain(metric, cell.gain_percent)}{within}"


def _command(choice: Choice) -> str:
    return _block(choice.command, choice.argv, choice.env)


def _block(command: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    return text.block(redact.text(command, redact.secrets_in(argv, env)), "bash")


def front(study: StudyRecord) -> list[str]:
    """Tabulate the non-dominated configurations, or loads of an engine, of two goals."""
    points, outcome, loads = (
        study.recommendation.front,
        study.recommendation,
        study.spec.front_over_rungs,
    )
    if not points:
        return []
    which = "Every measured configuration that meets the SLOs and that no other one beats"
    if loads:
        which = "Each engine's loads (–: the workload as it is) that no other one beats"
    note = (
        f"{which} in one goal without losing in the other. Means over valid launches, with 95 % intervals if there "
        "are several. The recommendation depends only on the objective."
    )
    parts = [note]
    goals = (text.title(points[0].objective.metric), text.title(points[0].second.metric))
    chosen = outcome.recommended.fingerprint if outcome.recommended else ""
    for engine in dict.fromkeys(point.engine if loads else "" for point in points):
        mine = [point for point in points if engine in ("", point.engine)]
        names = {
            one: f"{engine} {i}".strip()
            for i, one in enumerate(dict.fromkeys(p.fingerprint for p in mine), 1)
        }
        rows = []
        for point in mine:
            name = f"{names[point.fingerprint]}{' (recommended)' if point.fingerprint == chosen else ''}"
            who = f"{point.engine} {point.engine_version} {text.code(point.fingerprint)}"
            who += words.marked(outcome, point.fingerprint)
            row = {"Point": name, "Configuration": who}
            row |= {"In flight": readable.number(point.concurrency)} if loads else {}
            row |= dict(zip(goals, map(_goal, (point.objective, point.second)), strict=True))
            rows.append({**row, "Launches": str(point.objective.repeats), "Evidence": point.label})
        parts += [f"### {text.plain(engine)}"] if engine else []
        parts.append(text.table(rows, "  rrrr" if loads else "  rrr"))
        for fingerprint, point in {point.fingerprint: point for point in mine}.items():
            parts += [f"Point {names[fingerprint]}:", _command(point)]
    return parts


def _goal(goal: Objective) -> str:
    ends = f" [{', '.join(readable.numbers(goal.ci95))}]" if goal.ci95 else ""
    return readable.number(goal.value) + ends


_BESIDE = ("output_tokens_per_s_per_user", "mean_ttft_ms", "cost_per_million_tokens")
"""Metrics shown for both curves next to the deciding metric, if measured."""


def curves(study: StudyRecord) -> list[str]:
    """Tabulate both curves over requests in flight, their crossing, and the invalid loads."""
    outcome, pair = study.recommendation, study.recommendation.curves
    if pair is None:
        return []
    workload = outcome.workloads.get(pair.workload)
    both = (workload.baseline, workload.recommended) if workload else ()
    rows = [
        {r["concurrency"]: r for r in (side or {}).get(CURVE, ()) if "concurrency" in r}
        for side in both
    ]
    beside = [
        name
        for name in _BESIDE
        if name != pair.metric and any(name in m for r in rows for m in r.values())
    ]
    body, heading = [], readable.gain_heading(pair.metric)
    for point in pair.points:
        row = {
            "In flight": str(point.concurrency),
            "Baseline": readable.number(point.baseline),
            "Recommended": readable.number(point.recommended),
            heading: readable.gain(pair.metric, point.gain_percent),
            "95 % interval": readable.gains(pair.metric, point.ci95),
        }
        for name in beside:
            values = (readable.number(side.get(point.concurrency, {}).get(name)) for side in rows)
            row[f"{text.title(name)}: baseline, recommended"] = ", ".join(values)
        body.append(row)
    theirs, mine = pair.launches
    parts = [
        f"{text.title(pair.metric)} on {text.code(pair.workload)} by requests in flight, on the servers "
        f"of the finals: {text.count(theirs, 'launch', 'launches')} of the baseline, {mine} of the recommended "
        f"command. A gain is significant if it exceeds the noise between launches ({pair.noise_percent:.1f} %).",
        text.table(body, "r" * (5 + len(beside))),
    ]
    if said := words.crossing(outcome):
        parts.append(f"**{said}**")
    if (
        outcome.baseline
        and outcome.recommended
        and any(point.faster == "baseline" for point in pair.points)
    ):
        parts += ["The baseline's command:", _command(outcome.baseline)]
    lines = [
        f"- launch {launch.trial.number} at {row.get('concurrency')} in flight is invalid: "
        f"{text.plain(str(row.get(INVALID) or 'the client did not keep up'))}"
        for launch in study.launches
        for row in launch.result.metrics.get(study.spec.workloads[0], {}).get(CURVE) or ()
        if not counts(row)
    ]
    return [*parts, "\n".join(lines)]


def contributions(study: StudyRecord) -> list[str]:
    """Tabulate the gain of each setting of the winner."""
    rows, metric = [], study.spec.objective
    heading = readable.gain_heading(metric)
    for row in study.recommendation.contributions:
        needed = f"needed to {row.needed_to}; " if row.needed_to not in (None, "start") else ""
        rows.append(
            {
                "Setting": text.code(row.knob),
                "Without it": text.code(text.scalar(row.from_)),
                "In this command": text.code(text.scalar(row.to)),
                heading: "needed to start"
                if row.needed_to == "start"
                else readable.gain(metric, row.gain_percent),
                "95 % interval": readable.gains(metric, row.ci95),
                "Odds": "–"
                if row.odds is None
                else f"{100 * row.odds:.0f} %{', a coin toss' * row.coin_toss}",
                "Measured on": text.plain(needed + row.measured_on),
            }
        )
    if not rows:
        return []
    note = (
        "Each row compares this command with the same one without the setting, at the engine's default; settings "
        "interact, so rows need not multiply to the gain. The odds are for a gain of more than 0.5 %."
    )
    if any(row.coin_toss for row in study.recommendation.contributions):
        note += " A coin toss remains only for lack of launches of the command without it."
    return [note, text.table(rows, "   rrr")]


def inert(study: StudyRecord) -> list[str]:
    """List the knobs and flags without effect, and the source of that claim."""
    lines = []
    for row in study.recommendation.inert:
        # A switch has no value.
        shown = [value for value in row.values if not (value is True and row.knob.startswith("-"))]
        values = ", ".join(text.code(text.scalar(value)) for value in shown)
        lines.append(f"- {text.code(row.knob)}{f' ({values})' if values else ''}: {row.reason}.")
    return ["\n".join(lines)]


def setup(study: StudyRecord) -> list[str]:
    """Tabulate model, hardware, engines, objective, load and budget, then the workloads."""
    spec, outcome = study.spec, study.recommendation
    excluded = {exclusion.engine for exclusion in outcome.excluded}
    launched = {launch.trial.configuration.engine for launch in study.launches}
    engines = "; ".join(
        f"{engine.name} {engine.version}" + ("" if engine.name in launched else " (not launched)")
        for engine in spec.engines
        if engine.name not in excluded
    )
    card = spec.hardware
    hardware = (
        f"{card.name}, without a GPU ({card.memory_gb:g} GB of memory; {card.source})"
        if card.vendor == "cpu"
        else f"{spec.gpus} × {card.name.upper()} on one node ({card.memory_gb:g} GB and {card.bandwidth_tb_s:g} TB/s "
        f"each, {card.link_gb_s:g} GB/s between GPUs)"
    )
    noise = f"log-normal, sigma {spec.noise:g}, one draw per launch" if spec.noise else "none added"
    rows = {
        "Model": text.code(spec.model.id),
        "Hardware": hardware,
        "Engines searched": engines,
        "Trials ran on": f"{spec.on} ({outcome.label})",
        "Objective": f"{text.title(spec.objective)} on {_aim(spec)}",
        "Second goal": ", ".join(
            f"{text.title(goal)} on {text.code(spec.workloads[0])}" for goal in spec.goals[1:]
        ),
        "Limits (SLOs)": ", ".join(text.code(str(slo)) for slo in spec.slos) or "none",
        "A good request meets": ", ".join(
            f"{text.title(f'{n}_ms')} {limit:g}" for n, limit in spec.goodput.items()
        ),
        **rows_of(spec),
        "Pinned knobs": text.knobs(spec.pins) or "none",
        "Baseline": text.code(redact.text(spec.baseline))
        if spec.baseline
        else "the default one (launch 0)",
        "Budget": f"{spec.launches} launches" + (f", {spec.hours:g} hours" if spec.hours else ""),
        "Sampler, seed, noise": f"{spec.sampler}, seed {spec.seed}, {noise}",
    }
    notes = "\n".join(f"- {text.plain(redact.text(note))}" for note in spec.notes)
    table = text.table(
        [
            {"What": k, "Value": value}
            for k, value in rows.items()
            if value or k == "Engines searched"
        ]
    )
    loads = text.table([_load(study, name) for name in spec.workloads], "  rrr")
    return [table, notes, "Workloads, with the client's counts:", loads]


def _load(study: StudyRecord, name: str) -> dict[str, str]:
    """Return a workload's row: its requests and arrivals, and the counts of the first launch that
    completed it."""
    said = "–"
    with suppress(BadInput):  # a file that is gone, or a name of a library of one's own
        workload = load_workload(name)
        offered = dict.fromkeys(
            f"{point.prompts} prompts {point.arrival.describe()}" for point in workload.points
        )
        searched = study.spec.load_key and name == study.spec.workloads[0]
        how = "arrival times set by the load search" if searched else "; ".join(offered)
        streaming = "streamed" if workload.streaming else "not streamed"
        # A form such as random:IN:OUT says itself where it comes from.
        origin = "" if ":" in name else f"; from: {text.plain(workload.origin)}"
        said = f"{text.plain(workload.description)}. Offered: {how}, {streaming}{origin}"
    complete = (
        launch.result.metrics for launch in study.launches if launch.result.state is State.COMPLETE
    )
    metrics = next((metrics[name] for metrics in complete if name in metrics), {})
    done = metrics.get("completed")
    row = {
        "Workload": text.code(name),
        "Requests and arrivals": said,
        "Requests": f"{done:,.0f}" if done else "–",
    }
    for side in ("input", "output"):
        total = metrics.get(f"total_{side}_tokens")
        row[f"Mean {side} tokens"] = readable.number(
            total / done if total is not None and done else None
        )
    return row


def _aim(spec: StudySpec) -> str:
    several = " (weighted geometric mean)" if len(objective.weights(spec)) > 1 else ""
    return f"{text.code(objective.on_workloads(spec))}{several}"


def hours(study: StudyRecord) -> list[str]:
    """State the study's cost, and each phase's share of the launches' seconds."""
    seconds = Counter[str]()
    for launch in study.launches:
        seconds.update(launch.result.times_s)
    shares = ", ".join(
        f"{phase} {100 * took / seconds.total():.1f} %" for phase, took in seconds.items() if took
    )
    cost = words.money(study.recommendation)
    return [text.plain(" ".join([*cost, f"By phase: {shares}."]))] if cost else []


def limits(study: StudyRecord) -> list[str]:
    """List the limits of validity of the numbers."""
    spec, outcome = study.spec, study.recommendation
    points = []
    if outcome.origin is Evidence.REPLAYED:
        points.append(
            f"The evidence is {outcome.label}: how the launches of {text.code(spec.on)} were made, and "
            "whether all were made in the same way, is unknown."
        )
    elif outcome.origin is not Evidence.MEASURED:
        points.append(
            f"The evidence is {outcome.label}: a real server may differ in every figure and may fail "
            "where none failed here. Trust the ranking more than the numbers."
        )
        if unseen := words.not_simulated(outcome):
            points.append(
                f"{unseen} No figure depends on these settings; on a real server they may matter."
            )
    points += [
        f"They are valid for one node of {outcome.gpus} × {outcome.hardware} and the named engine versions; "
        "another version may give other numbers.",
        f"The objective was {text.title(spec.objective)} on {_aim(spec)}. Other lengths "
        "or arrivals can change the ranking.",
        "Only the server as it runs was measured: how good others are is unknown."
        if outcome.address
        else "The search launched some of the valid configurations, not all: a better one may exist.",
        "The interval covers the spread between launches, not an error common to all launches.",
        words.unjudged(outcome),
    ]
    if outcome.recommended and outcome.recommended.objective.repeats < 2:
        points.append(
            "The recommended configuration was launched only once: its figure has no interval."
        )
    return ["\n".join(f"- {point}" for point in points)]


def reproduction(study: StudyRecord) -> list[str]:
    """Render the command that repeats the study, and a list of its files; empty for an unfinished
    study."""
    if study.recommendation.verdict is Verdict.UNFINISHED:
        return []
    home = study.folder.resolve().parent.parent
    uri = tracking_uri(home)
    where, block = "Every run in a browser:", [text.block(ui_command(home), "bash")]
    if is_server(uri):
        where, block = f"Every run is in MLflow at <{shown(uri)}>.", []
    passed_through = chain.from_iterable(map(shlex.split, study.spec.engine_args.values()))
    again = redact.text(command_line(study.spec), redact.secrets_in(list(passed_through), {}))
    return [
        "Run the same study again:",
        text.block(again, "bash"),
        "Settings are in `study.yaml`, launches in `results.jsonl`, logs in `trials/`, the command as a "
        f"script in `serve.sh`. {where}",
        *block,
    ]
