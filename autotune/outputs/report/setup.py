"""What was asked and how it was measured: model, hardware, versions, loads, noise; and how to do it again."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import suppress
from itertools import chain

from autotune import redact
from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.outputs.report import StudyRecord, text, words
from autotune.search import objective
from autotune.simulator.resolve_command import knobs_read, resolve_command
from autotune.space.context import Context
from autotune.study.home import library_of
from autotune.study.options import command_line, rows_of
from autotune.study.recommendation import Verdict
from autotune.study.spec import StudySpec
from autotune.study.tracking_uri import is_server, shown, tracking_uri, ui_command
from autotune.trial import Evidence, State

_PHASES = {
    "launch": "processes and containers, waiting for another try",
    "ready": "weights, graphs, until it answers",
    "warmup": "requests that do not count",
    "load": "the measurement, the check of answers",
    "stop": "until the GPUs are free",
}
_CLOCK = {Evidence.SIMULATED: " of the simulated node", Evidence.REPLAYED: " as recorded"}


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
        "Second goal": ", ".join(f"{text.title(goal)} on {text.code(spec.workloads[0])}" for goal in spec.goals[1:]),
        "Limits (SLOs)": ", ".join(text.code(str(slo)) for slo in spec.slos) or "none",
        "A good request keeps": ", ".join(f"{text.title(f'{n}_ms')} {limit:g}" for n, limit in spec.goodput.items()),
        **rows_of(spec),
        "Pinned knobs": text.knobs(spec.pins) or "none",
        "Baseline": text.code(redact.text(spec.baseline)) if spec.baseline else "the default one (launch 0)",
        "Budget": f"{spec.launches} launches" + (f", {spec.hours:g} hours" if spec.hours else ""),
        "Used": f"{outcome.launches} launches, {text.seconds(outcome.duration_s)}{_CLOCK.get(outcome.evidence, '')}",
        "Sampler, seed, noise": f"{spec.sampler}, seed {spec.seed}, {noise}",
    }
    notes = "\n".join(f"- {text.plain(redact.text(note))}" for note in spec.notes)
    table = text.table([{"What": k, "Value": value} for k, value in rows.items() if value or k == "Engines searched"])
    loads = text.table([_load(study, name) for name in spec.workloads], "  rrr")
    return [table, notes, "Workloads, with what the client counted:", loads]


def _load(study: StudyRecord, name: str) -> dict[str, str]:
    """Return a workload's row: its requests and arrivals, and what the first launch counted that answered it."""
    said = "–"
    with suppress(BadInput):  # a file that is gone, or a name of a library of one's own
        workload = load_workload(name)
        offered = dict.fromkeys(f"{point.prompts} prompts {point.arrival.describe()}" for point in workload.points)
        searched = study.spec.load_key and name == study.spec.workloads[0]
        how = "timed anew by the load search" if searched else "; ".join(offered)
        streaming = "streamed" if workload.streaming else "not streamed"
        # A form such as random:IN:OUT says itself where it comes from.
        origin = "" if ":" in name else f"; from: {text.plain(workload.origin)}"
        said = f"{text.plain(workload.description)}. Offered: {how}, {streaming}{origin}"
    complete = (launch.result.metrics for launch in study.launches if launch.result.state is State.COMPLETE)
    metrics = next((metrics[name] for metrics in complete if name in metrics), {})
    done = metrics.get("completed")
    row = {"Workload": text.code(name), "What is sent, and how": said, "Requests": f"{done:,.0f}" if done else "–"}
    for side in ("input", "output"):
        total = metrics.get(f"total_{side}_tokens")
        row[f"Mean {side} tokens"] = text.number(total / done if total is not None and done else None)
    return row


def _aim(spec: StudySpec) -> str:
    several = " (weighted geometric mean)" if len(objective.weights(spec)) > 1 else ""
    return f"{text.code(objective.on_workloads(spec))}{several}"


def hours(study: StudyRecord) -> list[str]:
    """Split the node-hours of the study's cost by phase; launches side by side share them by the seconds they took."""
    spent, seconds = study.recommendation.study_cost, Counter[str]()
    for launch in study.launches:
        seconds.update(launch.result.times_s)
    if spent is None or not seconds.total():
        return []
    rows = []
    for phase, doing in _PHASES.items():
        if share := seconds[phase] / seconds.total():
            what = {"Phase": f"{phase} ({doing})", "Node-hours": f"{share * spent.node_hours:,.2f}"}
            rows.append({**what, "Share": f"{100 * share:.1f} %"})
    return [text.plain(" ".join(words.money(study.recommendation))), text.table(rows, " rr")]


def limits(study: StudyRecord) -> list[str]:
    """List the limits of what the numbers say."""
    spec, outcome = study.spec, study.recommendation
    points = []
    if outcome.origin is Evidence.REPLAYED:
        points.append(
            f"The evidence is {outcome.label}: how the launches of {text.code(spec.on)} were made, and "
            "whether they were made alike, is not known here."
        )
    elif outcome.origin is not Evidence.MEASURED:
        points.append(
            f"The evidence is {outcome.label}: a real server may differ in every figure and may fail "
            "where none failed here. The order of configurations is more to be trusted than the figures."
        )
        if unread := _unread_knobs(study):
            points.append(
                f"The simulator does not read {', '.join(map(text.code, unread))}: configurations that differ in "
                "nothing else are equal here, whatever they are on a real server."
            )
    points += [
        f"They hold for one node of {outcome.gpus} × {outcome.hardware} and for the engine versions named; "
        "another version is another engine.",
        f"The objective was {text.title(spec.objective)} on {_aim(spec)}. Another mix of "
        "lengths, or another way to offer the load, can turn the order round.",
        "The search tried some of the valid configurations, not all: a better one may exist.",
        "The interval covers the spread between launches, not a fault that all launches share.",
        "The quality of the answers was not judged.",
    ]
    if outcome.recommended and outcome.recommended.objective.repeats < 2:
        points.append("The recommended configuration was launched once only: its figure has no interval.")
    return ["\n".join(f"- {point}" for point in points)]


def _unread_knobs(study: StudyRecord) -> list[str]:
    """Return the knobs in which complete launches of an engine differ and that the simulator does not read."""
    spec, library, found = study.spec, library_of(study.spec), dict[str, None]()
    complete = [launch.trial for launch in study.launches if launch.result.state is State.COMPLETE]
    for choice in spec.engines:
        trials = [trial for trial in complete if trial.configuration.engine == choice.name]
        values = [trial.configuration.knobs for trial in trials]
        varied = [name for name in dict.fromkeys(chain(*values)) if len({str(one.get(name)) for one in values}) > 1]
        context = Context(spec.model, spec.hardware, spec.gpus, choice.version)
        with suppress(BadInput):  # A report is written all the same, whatever the study's commands were.
            resolved = resolve_command(trials[0].command, library, context, choice.version) if varied else None
            read = knobs_read(resolved, resolved.simulate(load_workload("random:64:4:4"), 0)) if resolved else None
            found |= dict.fromkeys(name for name in varied if read is not None and name not in read)
    return list(found)


def reproduction(study: StudyRecord) -> list[str]:
    """Give the command that asks the same question again, and the study's files; nothing of an unfinished study."""
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
        "The same study again:",
        text.block(again, "bash"),
        "The whole question is in `study.yaml`, every launch in `results.jsonl`, logs in `trials/`, the command as a "
        f"script in `serve.sh`. {where}",
        *block,
    ]
