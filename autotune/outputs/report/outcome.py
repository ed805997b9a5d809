"""The first sections of the report: conclusion, before and after, workloads, the front of two
goals, gain per knob.

Behind them what was asked and how it was measured, and how to do it again.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from autotune.base import BadInput, Evidence, by_key, redact
from autotune.load.metrics import readable
from autotune.load.metrics.table import COSTS, INVALID, curve_of, is_valid_row, shown_in, title_of
from autotune.load.workloads import load_workload
from autotune.tuner.backends import backend_of
from autotune.tuner.search import objective
from autotune.tuner.study.home import (
    Home,
    is_server,
    library_of,
    tracking_uri,
    ui_command,
    without_credentials,
)
from autotune.tuner.study.options import command_line, rows_of
from autotune.tuner.study.recommendation import Choice, MatrixCell, NearestMiss, Verdict
from autotune.tuner.study.results import is_held
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Role, State

from . import StudyRecord, sentences, text
from .tables import average, best_per_engine, broken_slos

_WORTH = {
    Evidence.MEASURED: "The figures were measured on real servers on the named hardware.",
    Evidence.EMULATED: "No GPU ran: the servers were emulated. The figures are predictions of the "
    "hardware model, not measurements.",
    Evidence.SIMULATED: "No server ran: every figure is a prediction of the built-in model of "
    "engine and hardware. Measure before you rely on it.",
    Evidence.REPLAYED: "No server ran: every figure was read from recorded launches, and is as "
    "good as they were.",
}
SHOWN = shown_in("report")
"""Metrics shown for every workload."""


def opening(study: StudyRecord) -> list[str]:
    """Return title and evidence banner."""
    outcome = study.recommendation
    aim = text.escape(study.spec.objective.replace("_", " "))
    where = f"{text.escape(outcome.model)} on {outcome.gpus}×{outcome.hardware.upper()}"
    parts = [f"# {where}: tuned for {aim}"]
    if outcome.verdict is Verdict.UNFINISHED:
        most = max(outcome.launches, study.spec.launches)
        parts.append(
            f"> **UNFINISHED.** {outcome.launches} of at most {most} launches have ended; nothing "
            "is decided, and nothing is recommended yet."
        )
    return [*parts, f"> **{outcome.label}.** {_WORTH[outcome.origin]}"]


def conclusion(study: StudyRecord) -> list[str | text.Facts]:
    """Return verdict and gain, the command, its trade-offs, the alternatives with their cost, and a
    summary."""
    outcome = study.recommendation
    if outcome.verdict is Verdict.UNFINISHED:
        return _so_far(study)
    parts: list[str | text.Facts] = [_facts(study)]
    choice = outcome.recommended
    if not choice:
        parts += _nothing_feasible(study)
    elif outcome.advice:
        parts += ["This measures the options below:", text.block(outcome.advice.measure, "bash")]
    elif choice.external:
        program = text.code(choice.argv[0])
        parts.append(f"autotune did not start the server ({program}); its command is unknown.")
    else:
        kind = "Serving command"
        if choice.stand_in:
            kind = "The table has no command; its row in the form of one"
        kind += f" ({text.escape(choice.engine)} {choice.engine_version}):"
        parts += [kind, _command(choice)]
    parts += [_list(sentences.promises(outcome)), *map(_command, outcome.alternatives)]
    left = [sentences.remaining(outcome), sentences.not_looked_at(outcome)]
    parts.append(_list([*sentences.paragraphs(outcome), *left]))
    failures = (row.result.failure for row in study.launches if row.role is Role.BASELINE)
    if not outcome.baseline and (failure := next(filter(None, failures), None)):
        message = text.escape(redact.text(failure.message))
        parts.append(f"The baseline failed with {failure.summary}: {message}")
    if outcome.stop_reason:
        parts.append(f"The study ended because: {text.escape(outcome.stop_reason)}.")
    return parts


def _nothing_feasible(study: StudyRecord) -> list[str]:
    """Return the command of the closest attempt, and the launches that are beyond a limit."""
    parts = []
    outcome = study.recommendation
    if (miss := outcome.nearest_miss) and not outcome.address:
        parts += ["Command of the closest attempt:", _command(miss)]
    valid = [launch for launch in study.launches if launch.result.metrics]
    if not valid:
        return [*parts, "No launch is valid. The failures and their causes are below."]
    spec = study.spec.with_goodput_floor
    limits = ", ".join(text.code(slo.description) for slo in spec.slos) or "none"
    lines = [
        f"- launch {launch.number}: {text.escape('; '.join(slos))}"
        for launch in valid
        if (slos := broken_slos(spec, launch.result.metrics))
    ]
    counts = f"Valid launches: {len(valid)}; beyond a limit: {len(lines)}."
    return [*parts, f"{counts} Limits: {limits}.", "\n".join(lines)]


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {text.prose(line)}" for line in lines if line)


def _so_far(study: StudyRecord) -> list[str | text.Facts]:
    """Return the best configuration of an unfinished study, and the command that continues it."""
    parts: list[str | text.Facts] = ["No launch meets the limits so far."]
    for launch, value, count in best_per_engine(study)[:1]:
        trial = launch.trial
        over = ""
        own = [row for row in study.launches if row.role is Role.BASELINE]
        if trial.role is not Role.BASELINE and (base := average(study.values(own))):
            over = f", {readable.change(base, value)} against the baseline"
        figure = text.measure(study.spec.objective, value)
        parts = [
            f"Best so far: {trial.configuration.engine} {trial.engine_version}, {figure} "
            f"({text.launches(count)}{over}). It is not confirmed yet.",
            _block(trial.command.shell(), trial.command.words, trial.command.env),
        ]
    if is_held(study.folder):
        return [*parts, "A tuner is running on the study; `autotune list` shows its progress."]
    home = Home(study.folder.parent.parent)
    return [*parts, "Continue with:", text.block(home.resume_command(study.spec.study), "bash")]


def _facts(study: StudyRecord) -> text.Facts:
    """List the summary cells: verdict, gain with both intervals, launches and their hours."""
    outcome = study.recommendation
    metric = study.spec.objective
    choice = outcome.recommended
    baseline = None if outcome.address else outcome.baseline
    facts = {} if outcome.address else {"Verdict": outcome.qualified_verdict}
    if outcome.gain_percent is not None and choice and not outcome.address:
        facts["Gain over the baseline"] = readable.gain_in_words(metric, outcome.gain_percent)
        facts["95 % interval, launch to launch"] = readable.gains(metric, outcome.gain_ci95)
    if ends := outcome.gain_interval90_on_a_node:
        facts["90 % interval on a real node"] = readable.gains(metric, ends)
    if choice:
        goal = choice.objective
        facts[text.title(goal.metric)] = _from(
            goal.value, baseline.objective.value if baseline else None
        )
        if outcome.address:
            facts["95 % interval"] = readable.interval(goal.ci95)
        if goal.interval90_on_a_node:
            facts[f"{title_of(goal.metric)[0]} on a real node (90 %)"] = sentences.on_a_node(goal)
        if (longest := choice.longest_request_tokens) is not None:
            known = outcome.baseline.longest_request_tokens if outcome.baseline else None
            other = f" from {known:,}" if known not in (None, longest) else ""
            facts["Longest request"] = f"{longest:,} tokens{other}"
        if row := outcome.workloads.get(goal.workload):
            before = (baseline and row.baseline) or {}
            after = row.recommended or {}
            for name in ("p99_ttft_ms", "p99_tpot_ms"):
                if after.get(name) and name != goal.metric:
                    facts[text.title(name)] = _from(after[name], before.get(name) or None)
    facts["Launches"] = f"{outcome.launches}, {text.seconds(outcome.duration_s)}"
    return text.Facts(facts)


def _from(value: float, baseline: float | None) -> str:
    """Format a figure and the baseline's."""
    return " from ".join(readable.numbers([value] if baseline is None else [value, baseline]))


def predictions(study: StudyRecord) -> list[str]:
    """List prediction and measurement of each command of the study that is verified."""
    outcome = study.recommendation
    verified = study.spec.verifies
    if not verified or not outcome.predictions:
        return []
    lines = [
        f"- {text.escape(line)} {text.code(redact.text(one.command))}"
        for line, one in zip(sentences.predictions(outcome), outcome.predictions, strict=True)
    ]
    return [
        f"{text.title(study.spec.objective)}, as study {text.code(verified.study)} predicted it "
        f"({verified.label}). The error is prediction over measurement.",
        "\n".join(lines),
    ]


def regressions(study: StudyRecord) -> list[str]:
    """Report how the study's commands run on each later version of the engine."""
    parts = []
    for one in study.recommendation.regressions:
        head, *lines = map(text.escape, sentences.regression(one, study.recommendation))
        parts.append("\n".join([head, "", *(f"- {line}" for line in lines)]))
        if one.tune_again:
            parts.append(text.block(one.tune_again, "bash"))
    return parts


def comparison(study: StudyRecord) -> list[str]:
    """Tabulate baseline and recommendation: the objective over the workloads, then the metrics of
    each."""
    outcome = study.recommendation
    spec = study.spec
    if not outcome.workloads or outcome.address:
        return []
    heading = readable.gain_heading(spec.objective)
    asked = (*SHOWN, *spec.goals, *(slo.metric for slo in spec.slos), *COSTS)
    figures = []
    parts = []
    for name, both in outcome.workloads.items():
        sides = both.baseline or {}, both.recommended or {}
        values = [side.get(spec.objective) for side in sides]
        figures.append((text.code(name), values, both.gain_percent))
        lines = []
        for metric in dict.fromkeys(asked):
            pair = [side.get(metric) for side in sides]
            if pair != [None, None]:
                title = text.title(metric)
                change = readable.change(*pair)
                lines.append({"Metric": title, **_sides(pair), "Change": change})
        parts += [f"### {text.code(name)}", text.table(lines, " rrr")]
    goals = {choice.objective.workload for choice in study.choices.values()}
    for name in goals - outcome.workloads.keys():
        chosen = outcome.baseline, outcome.recommended
        values = [choice.objective.value if choice else None for choice in chosen]
        name = f"weighted geometric mean, {text.code(name)}"
        figures.append((name, values, outcome.gain_percent))
    rows = [
        {"Workload": name, **_sides(values), heading: readable.gain(spec.objective, gain)}
        for name, values, gain in figures
    ]
    note = f"{text.title(spec.objective)}. Means over valid launches; – means not measured."
    return [note, text.table(rows, " rrr"), *parts]


def _sides(values: Iterable[object]) -> dict[str, str]:
    """Return the cells of a figure of baseline and recommended command."""
    return dict(zip(("Baseline", "Recommended"), readable.numbers(values), strict=True))


def measured(study: StudyRecord) -> list[str]:
    """Tabulate the metrics of a server that somebody else runs, by workload."""
    outcome = study.recommendation
    parts = []
    for name, both in outcome.workloads.items() if outcome.address else ():
        metrics = both.recommended or {}
        rows = [
            {"Metric": text.title(metric), "Measured": readable.number(metrics[metric])}
            for metric in dict.fromkeys((*SHOWN, study.spec.objective, *COSTS))
            if metric in metrics
        ]
        parts += [f"### {text.code(name)}", text.table(rows, " r")]
    return parts


def matrix(study: StudyRecord) -> list[str]:
    """Tabulate the finalists by workload, with the best command of each; [] for one workload."""
    outcome = study.recommendation
    spec = study.spec
    if len(spec.workloads) < 2 or not outcome.matrix:
        return []
    rows = []
    best = []
    for row in outcome.matrix:
        name = f"{row.role}, {row.engine} {text.code(row.fingerprint)}"
        rows.append({"Configuration": f"{name}{study.mark(row.fingerprint)}"})
        for workload in spec.workloads:
            rows[-1][text.code(workload)] = _cell(spec.objective, row.workloads.get(workload))
        wins = [text.code(name) for name, cell in row.workloads.items() if cell.best]
        chosen = outcome.recommended
        if wins and (not chosen or row.fingerprint != chosen.fingerprint):
            best.append(f"Best mean on {' and '.join(wins)}: the {name}.")
            if row.role != "baseline":
                best.append(_command(row))
    note = (
        f"{text.title(spec.objective)}: the mean, the gain over the baseline, and its 95 % "
        "interval; the best mean of each workload is bold. SLOs are those of the first workload."
    )
    parts = [note, text.table(rows, " " + "r" * len(spec.workloads))]
    if lost := sentences.trade_off(outcome):
        parts.append(text.escape(f"The recommended configuration {lost}."))
    return [*parts, *best]


def _cell(metric: str, cell: MatrixCell | None) -> str:
    if not cell:
        return "–"
    value = readable.number(cell.value)
    if cell.best:
        value = f"**{value}**"
    if cell.gain_percent is None:
        return value
    within = f" ({readable.gains(metric, cell.ci95)})" if cell.ci95 else ""
    return f"{value}, {readable.gain(metric, cell.gain_percent)}{within}"


def _command(choice: Choice | NearestMiss) -> str:
    return _block(choice.command, choice.argv, choice.env)


def _block(command: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    return text.block(redact.text(command, redact.secrets_in(argv, env)), "bash")


def front(study: StudyRecord) -> list[str]:
    """Tabulate the non-dominated configurations of two goals."""
    outcome = study.recommendation
    if not outcome.front:
        return []
    parts = [
        "Every measured configuration that meets the SLOs and that no other one beats in one goal "
        "without losing in the other. Means over valid launches, with 95 % "
        "intervals if there are several. The recommendation depends only on the objective."
    ]
    chosen = outcome.recommended.fingerprint if outcome.recommended else ""
    rows = []
    commands = []
    for number, point in enumerate(outcome.front, 1):
        made = f"{point.engine} {point.engine_version} {text.code(point.fingerprint)}"
        name = f"{number} (recommended)" if point.fingerprint == chosen else str(number)
        row = {"Point": name, "Configuration": f"{made}{study.mark(point.fingerprint)}"}
        for goal in (point.objective, point.second):
            ends = f" [{', '.join(readable.numbers(goal.ci95))}]" if goal.ci95 else ""
            row[text.title(goal.metric)] = f"{readable.number(goal.value)}{ends}"
        row |= {"Launches": str(point.objective.repeats), "Evidence": point.label}
        rows.append(row)
        commands += [f"Point {number}:", _command(point)]
    return [*parts, text.table(rows, "  rrr"), *commands]


_EXTRA_METRICS = ("output_tokens_per_s_per_user", "mean_ttft_ms", "cost_per_million_tokens")
"""Metrics shown for both curves next to the deciding metric, if measured."""


def curves(study: StudyRecord) -> list[str]:
    """Tabulate both curves over requests in flight, their crossing, and the invalid loads."""
    outcome = study.recommendation
    curves = study.recommendation.curves
    if not curves:
        return []
    workload = outcome.workloads.get(curves.workload)
    sides = [
        {row["concurrency"]: row for row in curve_of(side or {}) if "concurrency" in row}
        for side in ((workload.baseline, workload.recommended) if workload else ())
    ]
    measured = {name for side in sides for row in side.values() for name in row} - {curves.metric}
    extra = [name for name in _EXTRA_METRICS if name in measured]
    rows = []
    for point in curves.points:
        row = {
            "In flight": str(point.concurrency),
            "Baseline": readable.number(point.baseline),
            "Recommended": readable.number(point.recommended),
            readable.gain_heading(curves.metric): readable.gain(curves.metric, point.gain_percent),
            "95 % interval": readable.gains(curves.metric, point.ci95),
        }
        for name in extra:
            values = (readable.number(side.get(point.concurrency, {}).get(name)) for side in sides)
            row[f"{text.title(name)}: baseline, recommended"] = ", ".join(values)
        rows.append(row)
    theirs, mine = curves.launches
    parts = [
        f"{text.title(curves.metric)} on {text.code(curves.workload)} by requests in flight, on "
        f"the servers of the finals: {text.launches(theirs)} of the baseline, {mine} of the "
        "recommended command. A gain is significant if it exceeds the noise between launches "
        f"({curves.noise_percent:.1f} %).",
        text.table(rows, "r" * (5 + len(extra))),
    ]
    if crossing := sentences.crossing(outcome):
        parts.append(f"**{crossing}**")
    ahead = any(point.faster == "baseline" for point in curves.points)
    if ahead and outcome.baseline and outcome.recommended:
        parts += ["The baseline's command:", _command(outcome.baseline)]
    parts.append(sentences.drafted(outcome))
    for one in outcome.drafts_by_load:
        if one.ci95 and outcome.recommended:
            parts += [
                f"With {one.speculative_tokens} drafted tokens:",
                _block(one.command, outcome.recommended.argv, outcome.recommended.env),
            ]
    invalid = [
        f"- launch {launch.number} at {row.get('concurrency')} in flight is invalid: "
        f"{text.escape(str(row.get(INVALID) or 'the client did not keep up'))}"
        for launch in study.launches
        for row in launch.result.curve(study.spec.workloads[0])
        if not is_valid_row(row)
    ]
    return [*parts, "\n".join(invalid)]


def contributions(study: StudyRecord) -> list[str]:
    """Tabulate the gain of each setting of the winner."""
    rows = []
    metric = study.spec.objective
    for row in study.recommendation.contributions:
        gain = readable.gain(metric, row.gain_percent)
        source = row.measured_on
        odds = "–"
        if row.needed_to == "start":
            gain = "needed to start"
        elif row.needed_to is not None:
            source = f"needed to {row.needed_to}; {source}"
        if row.odds is not None:
            odds = f"{100 * row.odds:.0f} %{', a coin toss' if row.coin_toss else ''}"
        rows.append(
            {
                "Setting": text.code(row.knob),
                "Without it": text.code(text.scalar(row.from_)),
                "In this command": text.code(text.scalar(row.to)),
                readable.gain_heading(metric): gain,
                "95 % interval": readable.gains(metric, row.ci95),
                "Odds": odds,
                "Measured on": text.escape(source),
            }
        )
    if not rows:
        return []
    note = (
        "Each row compares this command with the same one without the setting, at the engine's "
        "default; settings interact, so rows need not multiply to the gain. The odds are for a "
        "gain of more than 0.5 %."
    )
    if any(row.coin_toss for row in study.recommendation.contributions):
        note += " A coin toss remains only for lack of launches of the command without it."
    return [note, text.table(rows, "   rrr")]


def inert(study: StudyRecord) -> list[str]:
    """List the knobs and flags without effect, and the source of that claim."""
    lines = []
    for row in study.recommendation.inert:
        # A switch has no value.
        values = [value for value in row.values if not (value is True and row.knob.startswith("-"))]
        shown = ", ".join(text.code(text.scalar(value)) for value in values)
        lines.append(f"- {text.code(row.knob)}{f' ({shown})' if shown else ''}: {row.reason}.")
    return ["\n".join(lines)]


def setup(study: StudyRecord) -> list[str]:
    """Tabulate model, hardware, engines, objective, load and budget, then the workloads."""
    spec = study.spec
    outcome = study.recommendation
    excluded = {exclusion.engine for exclusion in outcome.excluded}
    launched = {launch.engine for launch in study.launches}
    engines = [
        f"{engine.name} {engine.version}{'' if engine.name in launched else ' (not launched)'}"
        for engine in spec.engines
        if engine.name not in excluded
    ]
    card = spec.hardware
    hardware = (
        f"{spec.gpus} × {card.name.upper()} on one node ({card.memory_gb:g} GB and "
        f"{card.bandwidth_tb_s:g} TB/s each, {card.link_gb_s:g} GB/s between GPUs)"
    )
    if card.vendor == "cpu":
        memory = f"{card.memory_gb:g} GB of memory"
        hardware = f"{card.name}, without a GPU ({memory}; {card.source})"
    noise = f"log-normal, sigma {spec.noise:g}, one draw per launch" if spec.noise else "none added"
    baseline = "the default one (launch 0)"
    if spec.baseline:
        baseline = text.code(redact.text(spec.baseline))
    rows = {
        "Model": text.code(spec.model.id),
        "Hardware": hardware,
        "Engines searched": "; ".join(engines),
        "Trials ran on": f"{spec.on} ({outcome.label})",
        "Objective": f"{text.title(spec.objective)} on {_aim(spec)}",
        "Second goal": f"{text.title(spec.pareto)} on {text.code(spec.workloads[0])}"
        if spec.pareto
        else "",
        "Limits (SLOs)": ", ".join(text.code(str(slo)) for slo in spec.slos) or "none",
        "A good request meets": ", ".join(
            f"{text.title(f'{name}_ms')} {limit:g}" for name, limit in spec.goodput.items()
        ),
        **rows_of(spec),
        "Pinned knobs": text.knobs(spec.pins) or "none",
        "Baseline": baseline,
        "Budget": f"{spec.launches} launches{f', {spec.hours:g} hours' if spec.hours else ''}",
        "Sampler, seed, noise": f"{spec.sampler}, seed {spec.seed}, {noise}",
    }
    shown = [
        {"What": name, "Value": value}
        for name, value in rows.items()
        if value or name == "Engines searched"
    ]
    notes = "\n".join(f"- {text.escape(redact.text(note))}" for note in spec.notes)
    loads = text.table([_load(study, name) for name in spec.workloads], "  rrr")
    return [text.table(shown), notes, "Workloads, with the client's counts:", loads]


def _load(study: StudyRecord, name: str) -> dict[str, str]:
    """Return a workload's row: its requests and arrivals, and the counts of the first launch that
    completed it."""
    description = "–"
    with suppress(BadInput):  # a file that is gone, or a name of a library of one's own
        workload = load_workload(name, library_of(study.spec))
        offered = dict.fromkeys(
            f"{point.prompts} prompts {point.arrival.describe()}" for point in workload.points
        )
        arrivals = "; ".join(offered)
        if not study.spec.load.fixed and name == study.spec.workloads[0]:
            arrivals = "arrival times set by the load search"
        streaming = "streamed" if workload.streaming else "not streamed"
        # A form such as random:IN:OUT says itself where it comes from.
        origin = "" if ":" in name else f"; from: {text.escape(workload.origin)}"
        requests = text.escape(workload.description)
        description = f"{requests}. Offered: {arrivals}, {streaming}{origin}"
    results = (launch.result for launch in study.launches)
    complete = (result.metrics for result in results if result.state is State.COMPLETE)
    metrics = next((metrics[name] for metrics in complete if name in metrics), {})
    done = metrics.get("completed")
    row = {
        "Workload": text.code(name),
        "Requests and arrivals": description,
        "Requests": f"{done:,.0f}" if done else "–",
    }
    for side in ("input", "output"):
        total = metrics.get(f"total_{side}_tokens")
        mean = total / done if total is not None and done else None
        row[f"Mean {side} tokens"] = readable.number(mean)
    return row


def _aim(spec: StudySpec) -> str:
    several = " (weighted geometric mean)" if len(objective.weights(spec)) > 1 else ""
    return f"{text.code(objective.on_workloads(spec))}{several}"


def hours(study: StudyRecord) -> list[str]:
    """State the study's cost, and each phase's share of the launches' seconds."""
    cost = sentences.money(study.recommendation)
    seconds = Counter[str]()
    if not cost:
        return []
    for launch in study.launches:
        seconds.update(launch.result.times_s)
    shares = [
        f"{phase} {100 * phase_s / seconds.total():.1f} %"
        for phase, phase_s in seconds.items()
        if phase_s
    ]
    return [text.escape(" ".join([*cost, f"By phase: {', '.join(shares)}."]))]


def limits(study: StudyRecord) -> list[str]:
    """List the limits of validity of the numbers."""
    spec = study.spec
    outcome = study.recommendation
    points = []
    if outcome.origin is Evidence.REPLAYED:
        points.append(
            f"The evidence is {outcome.label}: how the launches of {text.code(spec.on)} were made, "
            "and whether all were made in the same way, is unknown."
        )
    elif outcome.origin is not Evidence.MEASURED:
        points.append(
            f"The evidence is {outcome.label}: a real server may differ in every figure and may "
            "fail where none failed here. Trust the ranking more than the numbers."
        )
        if unseen := sentences.not_simulated(outcome):
            effect = "No figure depends on these settings; on a real server they may matter."
            points.append(f"{unseen} {effect}")
    better = (
        "The search launched some of the valid configurations, not all: a better one may exist."
    )
    if outcome.address:
        better = "Only the server as it runs was measured: how good others are is unknown."
    points += [
        f"They are valid for one node of {outcome.gpus} × {outcome.hardware} and the named engine "
        "versions; another version may give other numbers.",
        f"The objective was {text.title(spec.objective)} on {_aim(spec)}. Other lengths or "
        "arrivals can change the ranking.",
        better,
        "The interval covers the spread between launches, not an error common to all launches.",
        sentences.unjudged(outcome),
    ]
    if outcome.recommended and outcome.recommended.objective.repeats < 2:
        points.append(
            "The recommended configuration was launched only once: its figure has no interval."
        )
    remarked = by_key(
        (remark, str(launch.number))
        for launch in study.launches
        for remark in launch.result.remarks
    )
    points += [f"{remark} (launches {', '.join(of)})." for remark, of in remarked.items()]
    return ["\n".join(f"- {point}" for point in points)]


def reproduction(study: StudyRecord) -> list[str]:
    """Render the command that repeats the study, and a list of its files; empty for an unfinished
    study."""
    if study.recommendation.verdict is Verdict.UNFINISHED:
        return []
    home = study.folder.resolve().parent.parent
    uri = tracking_uri(home)
    runs = "Every run in a browser:"
    block = text.block(ui_command(home), "bash")
    if is_server(uri):
        runs = f"Every run is in MLflow at <{without_credentials(uri)}>."
        block = ""
    passed_through = chain.from_iterable(map(shlex.split, study.spec.engine_args.values()))
    again = command_line(study.spec, backend_of(study.spec).unused_options)
    again = redact.text(again, redact.secrets_in(list(passed_through), {}))
    return [
        "Run the same study again:",
        text.block(again, "bash"),
        "Settings are in `study.yaml`, launches in `results.jsonl`, logs in `trials/`, the command "
        f"as a script in `serve.sh`. {runs}",
        block,
    ]
