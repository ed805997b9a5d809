"""Pictures of the launches: what was tried, the finals, what failed, and the hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from autotune import redact
from autotune.backends import backend_of
from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.metrics.table import METRICS
from autotune.outputs.report import StudyRecord, tables, text, words
from autotune.outputs.report.pictures import Bar, Block, Line, Panel, Picture, Point, Values
from autotune.search.objective import achieved, best_so_far, maximises, weights
from autotune.simulator.node.calibration import calibration_of, nothing_learned
from autotune.simulator.node.steady import SteadyNode
from autotune.study.recommendation import Choice
from autotune.study.user_library import library_of
from autotune.trial import Launch, Role

ENGINES = (("first", "o"), ("second", "s"), ("third", "^"), ("fourth", "D"), ("fifth", "P"))
"""Look and shape of the engines, in the order of their names."""
PHASES = {"launch": "fifth", "ready": "first", "warmup": "fourth", "load": "third", "stop": "soft"}
_LONGEST_NAME = 30


def tried(study: StudyRecord) -> Picture | None:
    """Every launch in its order with the best so far, what was expected of it, and what failed."""
    spec, looks, guesses = study.spec, looks_of(study), expected(study)
    marks: list[Point] = []
    for launch in study.launches:
        number, value = launch.trial.number, achieved(spec, launch)
        look, shape = looks[launch.trial.configuration.engine]
        data: Values = {"launch": number, "role": launch.trial.role.value}
        if number in guesses:
            data["expected"] = guesses[number]
        broken = tables.broken_slos(spec, launch) if value is not None else []
        if value is None:
            look, shape = "bad", "x"
        else:
            data["value"] = value
        look = "bad" if broken else look
        told = f"{_launch(launch)}: {_outcome(launch, value, broken)}\n{command(launch)}"
        marks.append(Point(f"launch-{number}", told, data, look, number, value or 0.0, shape))
    if not marks:
        return None
    lines = _levels(study, best_so_far(spec, study.launches))
    panel = Panel(
        "launch",
        text.title(spec.objective),
        marks=marks,
        lines=lines,
        blocks=[Block(_behind_finals(study, marks), "band"), Block(_ticks(guesses), "soft")],
        whole="x",
        zero=True,
    )
    keys = _tried_keys(looks, marks, lines)
    keys |= {("soft", "_"): "expected by physics"} if guesses else {}
    return Picture("tried", "What was tried?", _tried_told(study, marks, bool(guesses)), [panel], keys)


def _levels(study: StudyRecord, reached: Sequence[tuple[int, float]]) -> list[Line]:
    """The best so far until the last launch, and the baseline's mean."""
    lines = []
    if reached:
        last = max(launch.trial.number for launch in study.launches)
        steps = [*reached, (last, reached[-1][1])]
        lines.append(Line([x for x, _ in steps], [y for _, y in steps], "ink", stepped=True))
    if (baseline := study.recommendation.baseline) is not None:
        lines.append(Line([], [baseline.objective.value], "baseline", dashed=True))
    return lines


def _behind_finals(study: StudyRecord, marks: Iterable[Point]) -> list[tuple[float, float, float, float]]:
    top = 1.05 * max((mark.y for mark in marks), default=0.0)
    numbers = [launch.trial.number for launch in study.launches if launch.trial.role is Role.FINAL]
    return [(number - 0.5, 0.0, 1.0, top) for number in numbers]


def _ticks(guesses: Mapping[int, float]) -> list[tuple[float, float, float, float]]:
    thick = max(guesses.values(), default=0.0) / 150
    return [(number - 0.42, guess - thick / 2, 0.84, thick) for number, guess in guesses.items()]


def _tried_keys(
    looks: Mapping[str, tuple[str, str]], marks: Iterable[Point], lines: Sequence[Line]
) -> dict[tuple[str, str], str]:
    keys = {look: short(engine) for engine, look in looks.items()}
    for line in lines:
        keys[(line.look, "--") if line.dashed else (line.look, "-")] = "baseline" if line.dashed else "best so far"
    if any(mark.data["role"] == Role.FINAL.value for mark in marks):
        keys["line", "s"] = "finals"
    bad = {mark.shape for mark in marks if mark.look == "bad"}
    if "x" in bad:
        keys["bad", "x"] = "no valid figure"
    if bad - {"x"}:
        keys["bad", "o"] = "breaks a limit"
    return keys


def _tried_told(study: StudyRecord, marks: Sequence[Point], guessed: bool) -> str:
    values = [mark for mark in marks if "value" in mark.data]
    count = text.count(len(marks), "launch", "launches")
    if not values:
        return f"{count}, none of which gave a figure: what failed stands below."
    decided = any(mark.data["role"] == Role.FINAL.value for mark in marks)
    top = (max if maximises(study.spec.objective) else min)(values, key=lambda mark: mark.y)
    lost = len(marks) - len(values)
    parts = [
        f"{count}, {len(values)} with a figure" + (f" and {lost} without" if lost else "") + ".",
        f"The best single one is launch {top.data['launch']} with {text.number(top.y)}"
        + ("; a single launch may be lucky, so the finals decide." if decided else "."),
    ]
    if guessed:
        parts.append(
            "The short lines are what physics expected before the first launch; only their order counts, and their "
            "level is set to that of the launches."
        )
    return " ".join(parts)


def finals(study: StudyRecord) -> Picture | None:
    """Each launch that counts of the finalists and of the baseline, with means and intervals."""
    names: list[str] = []
    marks: list[Point] = []
    choices = {name: choice for choice, name in decided(study)}
    for _, who, group in tables.finalists(study):
        look = "baseline" if who.startswith("baseline") else "chosen" if "recommended" in who else "fourth"
        row = len(names)
        names.append(f"{who}\n{short(group[0].trial.configuration.engine)}")
        for launch in group:
            if (value := achieved(study.spec, launch)) is not None:
                told = f"{who}, launch {launch.trial.number}: {text.number(value)}"
                data: Values = {"launch": launch.trial.number, "value": value}
                marks.append(Point(f"final-{launch.trial.number}", told, data, look, value, row + 0.12))
        if (choice := choices.get(who.partition(" and ")[0])) is not None:
            marks.append(_mean(choice, who, look, row))
    if not marks:
        return None
    keys = {("ink", "o"): "one launch", ("ink", "D"): "mean, with its 95 % interval"}
    panel = Panel(text.title(study.spec.objective), "", marks=marks, y_ticks=names)
    told = (
        "Every dot is a fresh launch, taken in turn; the baseline's earlier launches count too, those of the search "
        "do not."
    )
    return Picture("finals", "Is the gain more than chance?", told, [panel], keys, height=90 + 60 * len(names))


def _mean(choice: Choice, who: str, look: str, row: int) -> Point:
    goal = choice.objective
    within = f", 95 % interval {text.number(goal.ci95[0])} to {text.number(goal.ci95[1])}" if goal.ci95 else ""
    told = f"{who}: mean {text.number(goal.value)} of {text.count(goal.repeats, 'launch', 'launches')}{within}"
    data: Values = {"mean": goal.value, "fingerprint": choice.fingerprint}
    if goal.ci95 is not None:
        data |= {"low": goal.ci95[0], "high": goal.ci95[1]}
    return Point(f"mean-{row}", told, data, look, goal.value, row - 0.12, "D", goal.ci95, across=True)


def failures(study: StudyRecord) -> Picture | None:
    """Draw the number of failed launches by cause."""
    groups: dict[str, list[Launch]] = {}
    for launch in study.launches:
        if launch.result.failure is not None:
            groups.setdefault(words.failed(launch.result.failure), []).append(launch)
    if not groups:
        return None
    causes = sorted(groups, key=lambda cause: -len(groups[cause]))
    bars = []
    for row, cause in enumerate(causes):
        numbers = [launch.trial.number for launch in groups[cause]]
        failure = groups[cause][0].result.failure
        line = redact.text(failure.log_excerpt or failure.message) if failure else ""
        data: Values = {"cause": cause, "count": len(numbers), "launches": " ".join(map(str, numbers))}
        told = f"{cause}: launches {', '.join(map(str, numbers))}\n{line}"
        bars.append(Bar(f"cause-{row}", told, data, "bad", 0, row - 0.3, len(numbers), 0.6))
    names = [cause.replace(" while", "\nwhile") for cause in causes]
    panel = Panel("launches", "", marks=bars, whole="x", y_ticks=names)
    lost = sum(map(len, groups.values()))
    told = f"{lost} of {text.count(len(study.launches), 'launch', 'launches')} failed."
    return Picture("failures", "What failed, and what would help?", told, [panel], height=80 + 45 * len(causes))


def hours(study: StudyRecord) -> Picture | None:
    """The minutes of each launch, by phase."""
    blocks: dict[str, list[tuple[float, float, float, float]]] = {phase: [] for phase in PHASES}
    totals = dict.fromkeys(PHASES, 0.0)
    bars = []
    for launch in study.launches:
        number, bottom = launch.trial.number, 0.0
        times = {phase: float(launch.result.times_s.get(phase, 0.0)) for phase in PHASES}
        for phase, seconds in times.items():
            if seconds > 0:
                blocks[phase].append((number - 0.4, bottom / 60, 0.8, seconds / 60))
                bottom, totals[phase] = bottom + seconds, totals[phase] + seconds
        spent = ", ".join(f"{phase} {text.seconds(seconds)}" for phase, seconds in times.items() if seconds)
        told = f"{_launch(launch)}: {spent or 'no time'}"
        bars.append(Bar(f"time-{number}", told, {"launch": number, **times}, "clear", number - 0.5, 0, 1, bottom / 60))
    whole = sum(totals.values())
    if not whole:
        return None
    spent_on = {phase: seconds for phase, seconds in totals.items() if seconds}
    keys = {(PHASES[phase], "s"): f"{phase}, {text.seconds(seconds)}" for phase, seconds in spent_on.items()}
    shown = [Block(blocks[phase], PHASES[phase]) for phase in spent_on]
    panel = Panel("launch", "minutes", marks=bars, blocks=shown, whole="x", zero=True)
    largest = max(totals, key=totals.__getitem__)
    told = (
        f"{text.seconds(whole)} of the node, {text.seconds(whole / len(bars))} for a launch; "
        f"{100 * totals[largest] / whole:.0f} % went into {text.code(largest)}."
    )
    return Picture("hours", "Where did the node's hours go?", told, [panel], keys, height=260)


def looks_of(study: StudyRecord) -> dict[str, tuple[str, str]]:
    """Engine to look and shape, for the engines that were launched; the order is the study's."""
    names = [engine.name for engine in study.spec.engines]
    launched = dict.fromkeys(launch.trial.configuration.engine for launch in study.launches)
    order = sorted(launched, key=lambda name: names.index(name) if name in names else len(names))
    return {name: ENGINES[place % len(ENGINES)] for place, name in enumerate(order)}


def decided(study: StudyRecord) -> list[tuple[Choice, str]]:
    outcome = study.recommendation
    pairs = ((outcome.recommended, "recommended"), (outcome.baseline, "baseline"))
    return [(choice, name) for choice, name in pairs if choice is not None]


def _outcome(launch: Launch, value: float | None, broken: Sequence[str]) -> str:
    if launch.result.failure is not None:
        return words.failed(launch.result.failure)
    if value is None:
        return launch.result.state.value
    return text.number(value) + (f", breaks {'; '.join(broken)}" if broken else "")


def _launch(launch: Launch) -> str:
    return f"launch {launch.trial.number} ({launch.trial.role.value}), {launch.trial.configuration.engine}"


def command(launch: Launch) -> str:
    command = launch.trial.command
    return redact.text(command.shell(), redact.secrets_in(command.words, command.env))


def short(name: str) -> str:
    """A name that fits beside a picture."""
    flat = " ".join(name.split())
    return flat if len(flat) <= _LONGEST_NAME else f"{flat[: _LONGEST_NAME - 1]}…"


def expected(study: StudyRecord) -> dict[int, float]:
    """Launch number to the objective that its configuration was expected to reach; without those of which none was.

    As the search's own prior of physics (`autotune.search.priors`): calibrated where trials are measured. Of a prior
    only the differences count, so its level is set to the median of the launches.
    """
    spec, backend = study.spec, backend_of(study.spec)
    if backend.recorded or spec.hardware.vendor == "cpu" or spec.objective not in METRICS:
        return {}
    try:
        library = library_of(spec)
        loads = [(load_workload(name, library), share) for name, share in weights(spec).items()]
    except BadInput:  # a file that is gone
        return {}
    learned = nothing_learned() if backend.predicted else calibration_of(library)
    nodes = [(SteadyNode(spec.model, spec.hardware, spec.gpus, load, learned), share) for load, share in loads]
    guesses: dict[int, float] = {}
    offsets = []
    for launch in study.launches:
        guess = _guess(launch, nodes, spec.objective)
        if guess is None:
            continue
        guesses[launch.trial.number] = guess
        value = achieved(spec, launch)
        if value:
            offsets.append(math.log(value) - guess)
    if not offsets:
        return {}
    level = median(offsets)
    return {number: math.exp(guess + level) for number, guess in guesses.items()}


def _guess(launch: Launch, nodes: list[tuple[SteadyNode, float]], metric: str) -> float | None:
    """The logarithm of the objective; None where it is not predicted."""
    total, made = 0.0, launch.trial.configuration
    for node, share in nodes:
        try:
            predicted = node.predict(made.engine, launch.trial.engine_version, made.knobs)
        except (BadInput, ArithmeticError, ValueError, TypeError):
            return None  # an engine without figures
        value = predicted.metrics.get(metric.removeprefix("steady_"), 0.0)
        if not 0 < value < math.inf:
            return None
        total += share * math.log(value)
    return total
