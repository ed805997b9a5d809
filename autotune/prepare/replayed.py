"""What recorded launches decide of a study's specification: a table, or a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.engines import Engine
from autotune.errors import BadInput, UnknownName
from autotune.machine.node import node
from autotune.prepare.engine_space import EngineSpace
from autotune.prepare.goals import Asked, goals_of
from autotune.replay import PLAIN, REPLAY, Table, digest, table_of
from autotune.replay.bundle import Bundle, bundle_of, check_measured
from autotune.replay.candidates import KnownEngines, candidates_of, known_engines, setting, shortened
from autotune.replay.ladder import study_table
from autotune.replay.table import engine_name
from autotune.space.context import Context
from autotune.space.enumeration import CandidateSet, Enumeration
from autotune.space.library import Library
from autotune.study.options import RunOptions
from autotune.study.recommendation import Exclusion
from autotune.study.spec import AUTO, EngineChoice, StudySpec
from autotune.trial import Command, Configuration, Launch

_NOTHING_LAUNCHED = {
    "engine_args": "--engine-arg",
    "engine_bins": "--engine-bin",
    "images": "--image",
    "fetch": "--fetch",
    "api_key_env": "--api-key-env",
    "api_key_file": "--api-key-file",
    "hf_token_file": "--hf-token-file",
    "min_context": "--min-context",
    "goodput": "--goodput",
}
_NOTHING_SEARCHED = {
    "engines": "--engine",
    "pins": "--set",
    "speedup": "--speedup",
    "ladder": "--ladder",
    "find_load": "--find-load",
    "sampler": "--sampler",
    "sources": "--from",
    "executor": "--executor",
}


def what_was_recorded(
    spec: StudySpec, library: Library
) -> tuple[CandidateSet, KnownEngines, tuple[Exclusion, ...], Sequence[Launch], Mapping[Configuration, Command]]:
    """Return candidates, engines, left-out engines, the launches that a bundle answers, and the recorded commands."""
    bundle = bundle_of(spec.on, spec.table_sha256)
    if bundle is None:
        table = study_table(spec, library)
        known = known_engines(spec, {name: table.version_of(name) for name in table.engines}, library)
        commands = {row.configuration: row.command for row in table.rows if row.command is not None}
        return candidates_of(spec, table, known, library), known, (), (), commands
    known = known_engines(spec, {one.engine: one.engine_version for one in bundle.known.items}, library)
    candidates = bundle.candidates_for(spec, library)
    if {one.engine for one in bundle.known.items} <= known.keys() and not candidates.as_they_are:
        candidates = replace(candidates, without=lambda one: _space(spec, *known[one.engine]).without(one))
    recorded = bundle.launches_for(spec)
    commands = {launch.trial.configuration: launch.trial.command for launch in recorded}
    return candidates, known, bundle.known.excluded, recorded, commands


def _space(spec: StudySpec, kind: Engine, context: Context) -> EngineSpace:
    """An engine of a replayed study, which has no candidates of its own."""
    pins = {name: value for name, value in spec.pins.items() if name in kind.card.knobs and value != AUTO}
    return EngineSpace(kind, context, Enumeration(), pins)


def of_bundle(options: RunOptions, bundle: Bundle, library: Library) -> StudySpec:
    """A bundled study's specification, to be asked again under the options that were typed; raises `BadInput`."""
    refused = {**_NOTHING_LAUNCHED, **_NOTHING_SEARCHED}
    if given := [option for name, option in refused.items() if options.says(name)]:
        raise BadInput(
            f"{' and '.join(given)}: a bundle's launches are answered in their order, and nothing is launched or "
            "searched; leave it out, or give the study's results.jsonl as a table"
        )
    taken = bundle.spec
    _check_same(options, taken, library)
    workloads = tuple(dict.fromkeys(options.workloads)) or taken.workloads
    # Weights of the bundle go with its workloads.
    weights = ",".join(f"{name}={weight!r}" for name, weight in taken.weights.items() if not options.workloads)
    asked = replace(
        options,
        objective=options.objective if options.says("objective") else taken.objective,
        find_load=taken.find_load,
        weights=options.weights if options.says("weights") else weights or None,
        pareto=options.pareto if options.says("pareto") else taken.pareto,
        slos=options.slos if options.says("slos") else [str(slo) for slo in taken.slos],
        goodput=[f"{name}:{limit!r}" for name, limit in taken.goodput.items()],
        gpu_hour_price=options.gpu_hour_price or taken.gpu_hour_price,
    )
    goals = goals_of(asked, workloads)
    spec = taken.model_copy(
        update={
            **{n: getattr(options, n) for n in ("launches", "hours", "seed", "noise", "baseline") if options.says(n)},
            **{n: getattr(goals, n) for n in ("objective", "weights", "pareto", "slos", "gpu_hour_price")},
            "on": options.on,
            "table_sha256": digest(bundle.path),
            "workloads": workloads,
            "allow": tuple(dict.fromkeys(options.allow)) or taken.allow,
            "notes": (*taken.notes, *goals.notes, _note_on_bundle(bundle)),
            # What belongs to the machine on which it ran.
            **{"executor": "local", "sampler": "gp", "sources": (), "fetch": False},
            **{"api_key_env": None, "api_key_file": None, "hf_token_file": None},
            "space": str(options.space.resolve()) if options.space else None,
        }
    )
    if spec.seed < 0:
        raise BadInput(f"{bundle.path}: its seed is {spec.seed}; a seed is a whole number of at least 0")
    check_measured(bundle, spec)
    bundle.candidates_for(spec, library)
    return spec


def _check_same(options: RunOptions, taken: StudySpec, library: Library) -> None:
    """Raise `BadInput` where model, hardware or GPUs were named and are not the bundle's."""
    names = {taken.model.id.lower(), *(alias.lower() for alias in taken.model.aliases)}
    if options.model and options.model.lower() not in names:
        model = library.model(options.model_id or options.model)
        if names.isdisjoint({model.id.lower(), *(alias.lower() for alias in model.aliases)}):
            raise BadInput(f"--model {options.model}: the bundle is of {taken.model.id}; leave it out")
    hardware = taken.hardware.name
    if options.hardware.lower() not in ("", hardware) and node(options.hardware, library).name != hardware:
        raise BadInput(f"--hw {options.hardware}: the bundle is of {hardware}; leave it out")
    if options.gpus not in (None, taken.gpus):
        raise BadInput(f"--gpus {options.gpus}: the bundle is of {taken.gpus} x {hardware}; leave it out")


def _note_on_bundle(bundle: Bundle) -> str:
    kinds = ", ".join(dict.fromkeys(launch.result.evidence.value.upper() for launch in bundle.launches))
    count = len(bundle.launches)
    return f"{bundle.path}: the {count} launches of study {bundle.spec.study} in their order, {kinds} when recorded"


def of_table(options: RunOptions, on: str, library: Library) -> tuple[Asked, tuple[str, ...]]:
    """The fields of a `StudySpec` that a table of recorded launches decides, and notes."""
    elsewhere = ("--fetch", "--api-key-env", "--api-key-file")  # refused where they are read
    launching = {name: option for name, option in _NOTHING_LAUNCHED.items() if option not in elsewhere}
    if given := [option for name, option in launching.items() if getattr(options, name)]:
        raise BadInput(f"{' and '.join(given)}: nothing is launched where a file answers; leave it out")
    sha256 = digest(Path(on.removeprefix(REPLAY)))
    table = table_of(on, sha256, library)
    engines = [engine_name(text, library) for text in options.engines] or list(table.engines)
    for name in engines:
        if name not in table.engines:
            raise UnknownName("engine", name, table.engines, f"They are those of {table.path}.")
    pins = dict(setting(table, text, "--set", library) for text in options.pins)
    workloads = tuple(dict.fromkeys(options.workloads)) or (table.workload or "sharegpt",)
    of_recorded: Asked = {
        "on": on,
        "table_sha256": sha256,
        "engines": tuple(EngineChoice(name=n, version=table.version_of(n)) for n in dict.fromkeys(engines)),
        "workloads": workloads,
        "pins": pins,
        "baseline": options.baseline,
    }
    return of_recorded, tuple(_notes_on_table(options, table, workloads[0]))


def _notes_on_table(options: RunOptions, table: Table, workload: str) -> Iterator[str]:
    failed = sum(row.failure is not None for row in table.rows)
    counted = f"{len(table.rows)} rows of {len(table.repeats)} configurations, {failed} of them failed"
    metrics = tuple(dict.fromkeys(name for names in table.metrics.values() for name in names))
    # So that a misspelt metric is seen to be taken for a knob.
    columns = f"knobs: {shortened(table.columns) or 'none'}; metrics: {shortened(metrics) or 'none'}"
    yield f"{table.path}: {counted}; {columns}"
    for note in table.notes:
        yield f"{table.path}: {note}"
    if table.workload is not None and table.key_of_workload(workload, objective=True) == PLAIN:
        yield f"the figures of {workload} are those that {table.path} has of {table.workload}"
    if options.space is not None:
        yield f"--space tells what models, nodes and engines are; only rows of {table.path} are tried"
    if options.hours is not None and not any(row.times_s for row in table.rows):
        yield f"--hours is not used: {table.path} does not say how long launches took"
