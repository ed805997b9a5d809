"""Turns what was asked on the command line into a checked `StudySpec`, or says what would be right."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from autotune.engines import engine, recognise, settings_in_front, split_command
from autotune.engines.choose import choose, named_binaries
from autotune.errors import BadInput, UnknownName
from autotune.loadgen.workloads import load_workload
from autotune.machine.gpu import has
from autotune.machine.node import node
from autotune.notify import Notify, silent
from autotune.prepare.goals import goals_of
from autotune.replay import file_of
from autotune.replay.replay_spec import normalised as replay_at
from autotune.replay.replay_spec import replay_fields
from autotune.serving.docker_engine import asked_images, choose_images
from autotune.serving.secrets import refuse_secrets, secret_sources
from autotune.simulator.node.calibration import calibration_in
from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.library import LOCAL, Library
from autotune.space.schema import EngineCard
from autotune.study.options import RunOptions
from autotune.study.spec import AUTO, EngineChoice, StudySpec, check_executor, check_study_name
from autotune.study.user_library import library_for
from autotune.trial import Scalar

AVAILABLE = ("auto", "simulator", "emulator", "process", "docker", "external:URL", "replay:FILE")
SIMULATOR_NOISE = 0.03


def build_spec(request: RunOptions, notify: Notify = silent) -> StudySpec:
    """Check every name and figure of a request; raises `BadInput` with the right names.

    Args:
        notify: called before something that takes long.
    """
    library = library_for(request.space)
    hardware = node(request.hardware, library)
    model = _model(request, library)
    _check_budget(request)
    on = _on(request, library, hardware)
    _check_model_path(request.model, on)
    replayed = file_of(on) is not None
    asked = replay_fields(request, on, library) if replayed else _served(request, on, hardware, library, notify)
    goals = goals_of(request, asked["workloads"])
    notes = (*goals.notes, *asked.pop("notes"))
    return StudySpec(
        study=check_study_name(request.study or _study_name(model.id, hardware.name, request.now)),
        model=model,
        hardware=hardware,
        gpus=check_gpus(request.gpus, hardware),
        objective=goals.objective,
        weights=goals.weights,
        pareto=goals.pareto,
        slos=goals.slos,
        launches=request.launches,
        hours=request.hours,
        executor=check_executor(request.executor),
        sampler=request.sampler,
        sources=tuple(request.sources),
        noise=_noise(request, on),
        seed=request.seed,
        space=str(request.space.resolve()) if request.space else None,
        notes=notes,
        **asked,
        **secret_sources(on, request.api_key_env, request.api_key_file, request.hf_token_file),
    )


def _served(request: RunOptions, on: str, hardware: HardwareCard, library: Library, notify: Notify) -> dict[str, Any]:
    """What is asked of servers, simulated ones too: the fields of a `StudySpec`."""
    workloads = tuple(dict.fromkeys(request.workloads)) or ("sharegpt",)
    for name in workloads:
        load_workload(name, library)
    engines = _engines(request, library)
    calibration, fitted = _calibration(request, on)
    _check_external(request, on)
    images = _images(request, on, engines, hardware, library)
    asked = (_baseline(request.baseline), _engine_args(request.engine_args, library))
    binaries = named_binaries(request.engine_bins, library)
    versions = {name: version for name, (version, _) in images.items()}
    chosen = choose([card.engine for card in engines], asked, binaries, on, library, notify, versions)
    return {
        "on": on,
        "engines": tuple(EngineChoice(name=card.engine, version=chosen.versions[card.engine]) for card in engines),
        "workloads": workloads,
        "baseline": chosen.baseline,
        "pins": _pins(request.pins, engines),
        "engine_args": dict(chosen.engine_args),
        "installed": dict(chosen.installed),
        "notes": (*chosen.notes, *_unused_images(request, on, images, library), *fitted),
        "calibration": calibration,
        "images": {name: image for name, (_, image) in images.items()},
    }


def _calibration(request: RunOptions, on: str) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The simulator's coefficients where trials need them and they are not the packaged ones, and what to tell."""
    path = request.calibration if on in ("simulator", "emulator") else None
    found = calibration_in(path)
    if path is None or found is None:
        return None, ()
    return found.model_dump(mode="json"), (f"the simulated node's figures are those of {path}: {found.told}",)


def _model(request: RunOptions, library: Library) -> ModelCard:
    """The model; a path stays the path that the engine gets, and the id remains an alias."""
    name = request.model
    model = library.model(name, request.model_id)
    if name.endswith((".yaml", ".yml")) or not (name.startswith((".", "/", "~")) or Path(name).exists()):
        return model
    # By its slash a launcher tells the path of a file from a word that happens to be a file's name.
    path = f"./{name}" if "/" not in name and Path(name).is_file() else name
    return model.model_copy(update={"id": path, "aliases": [*model.aliases, model.id]})


def _check_budget(request: RunOptions) -> None:
    if request.launches < 1:
        raise BadInput(f"--launches {request.launches}: a budget of at least 1 launch is needed (default 30)")
    if request.hours is not None and not (request.hours > 0 and math.isfinite(request.hours)):
        raise BadInput(f"--hours {request.hours:g}: the time budget must be a number above 0")
    if request.noise is not None and not 0 <= request.noise < 1:
        raise BadInput(f"--noise {request.noise:g}: a sigma from 0 to below 1, e.g. 0.03 for 3 %")


def _on(request: RunOptions, library: Library, hardware: HardwareCard) -> str:
    """Where trials run; ``auto`` is this machine's own engines where it has the node's GPUs and one, else simulated."""
    kind, _, rest = request.on.partition(":")
    if request.on not in AVAILABLE[:-2] and not (kind in ("external", "replay") and rest):
        raise BadInput(f"--on {request.on}: this version runs trials on: {', '.join(AVAILABLE)}")
    if kind == "external":
        from autotune.serving.external import normalised

        normalised(rest)
    if kind == "replay":
        return replay_at(rest)
    if request.on != "auto":
        return request.on
    here = request.hardware.lower() == LOCAL or has(hardware.name, check_gpus(request.gpus, hardware))
    if not here:
        return "simulator"
    # A program that was named, and is none, is an error and no reason to simulate: found out when it is asked.
    binaries = named_binaries(request.engine_bins, library)
    engines = [engine(card.engine, library) for card in _engines(request, library)]
    return "process" if any(kind.name in binaries or kind.missing() is None for kind in engines) else "simulator"


def _check_model_path(model: str, on: str) -> None:
    """A server on this machine needs a model's folder that is there; another node's may have it."""
    if on == "process" and model.startswith((".", "/", "~")) and not Path(model).expanduser().exists():
        raise BadInput(f"--model {model}: there is no such folder, and a server on this machine could not read it")


def _check_external(request: RunOptions, on: str) -> None:
    """Nothing of a server that somebody else runs can be set from here."""
    options = {"--baseline": request.baseline, "--engine-arg": request.engine_args, "--set": request.pins}
    asked = [option for option, value in options.items() if value]
    if on.startswith("external:") and request.executor != "local":
        raise BadInput(f"--executor {request.executor}: nodes would load one server at the same time; leave it out")
    if asked and on.startswith("external:"):
        raise BadInput(f"{' and '.join(asked)}: nothing can be set on a server that somebody else runs; leave it out")


def _unused_images(request: RunOptions, on: str, images: Mapping[str, tuple[str, str]], library: Library) -> list[str]:
    asked = [name for name in asked_images(request.images, on, library) if name not in images]
    return [f"--image {name} is not used: {name} is neither searched nor the baseline's" for name in asked]


def _images(
    request: RunOptions, on: str, engines: Sequence[EngineCard], hardware: HardwareCard, library: Library
) -> dict[str, tuple[str, str]]:
    """Version and container image by engine; empty where no containers run."""
    asked = asked_images(request.images, on, library)
    if on != "docker":
        return {}
    if request.baseline is None:
        return choose_images(asked, engines, hardware, library)
    try:
        baseline = recognise(split_command(request.baseline).argv, library).card
    except BadInput as error:
        raise BadInput(f"--baseline: {error}") from error
    return choose_images(asked, [*engines, baseline], hardware, library)


def _baseline(text: str | None) -> str | None:
    """As it was typed; raises `BadInput` when it holds a secret."""
    if text is None:
        return None
    try:
        command = split_command(text)
    except BadInput as error:
        raise BadInput(f"--baseline: {error}") from error
    refuse_secrets(command.argv, command.env, "--baseline")
    return text


def _noise(request: RunOptions, on: str) -> float:
    """Only simulated and replayed launches get noise added; real ones have their own."""
    if request.noise is None:
        return SIMULATOR_NOISE if on == "simulator" else 0.0
    if on != "simulator" and file_of(on) is None and request.noise > 0:
        raise BadInput(f"--noise {request.noise:g}: launches on {on} have noise of their own")
    return request.noise


def check_gpus(asked: int | None, hardware: HardwareCard) -> int:
    """The GPUs to use, all of the node by default; raises `BadInput` when there are not so many."""
    gpus = hardware.gpus if asked is None else asked
    if not 0 < gpus <= hardware.gpus:
        raise BadInput(f"--gpus {gpus}: nodes of {hardware.name} have 1 to {hardware.gpus} GPUs")
    return gpus


def _engines(request: RunOptions, library: Library) -> list[EngineCard]:
    if not request.engines:
        searched = [card for name, card in library.engines.items() if name in (library.narrowed or library.engines)]
        # vLLM first: it is the default baseline, and first in every table.
        return sorted(searched, key=lambda card: (card.engine != "vllm", card.engine))
    return list({card.engine: card for card in map(library.engine, request.engines)}.values())


def _split_setting(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadInput(f"{option} {text!r}: write {form}")
    return name.strip(), value


def _pins(texts: Sequence[str], engines: Sequence[EngineCard]) -> dict[str, Scalar]:
    pins: dict[str, Scalar] = {}
    known = {name for card in engines for name in card.knobs}
    for text in texts:
        name, value = _split_setting(text, "--set", "knob=value, e.g. kv_cache_dtype=bfloat16")
        if name not in known:
            raise UnknownName("knob", name, known)
        pins[name] = _scalar(text, value)
        _check_pin(name, pins[name], engines)
    return pins


def _check_pin(name: str, value: Scalar, engines: Sequence[EngineCard]) -> None:
    if value == AUTO:
        return
    reasons = {card.engine: card.knobs[name].refuses(value) for card in engines if name in card.knobs}
    if all(reason is not None for reason in reasons.values()):
        right = "; ".join(f"{engine}: {reason}" for engine, reason in reasons.items())
        raise BadInput(f"--set {name}={value}: no engine takes this value. {right}")


def _scalar(text: str, value: str) -> Scalar:
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise BadInput(f"--set {text!r}: {value!r} is not a plain value") from error
    if isinstance(parsed, bool | int | float | str) or parsed is None:
        return parsed
    raise BadInput(f"--set {text!r}: {value!r} is not a plain value")


def _engine_args(texts: Sequence[str], library: Library) -> dict[str, str]:
    passed: dict[str, str] = {}
    for text in texts:
        name, value = _split_setting(text, "--engine-arg", "engine='arguments', e.g. sglang='--trust-remote-code'")
        engine = library.engine(name).engine
        try:
            env, words = settings_in_front(shlex.split(value))
        except ValueError as error:
            raise BadInput(f"--engine-arg {text!r}: {error}") from error
        refuse_secrets(words, env, f"--engine-arg {engine}")
        passed[engine] = f"{passed[engine]} {value}" if engine in passed else value
    return passed


def _study_name(model: str, hardware: str, now: datetime) -> str:
    stem = model.rstrip("/").rsplit("/", 1)[-1].lower()
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in f"{stem}-{hardware}").strip(".-_")
    return f"{safe[:70] or 'study'}-{now:%Y%m%d-%H%M%S}"
