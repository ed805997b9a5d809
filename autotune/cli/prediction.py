"""``autotune simulate`` and ``autotune emulate``."""

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

from autotune.base import (
    BadInput,
    Json,
    NothingFeasible,
    Notify,
    RefusedCommand,
    StringDict,
    silent,
)
from autotune.engines import (
    Command,
    Context,
    Library,
    command_of,
    gpus_of,
    recognise,
    typed_command,
)
from autotune.engines.machine import check_gpus, node
from autotune.engines.rewrite import rewrite, translate_typed
from autotune.load.capacity.search import (
    LOADS,
    SHAPES,
    By,
    FoundLoad,
    LoadSearch,
    Probe,
    load_in_words,
)
from autotune.load.load import Load
from autotune.load.metrics.formulas import Slo, slos_of
from autotune.load.metrics.table import Rent, is_number
from autotune.load.workloads import Workload, with_options
from autotune.node.calibration import calibration_in
from autotune.node.memory import MEMORY_KEYS
from autotune.node.prediction_intervals import compare_predictions
from autotune.node.resolve_command import (
    ResolvedCommand,
    model_of,
    not_simulated_in,
    prediction,
    resolve_command,
    version_changes,
)
from autotune.node.simulate import SimulatedOutcome
from autotune.tuner.backends.simulator import Simulator
from autotune.tuner.backends.simulator import simulate as simulate_load
from autotune.tuner.prepare.deployments import read
from autotune.tuner.prepare.names import know_model
from autotune.tuner.study.home import calibration_of_home, library_for
from autotune.tuner.study.options import EmulateOptions, SimulateOptions

from .screens import printed
from .shared import answer, load_of, say


def simulate(asked: SimulateOptions, home: Path, as_json: bool) -> None:
    """``autotune simulate``; raises `NothingFeasible`, after printing the reason, for a command
    that would not run."""
    library = _library(asked.calibration, home)
    (name,) = with_options([asked.workload], None, asked.output_len)
    load = load_of(name, asked.window, home, searched=asked.find_load is not None)
    for note in load.notes:
        say(note)
    _check_load(asked)
    if asked.concurrency is not None:
        if asked.concurrency < 1:
            raise BadInput(
                f"--concurrency {asked.concurrency}: at least 1 request must be in flight"
            )
        load = load.with_concurrency(asked.concurrency)
    resolved = _resolve(asked.engine_command, asked.engine_version, asked, library, load)
    rent = Rent.checked(gpus_of(resolved.effective, resolved.context.gpus), asked.gpu_hour_price)
    if asked.find_load is None:
        predicted = prediction(resolved, load, asked.seed)
    else:
        predicted = _at_capacity(asked.find_load, slos_of(asked.slos), resolved, load, asked.seed)
    predicted = rent.derived(predicted)
    if asked.versus is not None:
        other = _versus(asked.versus, resolved, asked, library, load)
        theirs = prediction(other, load, asked.seed)
        predicted |= compare_predictions((resolved.setup, predicted), (other.setup, theirs), load)
        predicted["versus"] = f"{other.card.title} {other.context.version}"
        predicted["versus_not_simulated"] = theirs["not_simulated"]
        same_engine = other.card.engine == resolved.card.engine
        if same_engine and other.context.version != resolved.context.version:
            predicted |= version_changes(other, resolved)
    text = printed(
        "simulate",
        predicted=predicted,
        load_in_words=load_in_words,
        is_number=is_number,
        memory_keys=MEMORY_KEYS,
    )
    answer(as_json, predicted, [text])
    if failure := predicted["failure"]:
        raise NothingFeasible(
            f"{predicted['engine']} would not run with this command line ({failure['kind']})"
        )
    if predicted.get("missed"):
        raise NothingFeasible(predicted["missed"])


def _check_load(asked: SimulateOptions) -> None:
    """Raise `BadInput` for options that each name another load."""
    if asked.find_load is None:
        if asked.slos:
            raise BadInput(
                "--slo: add --find-load concurrency or rate, which searches for the load within the limits"
            )
        return
    for flag, value in {"--concurrency": asked.concurrency, "--versus": asked.versus}.items():
        if value is not None:
            raise BadInput(
                f"{flag} with --find-load: the search finds the load of one command; remove one of them"
            )


def _at_capacity(
    by: By, slos: Sequence[Slo], resolved: ResolvedCommand, load: Workload, seed: int
) -> Json:
    """Predict a command at the load that a study's launch would find; also with streams that start
    all at once."""

    def search(at_once: bool) -> tuple[SimulatedOutcome, FoundLoad | None]:
        plan = LoadSearch(by, slos, load, Simulator.looks, at_once=at_once)
        outcome, _ = simulate_load(resolved, Load(load.name, load, seed, plan), slos)
        return outcome, plan.found if outcome.failure is None else None

    outcome, capacity = search(at_once=False)
    if capacity is None:
        return prediction(resolved, load, seed, outcome)
    sentences = capacity.sentences()
    at = Probe(by, capacity.capacity or 1.0, load.points[0].prompts, 0).workload(load)
    predicted = {
        **prediction(resolved, at, seed, outcome),
        "find_load": by,
        "load_search": sentences,
        "load": SHAPES[LOADS[by]],
        "workload": load.name,
    }
    if by == "concurrency" and capacity.capacity:
        _, burst = search(at_once=True)
        most = burst.metrics["capacity_concurrency"] if burst else None
        predicted["capacity_concurrency_at_once"] = most
    predicted["missed"] = "; ".join(sentences) if capacity.missed else None
    return predicted


def _versus(
    text: str, this: ResolvedCommand, asked: SimulateOptions, library: Library, load: Workload
) -> ResolvedCommand:
    """Resolve the other side of the comparison: another command line, or another engine version for
    the typed one."""
    if len(text.split()) < 2:
        command = command_of(
            translate_typed(
                _typed(asked.engine_command, library, silent)[0].typed(),
                asked.engine_version,
                library,
                silent,
            )
        )
        kind = recognise(command.argv, library)
        here = this.context
        command, notes = rewrite(kind, command, here, replace(here, version=kind.version(text)))
        for note in notes:
            say(note)
        return _resolve(command.typed(), text, asked, library, load)
    other, _ = _typed([text], library, silent)
    same = recognise(other.argv, library).name == this.card.engine
    return _resolve([text], asked.engine_version if same else None, asked, library, load)


def _resolve(
    words: Sequence[str],
    version: str | None,
    asked: SimulateOptions,
    library: Library,
    load: Workload,
) -> ResolvedCommand:
    """Resolve a typed engine command line on the given node."""
    typed, deployed = _typed(words, library, say)
    version = _known(version) if version else deployed
    command = command_of(translate_typed(typed.typed(), version, library, say))
    servers: tuple[StringDict, ...] = ({},) * asked.replicas if asked.replicas > 1 else ()
    command = replace(command, files=typed.files, servers=servers)
    hardware = node(asked.hardware, library)
    know_model(command, version, asked.model_id, library)
    model = model_of(command, library, version, asked.model_id)
    gpus = check_gpus(asked.gpus, hardware)
    most = load.concurrency if asked.find_load is None else inf
    context = Context(model, hardware, gpus, "", load.longest_request, concurrency=most)
    return resolve_command(command, library, context, version)


def _known(version: str | None) -> str | None:
    """Read a word for the newest version as the newest known version, and print it."""
    if version is not None and version.strip().lower() in _NEWEST:
        say(f"{version} is read as the newest known version")
        return None
    return version


_NEWEST = ("nightly", "latest", "main")


def _typed(words: Sequence[str], library: Library, notify: Notify) -> tuple[Command, str | None]:
    """Read a typed command line, or a deployment with the engine's version in its image; one quoted
    text is read as a shell does."""
    text = words[0] if len(words) == 1 else shlex.join(words)
    deployment = read(text, library)
    typed = deployment or typed_command(text, os.environ, library)
    for note in typed.notes:
        notify(note)
    return typed.command, deployment.version if deployment else None


def _library(calibration: Path | None, home: Path) -> Library:
    """Return the packaged spaces, with the home's coefficients; prints their source."""
    path = calibration_of_home(calibration, home)
    coefficients = calibration_in(path)
    if coefficients is None:
        return library_for(None)
    say(f"the simulated node's coefficients: {path}, {coefficients.fit_summary}")
    return library_for(None, coefficients.model_dump(mode="json"))


def emulate(asked: EmulateOptions, home: Path, as_json: bool) -> int:
    """``autotune emulate``: serve until a signal ends it; returns the engine's exit code."""
    from autotune.node.emulator.launch import Emulation
    from autotune.node.emulator.process import emulate as emulate_engine

    library = _library(asked.calibration, home)
    model_id = asked.model_id
    entered, deployed = _typed(asked.engine_command, library, say)
    version = _known(asked.engine_version) if asked.engine_version else deployed
    typed = translate_typed(entered.typed(), version, library, say)
    command = command_of(typed)
    with suppress(RefusedCommand):
        # Leave a refusal to the emulator, which repeats the engine's words.
        know_model(command, version, model_id, library)
    hardware = node(asked.hardware, library)
    gpus = check_gpus(asked.gpus, hardware)
    with suppress(BadInput):
        known = recognise(command.argv, library).version(version)
        model = model_of(command, library, known, model_id)
        if unseen := not_simulated_in(command, library, Context(model, hardware, gpus, known)):
            say(f"not simulated: {', '.join(unseen)}")
    given = asdict(asked) | {
        "engine_command": typed,
        "engine_version": version,
        "hardware": hardware,
        "gpus": gpus,
    }
    del given["calibration"]
    return emulate_engine(Emulation(**given), library, as_json)
