"""Turns what was asked on the command line into a checked `StudySpec`, or says what would be right."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from autotune.engines import engine
from autotune.engines.chosen import choose, named_binaries
from autotune.engines.installed_options import Tell
from autotune.errors import BadInput, UnknownName
from autotune.launch.gpus import has
from autotune.load.metrics import METRICS
from autotune.load.workloads import load_workload
from autotune.space.cards import HardwareCard
from autotune.space.library import Library
from autotune.space.schema import EngineCard
from autotune.spec import AUTO, EngineChoice, Slo, StudySpec, check_study_name
from autotune.trial import Scalar

AVAILABLE = ("auto", "simulator", "emulator", "process", "external:URL")
SIMULATOR_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Request:
    """The options of ``autotune run`` as they were typed."""

    model: str
    hardware: str
    gpus: int | None = None
    engines: Sequence[str] = ()
    workloads: Sequence[str] = ()
    objective: str = "total_token_throughput"
    slos: Sequence[str] = ()
    baseline: str | None = None
    pins: Sequence[str] = ()
    engine_args: Sequence[str] = ()
    engine_bins: Sequence[str] = ()
    launches: int = 30
    hours: float | None = None
    on: str = "auto"
    executor: str = "local"
    sampler: str = "gp"
    space: Path | None = None
    model_id: str | None = None
    study: str | None = None
    seed: int = 0
    noise: float | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Simulation:
    """The options of ``autotune simulate`` as they were typed."""

    hardware: str
    engine_command: Sequence[str]
    gpus: int | None = None
    engine_version: str | None = None
    model_id: str | None = None
    workload: str = "sharegpt"
    concurrency: int | None = None
    seed: int = 0


def library_for(space: Path | None) -> Library:
    """The packaged spaces, under a folder or an engine's file of the user's own."""
    if space is None:
        return Library()
    if not space.exists():
        raise BadInput(f"--space {space}: no such file or folder")
    if not space.is_dir():
        return Library(files=(space,))
    if not any(space.glob("*/*.yaml")):
        raise BadInput(f"--space {space}: no engines/*.yaml, models/*.yaml, hardware/*.yaml or workloads/*.yaml in it")
    return Library((space,))


def build_spec(request: Request, tell: Tell = lambda _text: None) -> StudySpec:
    """Check every name and figure of a request; raises `BadInput` with the right names.

    Args:
        tell: is given a line before something that takes long.
    """
    library = library_for(request.space)
    hardware = library.node(request.hardware)
    model = library.model(request.model, request.model_id)
    if request.model.startswith((".", "/", "~")) or Path(request.model).is_dir():
        # A path stays the path that the engine gets; the id remains an alias.
        model = model.model_copy(update={"id": request.model, "aliases": [*model.aliases, model.id]})
    _check_budget(request)
    workloads = tuple(request.workloads) or ("sharegpt",)
    for name in workloads:
        load_workload(name, library)
    engines = _engines(request, library)
    on = _on(request, library, hardware)
    asked = (request.baseline, _engine_args(request.engine_args, library))
    binaries = named_binaries(request.engine_bins, library)
    chosen = choose([card.engine for card in engines], asked, binaries, on, library, tell)
    return StudySpec(
        study=check_study_name(request.study or _study_name(model.id, hardware.name, request.now)),
        model=model,
        hardware=hardware,
        gpus=check_gpus(request.gpus, hardware),
        engines=tuple(EngineChoice(name=card.engine, version=chosen.versions[card.engine]) for card in engines),
        workloads=tuple(dict.fromkeys(workloads)),
        objective=_objective(request.objective),
        slos=_slos(request.slos),
        baseline=chosen.baseline,
        pins=_pins(request.pins, engines),
        engine_args=dict(chosen.engine_args),
        launches=request.launches,
        hours=request.hours,
        installed=dict(chosen.installed),
        notes=chosen.notes,
        on=on,
        executor=request.executor,
        sampler=request.sampler,
        noise=_noise(request, on),
        seed=request.seed,
        space=str(request.space.resolve()) if request.space else None,
    )


def _check_budget(request: Request) -> None:
    if request.launches < 1:
        raise BadInput(f"--launches {request.launches}: a budget of at least 1 launch is needed (default 30)")
    if request.hours is not None and not (request.hours > 0 and math.isfinite(request.hours)):
        raise BadInput(f"--hours {request.hours:g}: the time budget must be a number above 0")
    if request.noise is not None and not 0 <= request.noise < 1:
        raise BadInput(f"--noise {request.noise:g}: a sigma from 0 to below 1, e.g. 0.03 for 3 %")


def _on(request: Request, library: Library, hardware: HardwareCard) -> str:
    """Where trials run; ``auto`` is this machine's own engines where it has the node's GPUs and one, else simulated."""
    kind, _, rest = request.on.partition(":")
    if request.on not in AVAILABLE[:-1] and not (kind == "external" and rest):
        raise BadInput(f"--on {request.on}: this version runs trials on: {', '.join(AVAILABLE)}")
    if request.on != "auto":
        return request.on
    if not has(hardware.name, check_gpus(request.gpus, hardware)):
        return "simulator"
    # A program that was named, and is none, is an error and no reason to simulate: found out when it is asked.
    binaries = named_binaries(request.engine_bins, library)
    engines = [engine(card.engine, library) for card in _engines(request, library)]
    return "process" if any(kind.name in binaries or kind.missing() is None for kind in engines) else "simulator"


def _noise(request: Request, on: str) -> float:
    """Only simulated launches get noise added; real ones have their own."""
    simulated = on == "simulator"
    if request.noise is None:
        return SIMULATOR_NOISE if simulated else 0.0
    if not simulated and request.noise > 0:
        raise BadInput(f"--noise {request.noise:g}: launches on {on} have noise of their own")
    return request.noise


def check_gpus(asked: int | None, hardware: HardwareCard) -> int:
    """The GPUs to use, all of the node by default; raises `BadInput` when there are not so many."""
    gpus = hardware.gpus if asked is None else asked
    if not 0 < gpus <= hardware.gpus:
        raise BadInput(f"--gpus {gpus}: a {hardware.name} node has 1 to {hardware.gpus} GPUs")
    return gpus


def _engines(request: Request, library: Library) -> list[EngineCard]:
    if not request.engines:
        searched = [card for name, card in library.engines.items() if name in (library.narrowed or library.engines)]
        # vLLM first: it is the default baseline, and first in every table.
        return sorted(searched, key=lambda card: (card.engine != "vllm", card.engine))
    return list({card.engine: card for card in map(library.engine, request.engines)}.values())


def _metric(name: str, what: str) -> str:
    if name not in METRICS:
        raise UnknownName(f"{what} metric", name, METRICS)
    return name


def _objective(name: str) -> str:
    goals = [metric for metric, known in METRICS.items() if known.time_power != 0]
    if name not in goals:
        raise UnknownName("objective metric", name, goals)
    return name


def _slos(texts: Sequence[str]) -> tuple[Slo, ...]:
    slos = tuple(Slo.parse(text) for text in texts)
    for slo in slos:
        _metric(slo.metric, "SLO")
    return slos


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
            shlex.split(value)
        except ValueError as error:
            raise BadInput(f"--engine-arg {text!r}: {error}") from error
        passed[engine] = f"{passed[engine]} {value}" if engine in passed else value
    return passed


def _study_name(model: str, hardware: str, now: datetime) -> str:
    stem = model.rstrip("/").rsplit("/", 1)[-1].lower()
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in f"{stem}-{hardware}").strip(".-_")
    return f"{safe[:70] or 'study'}-{now:%Y%m%d-%H%M%S}"
