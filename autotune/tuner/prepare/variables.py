"""The environment of a study's servers: what they inherit of the shell, and ``--env``.

Each server of a study gets the same variables, on every backend and node, so that figures differ by
the configuration alone and the recommended command holds all that its figures rest on. A variable
that a knob is read from decides that knob: it goes the way of ``--engine-arg``, which pins it.
"""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from autotune.base import BadInput, Environment, StringDict, StringMap
from autotune.engines import (
    Command,
    Engine,
    EngineCard,
    Library,
    engine,
    server_environment,
    settings_in_front,
)
from autotune.engines.environment import among, differences, shown, stored
from autotune.engines.options import readings
from autotune.servers.command import refuse_secrets
from autotune.servers.visible import VISIBLE

from ..backends import Backend
from ..study.options import RunOptions
from ..study.spec import StudySpec


def typed_variables(texts: Sequence[str], shell: Environment) -> StringDict:
    """Read ``--env NAME=VALUE`` and ``--env NAME``; raises `BadInput` with what would be right."""
    typed = {}
    for text in texts:
        name, equals, value = text.partition("=")
        option = f"--env {text}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise BadInput(
                f"--env {text!r}: write NAME=VALUE, or NAME for the value that the shell has"
            )
        if name in VISIBLE:
            raise BadInput(
                f"{option}: each launch chooses among the GPUs that are visible; set it in front of "
                "autotune"
            )
        if entry := among(name, server_environment().dropped):
            raise BadInput(f"{option}: {entry.reason}; leave it out")
        if equals:
            refuse_secrets((), {name: value}, option)
        elif name not in shell:
            raise BadInput(f"{option}: this shell does not set it; write {name}=VALUE")
        typed[name] = value if equals else stored(name, shell[name])
    return typed


def in_front(text: str, card: EngineCard, variables: Environment, library: Library) -> str:
    """Put an engine's variables in front of what is passed through to it, unless that sets them."""
    own, words = settings_in_front(shlex.split(text))
    settings = {
        name: value
        for name, value in variables.items()
        if name not in own and not of_others(name, card.engine, library)
    }
    return shlex.join([*(f"{n}={value}" for n, value in {**settings, **own}.items()), *words])


def of_others(name: str, engine_name: str, library: Library) -> bool:
    """Return whether a variable is another engine's alone."""
    return any(
        fnmatchcase(name, pattern)
        for card in library.engines.values()
        if card.engine != engine_name
        for pattern in card.variables
    )


def inheriting(command: Command, card: EngineCard, spec: StudySpec, library: Library) -> Command:
    """Return a command with the variables that its study has recorded, unless it, or what launches
    it, sets them, or another engine's they are."""
    ours = {**card.serving.environment, **command.env}
    recorded = {
        name: value
        for name, value in (spec.inherited or {}).items()
        if name not in ours and not of_others(name, card.engine, library)
    }
    return replace(command, env={**recorded, **command.env})


def inherited(spec: StudySpec, backend: Backend) -> StringDict | None:
    """Return what the servers of a finished study's commands inherit: what it recorded, else what
    this shell has."""
    if not backend.launches:
        return None
    return server_environment().record(os.environ) if spec.inherited is None else spec.inherited


def changed_variables(spec: StudySpec) -> list[tuple[str, str, str]]:
    """List the variables that this shell has otherwise than a study of launched servers recorded
    them, with both values."""
    if spec.inherited is None:
        return []
    return differences(spec.inherited, server_environment().record(os.environ))


def with_inherited(
    spec: StudySpec,
    options: RunOptions,
    backend: Backend,
    versions: StringMap,
    library: Library,
) -> StudySpec:
    """Return a study with the variables of this shell that its servers get, with notes.

    Args:
        versions: of its engines, the baseline's too.
    """
    if not backend.launches:
        return spec
    typed = typed_variables(options.env, os.environ)
    known = server_environment()
    found = known.record(os.environ)
    notes = [
        f"{name}={os.environ[name]} of this shell is left out: {reason}"
        for name, reason in known.why_dropped(os.environ).items()
    ]
    new = {name: value for name, value in found.items() if name not in typed}
    if new and options.clean_env:
        notes.append(f"servers do not inherit {', '.join(new)} of this shell")
        new = {}
    passed = dict(spec.engine_args)
    for name, version in versions.items():
        kind = engine(name, library)
        # Every candidate sets these; a typed baseline does not.
        context = spec.context(version)
        always = kind.always(context.scope(kind.default_knobs(context)), context)
        ours = {variable for one in always for variable in one.env}
        if spec.baseline is not None:
            notes += [
                f"{n}={new[n]} of this shell reaches the baseline alone, as candidates of "
                f"{kind.card.title} set {n}; --env {n} gives it to all"
                for n in sorted(ours & new.keys())
            ]
        decided = _decided(kind, version, new.keys() - ours)
        for variable in [n for n, knob in decided.items() if knob in spec.pins]:
            notes.append(f"{variable} of this shell is left out: --set {decided[variable]} decides")
            del new[variable]
        if decides := {n: new[n] for n in decided if n in new}:
            passed[name] = in_front(passed.get(name, ""), kind.card, decides, library)
    if new:
        notes.append(f"servers inherit of this shell: {shown(new)}; --clean-env leaves it out")
    new |= {name: value for name, value in typed.items() if name in found}
    return spec.with_fields(
        inherited=new,
        engine_args={name: text for name, text in passed.items() if text},
        notes=(*spec.notes, *notes),
    )


def _decided(kind: Engine, version: str, variables: Iterable[str]) -> StringDict:
    """Map those of some variables that an engine's knob is read from to the knob."""
    read = {path: knob for knob, paths in readings(kind, version).items() for path in paths}
    return {name: read[f"env.{name}"] for name in sorted(variables) if f"env.{name}" in read}
