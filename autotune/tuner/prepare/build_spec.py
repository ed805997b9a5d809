"""Turn the options of ``autotune run`` into a checked `StudySpec`."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from autotune.base import BadInput, Notify, StringDict, Strings, silent
from autotune.engines import (
    LOCAL,
    Engine,
    EngineCard,
    HardwareCard,
    Library,
    ModelCard,
    Scalar,
    engine,
    recognise,
    settings_in_front,
    typed_command,
)
from autotune.engines.engine import read_mapping
from autotune.engines.installed import choose, named_binaries, unused, why_missing
from autotune.engines.machine import check_gpus, gpus, has, node, power_of
from autotune.engines.options import dotted
from autotune.engines.shell import PLAIN
from autotune.load.metrics.table import ENERGY
from autotune.load.workloads import load_workload, with_options
from autotune.node.calibration import calibration_in
from autotune.servers.command import refuse_secrets
from autotune.servers.docker_run import asked_images
from autotune.servers.preflight import too_few_files

from ..accuracy.check import check_of
from ..backends import Backend, backend_named
from ..study.goals import with_goals
from ..study.home import library_for
from ..study.loads import context_of, with_loads
from ..study.options import RunOptions
from ..study.spec import AUTO, EngineChoice, StudySpec, check_executor, check_study_name, is_local
from .deployed import Deployed, with_deployment
from .names import drafts_told, engine_and_version, find_model, knob_named
from .recipes import with_recipe
from .running import with_running
from .variables import in_front, typed_variables, with_inherited

_DEFAULT = "sharegpt"
_MOST_LAUNCHES, _MOST_HOURS = 10_000, 8_760
"""Largest budgets that can be meant."""
_AS_TYPED = (
    "baseline drop explain find_load hours launches min_context sampler seed sources traffic"
)
"""Options that a study stores as typed."""


def build_spec(options: RunOptions, notify: Notify = silent) -> StudySpec:
    """Check every name and figure of the options; raises `BadInput` with the valid alternatives."""
    library = library_for(options.space, traffic=options.traffic)
    named = None if options.on == "auto" else backend_named(options.on)
    if named:
        if named.recorded:
            _accuracy(options.accuracy, named)
        if spec := named.whole_spec(options, library):
            _check_figures(spec, spec.model)
            return spec.with_fields(study=_study_name(options, spec.model, spec.hardware))
    options, deployed = with_deployment(options, library)
    if not options.model or not options.hardware:
        raise BadInput(
            f"{'--hw' if options.model else '--model'} is missing: only a bundle contains it"
        )
    hardware = node(options.hardware, library)
    model = _model(options, library)
    loads = with_options(options.workloads, options.speedup, options.output_len)
    options = replace(options, workloads=loads)
    # A replayed table names its loads as it likes.
    known = () if named and named.recorded else loads
    for note in chain.from_iterable(load_workload(name, library).notes for name in known):
        notify(note)
    _check_figures(options, model)
    backend = named or backend_named(_on_auto(options, library, hardware))
    backend.check(options, hardware)
    # Say it before candidates are listed; a cluster's nodes have limits of their own.
    if backend.launches and is_local(options.executor) and (problem := too_few_files()):
        raise BadInput(problem)
    usual = backend.own_defaults(options.workloads)
    options = replace(options, **{n: v for n, v in usual.items() if not options.says(n)})
    spec = StudySpec(
        **{name: getattr(options, name) for name in _AS_TYPED.split()},
        study=_study_name(options, model, hardware),
        on=backend.on,
        model=model,
        hardware=hardware,
        gpus=check_gpus(options.gpus, hardware),
        engines=(),
        workloads=tuple(dict.fromkeys(options.workloads)),
        allow=tuple(dict.fromkeys(options.allow)),
        executor=check_executor(options.executor),
        noise=backend.noise(options.noise),
        keeps_unread=backend.predicted,
        keeps_set=True,
        measures_latency=not backend.virtual,
        notes=tuple(
            note for one in options.traffic.values() for note in str(one["origin"]).split("\n")
        ),
        space=str(options.space.resolve()) if options.space else None,
        **_accuracy(options.accuracy, backend),
        **backend.secret_sources(options),
    )
    spec = backend.from_file(spec, options, library) or _served(
        spec, options, backend, library, notify, deployed
    )
    spec = with_goals(spec.with_fields(objective=spec.load.objective), options)
    _check_energy(spec, backend)
    _check_streaming(spec)
    spec = with_loads(spec, options, backend.measurable, library, sent=not backend.recorded)
    return spec.with_fields(screened=_screened(spec, options, backend, library))


def _screened(spec: StudySpec, options: RunOptions, backend: Backend, library: Library) -> Strings:
    """Return the engines whose launches may have random weights: they have switches for these and
    for acceptance."""
    if options.screen == "off" or "screen" in backend.unused_options or not spec.may_screen:
        return ()
    able = []
    for one in spec.engines:
        kind, context = engine(one.name, library), spec.context(one.version)
        if None not in (kind.random_weights(context), kind.switch(one.version)):
            able.append(one.name)
    return tuple(able)


def _check_energy(spec: StudySpec, backend: Backend) -> None:
    """Raise `BadInput` for a goal or limit on energy without a power reading; a file's columns
    decide for it."""
    for option, metric in spec.asked_metrics.items():
        asked = f"{option.partition(' ')[0]} {metric}"
        if metric not in ENERGY or backend.recorded:
            continue
        if not backend.on_gpus:
            raise BadInput(
                f"{asked}: {backend.kind} has no readable GPU power; --on process or docker "
                "measures it on this machine's GPUs"
            )
        if is_local(spec.executor) and power_of(gpus()[: spec.gpus]) is None:
            raise BadInput(
                f"{asked}: no driver of this machine reports GPU power (NVML, or amdgpu's hwmon)"
            )


def _check_streaming(spec: StudySpec) -> None:
    """Raise `BadInput` for a goal or limit on the time between tokens, if these may come many at
    once."""
    if "coarse-streaming" not in spec.allow or spec.judges_pieces:
        return
    asked = spec.asked_metrics | {f"--goodput {name}": name for name in spec.goodput}
    for option, metric in asked.items():
        if "itl" in metric or "tpot" in metric:
            raise BadInput(
                f"{option.partition(' ')[0]} {metric}: with --allow coarse-streaming tokens may come many "
                "at once, with no time between them; leave out one of the two, or limit an inter-token "
                "latency that is measured (--slo p99_itl_ms<=LIMIT)"
            )


def _study_name(options: RunOptions, model: ModelCard, hardware: HardwareCard) -> str:
    """Return the study's name: as given, else from model, hardware and time."""
    stem = model.id.rstrip("/").rsplit("/", 1)[-1].lower()
    safe = re.sub(r"[^\w.-]", "-", f"{stem}-{hardware.name}").strip(".-_")
    return check_study_name(options.study or f"{safe[:70] or 'study'}-{options.now:%Y%m%d-%H%M%S}")


def _served(
    spec: StudySpec,
    options: RunOptions,
    backend: Backend,
    library: Library,
    notify: Notify,
    deployed: Deployed,
) -> StudySpec:
    """Add engines, workloads and settings of servers, simulated ones too."""
    spec = _with_default_load(spec, library)
    for name in spec.workloads:
        load_workload(name, library).check_fits(spec.model.architecture.context_limit)
    cards = _engines(options, library)
    names = [card.engine for card in cards]
    context = context_of(spec, "", library)
    options, running, running_notes = with_running(options, context, backend, library)
    options, recipe, files, recipe_notes = with_recipe(options, context, names, backend, library)
    calibration = calibration_in(options.calibration if backend.predicted else None)
    notes = [*spec.notes, *deployed.notes, *running_notes, *recipe_notes]
    asked = (engine_and_version(text, library) for text in options.engines)
    versions = {} if backend.installed else {**running, **deployed.versions}
    versions |= {name: version for name, version in asked if version is not None}
    options, more_cards, more_files, typed_notes = _baseline(options, library)
    cards += more_cards
    files |= {**more_files, **deployed.files}
    notes += typed_notes
    own = deployed.images(versions) if backend.contained else []
    images = backend.images([*own, *options.images], cards, versions, spec.hardware, library)
    passed, passed_files = _engine_args(options.engine_args, library)
    variables = typed_variables(options.env, os.environ)
    for card in cards if variables else ():
        passed[card.engine] = in_front(passed.get(card.engine, ""), card, variables, library)
    binaries = named_binaries(options.engine_bins, library)
    versions |= {name: version for name, (version, _) in images.items()}
    values, pin_notes = _set_values(options.pins, [engine(n, library) for n in names], library)
    told = drafts_told(values.get("draft_model", ()), library)
    typed = (options.baseline, passed)
    chosen = choose(names, typed, binaries, backend.elsewhere, library, notify, versions)
    notes += [*chosen.notes, *pin_notes]
    notes += unused("--image", asked_images(options.images, library), images)
    if calibration:
        path, fit = options.calibration, calibration.fit_summary
        notes.append(f"the simulated node uses the coefficients of {path}: {fit}")
    spec = spec.with_fields(
        engines=tuple(EngineChoice(name=n, version=chosen.versions[n]) for n in names),
        baseline=chosen.baseline,
        recipe=recipe,
        baseline_files=files,
        pins={name: tried[0] for name, tried in values.items() if len(tried) == 1},
        among=values,
        model=spec.model.with_fields(drafts=told),
        engine_args=dict(chosen.engine_args),
        passed_files=passed_files,
        installed=dict(chosen.installed),
        calibration=calibration and calibration.model_dump(mode="json"),
        images={name: image for name, (_, image) in images.items()},
        notes=tuple(notes),
    )
    return with_inherited(spec, options, backend, chosen.versions, library)


def _with_default_load(spec: StudySpec, library: Library) -> StudySpec:
    """Return a study with workloads; by default each server of a small model gets the same number
    of prompts, with a note.

    A thousand at once are so few for four servers and more that the load would be little but its
    beginning and its end.
    """
    if spec.workloads:
        return spec
    workload, notes = _DEFAULT, spec.notes
    # The same share of memory as in the rule weights-exceed-a-replica.
    least = spec.model.weights_gb / (0.9 * spec.hardware.memory_gb)
    copies = next((n for n in (8, 4) if spec.gpus % n == 0 and spec.gpus >= n * least), 1)
    if copies > 1 and spec.hardware.vendor != "cpu" and spec.load.fixed:
        each = load_workload(_DEFAULT, library).points[0].prompts
        workload = f"{_DEFAULT}:{copies * each}"
        notes += (f"the default workload has {each} prompts for each of {copies} servers",)
    return spec.with_fields(workloads=(workload,), notes=notes)


def _model(options: RunOptions, library: Library) -> ModelCard:
    """Return the model card; a path stays the id for the engine, and the model's own id becomes an
    alias."""
    name = options.model
    model = find_model(name, options.model_id, library)
    if name.endswith((".yaml", ".yml")):
        return model
    if not (name.startswith((".", "/", "~")) or Path(name).exists()):
        # A server serves the model under the typed name, too.
        alias = [name] if options.model_id else []
        return model.with_fields(aliases=model.aliases + alias)
    # Without a slash a launcher takes the path of a file for the name of a model.
    path = f"./{name}" if "/" not in name and Path(name).is_file() else name
    return model.with_fields(id=path, aliases=[*model.aliases, model.id])


def _accuracy(text: str | None, backend: Backend) -> dict[str, str | None]:
    """Return the check of answers, a file by its absolute path; raises `BadInput` if it is
    impossible here."""
    if text is None:
        return {}
    if backend.virtual:
        raise BadInput(
            f"--accuracy {text}: {backend.kind} has no server that answers; use --on emulator"
        )
    if backend.foreign:
        raise BadInput(
            f"--accuracy {text}: with one server there is no comparison; use autotune bench "
            "--accuracy"
        )
    sha256 = check_of(text).sha256
    return {
        "accuracy": str(Path(text).expanduser().absolute()) if sha256 else text,
        "accuracy_sha256": sha256,
    }


def _check_figures(options: RunOptions | StudySpec, model: ModelCard) -> None:
    """Raise `BadInput` for a figure outside its range."""
    floor, limit = options.min_context or 0, model.architecture.context_limit
    if floor > limit:
        raise BadInput(f"--min-context {floor}: {model.id} takes at most {limit} tokens")
    if options.launches < 1:
        raise BadInput(
            f"--launches {options.launches}: a budget of at least 1 launch is needed (default 30)"
        )
    if options.launches > _MOST_LAUNCHES:
        raise BadInput(
            f"--launches {options.launches}: at most {_MOST_LAUNCHES:,}, as a launch takes minutes"
        )
    if options.hours is not None and not 0 < options.hours <= _MOST_HOURS:
        raise BadInput(
            f"--hours {options.hours:g}: write a number above 0, at most {_MOST_HOURS:,} (a year)"
        )
    if options.noise is not None and not 0 <= options.noise < 1:
        raise BadInput(f"--noise {options.noise:g}: a sigma from 0 to below 1, e.g. 0.03 for 3 %")


def _on_auto(options: RunOptions, library: Library, hardware: HardwareCard) -> str:
    """Return ``process`` if this machine has the GPUs and an engine, else ``simulator``."""
    gpus = check_gpus(options.gpus, hardware)
    binaries = named_binaries(options.engine_bins, library)
    if options.hardware.lower() == LOCAL or has(hardware.name, gpus):
        # Count any --engine-bin as startable: a wrong one is an error of its own, found later.
        startable = any(
            card.engine in binaries or why_missing(card) is None
            for card in _engines(options, library)
        )
        return "process" if startable else "simulator"
    if binaries:
        raise BadInput(
            f"--engine-bin: this machine has no {gpus} x {hardware.name}, so launches would be "
            "simulated without the program; remove the option, or add --on process"
        )
    return "simulator"


def _baseline(
    options: RunOptions, library: Library
) -> tuple[RunOptions, list[EngineCard], StringDict, Strings]:
    """Read the baseline as a shell does; with its engine's card, its files and notes.

    Raises `BadInput` for an unknown engine or a typed secret.
    """
    text = options.baseline
    if text is None:
        return options, [], {}, ()
    try:
        typed = typed_command(text, os.environ, library)
        command = typed.command
        card = recognise(command.argv, library).card
    except BadInput as error:
        raise BadInput(f"--baseline: {error}") from error
    refuse_secrets(command.argv, command.env, "--baseline")
    if typed.notes or not PLAIN.fullmatch(text):
        text = replace(command, files={}).shell()
    return replace(options, baseline=text), [card], dict(command.files), typed.notes


def _engines(options: RunOptions, library: Library) -> list[EngineCard]:
    if not options.engines:
        searched = map(library.engine, library.narrowed or library.engines)
        return sorted(searched, key=lambda card: (not card.default_baseline, card.engine))
    names = dict.fromkeys(engine_and_version(text, library)[0] for text in options.engines)
    return list(map(library.engine, names))


def _split_setting(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadInput(f"{option} {text!r}: write {form}")
    return name.strip(), value


def _set_values(
    texts: Sequence[str], engines: Sequence[Engine], library: Library
) -> tuple[dict[str, tuple[Scalar, ...]], list[str]]:
    """Return the values of each knob to try, and notes on those named by an engine's option."""
    found = {}
    notes = []
    for text in texts:
        typed, value = _split_setting(text, "--set", "knob=value, e.g. kv_cache_dtype=bfloat16")
        name = knob_named(typed, engines, library)
        if name != typed:
            notes.append(f"--set {text} is read as {name}={value}, for every searched engine")
        try:
            parts = tuple(map(yaml.safe_load, value.split(",")))
            found[name] = TypeAdapter(tuple[Scalar, ...]).validate_python(parts, strict=True)
        except (yaml.YAMLError, ValidationError) as error:
            raise BadInput(f"--set {text!r}: {value!r} is not a plain value") from error
        takers = [kind for kind in engines if name in kind.card.knobs]
        for one in found[name]:
            reasons = {kind.name: kind.card.knobs[name].refuses(one) for kind in takers}
            if one != AUTO and all(reasons.values()):
                right = "; ".join(f"{owner}: {reason}" for owner, reason in reasons.items())
                raise BadInput(f"--set {name}={one}: no engine takes this value. {right}")
    return found, notes


def _engine_args(texts: Sequence[str], library: Library) -> tuple[StringDict, StringDict]:
    """Return the arguments of ``--engine-arg`` by engine, and the content of their config files."""
    passed: StringDict = {}
    files = {}
    for text in texts:
        name, value = _split_setting(
            text, "--engine-arg", "engine='arguments', e.g. sglang='--trust-remote-code'"
        )
        owner = library.engine(name).engine
        try:
            env, words = settings_in_front(shlex.split(value))
            _, file = engine(owner, library).split_file(words)
            document = read_mapping(file, {}) if file else {}
        except (BadInput, ValueError) as error:
            raise BadInput(f"--engine-arg {text!r}: {error}") from error
        refuse_secrets(words, env, f"--engine-arg {owner}")
        if file:
            options = [f"--{key}={part}" for key, part in dotted(document).items()]
            refuse_secrets(options, {}, f"--engine-arg {owner}, in its --config file")
            files[file] = yaml.safe_dump(document, sort_keys=False)
        passed[owner] = f"{passed[owner]} {value}" if owner in passed else value
    return passed, files
