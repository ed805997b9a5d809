"""Classes of a command's settings: *simulated*, *without effect*, or neither; and the model as it
is loaded.

A setting is an option that differs from its default, a key of an option's or a file's mapping, or a
variable of the environment. An engine's card says which are modelled beside what its knobs are read
from, and which change neither speed nor memory. One that no card names is not simulated: no figure
may depend on it in silence.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from autotune.base import BadInput, Json, JsonObject, MalformedFile, Strings, frozen

from .command import Configuration
from .context import Context, as_failure
from .engine import Engine, ParsedCommand
from .entry import span
from .expression import evaluate, fill
from .failure import Failure
from .library import line_of
from .option_table import suggestion
from .schema import EngineCard, NamedOptions

_PATH = re.compile(r"\b(?:args|env|config)(?:\.\w+)+")


@frozen
class Setting:
    """One setting of a command.

    Attributes:
        name: as it is written.
        knobs: those that are read from it.
    """

    name: str
    value: Any
    knobs: frozenset[str]


def settings(kind: Engine, parsed: ParsedCommand) -> Iterator[Setting]:
    """List a command's settings."""
    table = kind.table(parsed.version)
    defaults = table.defaults
    of_keys = {one.key: one.default for one in table.file_keys}
    written: list[tuple[str, Iterable[str], Any]] = [
        (option.long_flag, option.paths, value)
        for option in table.options
        if option.dest in parsed.given
        and (value := parsed.args[option.dest]) != defaults[option.dest]
    ]
    written += [(name, [f"env.{name}"], text) for name, text in parsed.env.items()]
    written += [(key, [f"config.{key}"], value) for key, value in parsed.config.items()]
    written += [(flag, [], True) for flag in parsed.unknown]
    for name, paths, whole in written:
        for key, value in leaves(whole):
            if value != {} and of_keys.get(f"{name}{key}", {}) != value:
                knobs = readers(kind, parsed.version, [f"{path}{key}" for path in paths])
                yield Setting(f"{name}{key}", value, knobs)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings with their keys, a dot before each; another value
    itself.

    A mapping whose keys are no names is a value.
    """
    named = isinstance(value, Mapping) and all(isinstance(k, str) and "." not in k for k in value)
    if not named or not value:
        yield path, value
        return
    for key, part in value.items():
        yield from leaves(part, f"{path}.{key}")


def dotted(document: JsonObject) -> Json:
    """Return the values in nested mappings by their dotted keys."""
    return {key[1:]: value for key, value in leaves(document) if key}


@cache
def readings(kind: Engine, version: str) -> Mapping[str, frozenset[str]]:
    """Map each knob to the paths that it is read from."""
    texts = {name: kind.reading(name, version) for name in kind.card.knobs}
    return {name: frozenset(_PATH.findall(text)) for name, text in texts.items()}


def read_from(kind: Engine, knob: str, version: str) -> frozenset[str]:
    """Return the options, variables and keys that a knob is read from, e.g. ``args.tp_size``."""
    return frozenset(re.findall(r"\b(?:args|env|config)\.\w+", kind.reading(knob, version)))


def readers(kind: Engine, version: str, setting: Iterable[str]) -> frozenset[str]:
    """Return the knobs that are read from a setting, which expressions find at these paths."""
    own = tuple(f"{path}." for path in setting)
    return frozenset(
        name
        for name, paths in readings(kind, version).items()
        if any(f"{path}.".startswith(own) for path in paths)
    )


def _named(group: Iterable[NamedOptions], version: str, setting: Setting) -> bool:
    return any(one.has(setting.name, setting.value) for one in group if one.is_for(version))


def is_simulated(card: EngineCard, version: str, setting: Setting) -> bool:
    """Return whether a card names a setting as one that the simulator models."""
    return setting.name == card.model_flag or _named(card.simulated, version, setting)


def is_without_effect(card: EngineCard, version: str, setting: Setting) -> bool:
    """Return whether a card names a setting as one without effect on speed and memory."""
    flags = (flag for entry in card.no_effect if entry.is_for(version) for flag in entry.flags)
    return _named(card.neutral, version, setting) or setting.name in flags


def unmodelled(kind: Engine, parsed: ParsedCommand, knobs: Configuration) -> tuple[Setting, ...]:
    """List the settings that no figure depends on unless one of their knobs is read.

    A knob with a value that its card does not list is none that the simulator could read.

    Args:
        knobs: as they are read from the command.
    """
    card = kind.card
    version = parsed.version
    found = list[Setting]()
    flags = kind.table(version).flags
    for setting in settings(kind, parsed):
        if is_simulated(card, version, setting) or is_without_effect(card, version, setting):
            continue
        # No knob makes a value modelled if the card names others that are.
        limited = any(one.values and one.has(setting.name, one.values[0]) for one in card.simulated)
        of_known_value = frozenset(
            name
            for name in setting.knobs
            if not limited
            if not isinstance(value := knobs.knobs[name], str)
            or value in (card.knobs[name].choices or (value,))
        )
        negated = f"--no-{setting.name.removeprefix('--')}"
        name = negated if setting.value is False and negated in flags else setting.name
        found.append(replace(setting, name=name, knobs=of_known_value))
    return tuple(found)


@frozen
class Loading:
    """A model as a command line makes an engine load it.

    Attributes:
        context: with the model's figures as they are on the GPUs.
        reasons: a sentence for each change.
        failure: of a value that the engine refuses when it starts.
    """

    context: Context
    reasons: Strings
    failure: Failure | None


def loading(kind: Engine, parsed: ParsedCommand, context: Context, knobs: Configuration) -> Loading:
    """Apply the card's ``refusals`` and ``loaded`` to a command with these effective knobs."""
    card = kind.card
    version = parsed.version
    scope = {**knobs.knobs, **kind.scope(parsed, context)}
    refused = (
        replace(as_failure(rule), log_excerpt=fill(rule.message, scope))
        for rule in card.refusals
        if rule.is_for(version) and evaluate(rule.forbid, scope)
    )
    try:
        held = [change for change in card.loaded if change.holds(scope, version)]
        if held:
            extra = sum(float(evaluate(one.gb, scope)) for one in held)
            context = context.with_figures(held, scope, extra_gb=extra)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadInput(
            f"{kind.name} {version}: error: an option's value is malformed ({error})"
        ) from error
    return Loading(context, tuple(fill(one.reason, scope) for one in held), next(refused, None))


def check_readings(file: Path, kind: Engine) -> None:
    """Raise `MalformedFile` for a knob that is read from an option that no version of the reading
    has.

    Such a knob would never be read from a command, and count as left at its default.
    """
    card = kind.card
    options = {
        version: {name for one in kind.table(version).options for name in one.names}
        for version in card.versions
    }
    for name, knob in card.knobs.items():
        for number, reading in enumerate(knob.read):
            versions = [
                version
                for version in card.versions
                if reading.is_for(version) and knob.exists_in(version)
            ]
            known = set[str]().union(*(options[version] for version in versions))
            unknown = (
                sorted(set(re.findall(r"\bargs\.(\w+)", reading.value)) - known) if versions else []
            )
            if unknown:
                meant = suggestion([f"args.{unknown[0]}"], [f"args.{one}" for one in known])
                where = f"{card.title} {span(versions)}{meant}"
                problem = f"args.{unknown[0]} is no option of {where}"
                raise MalformedFile(
                    file, problem, line_of(file, ("knobs", name, "read", number, "value"))
                )
