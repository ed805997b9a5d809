"""One engine in one study: its context, its candidates, and its effective configurations."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

from autotune.base import BadInput, Json, JsonObject, StringMap, frozen

from .command import Command, Configuration, Knobs, Scalar, Words
from .context import Context, broken_rules, effective, search_values
from .engine import Engine, ParsedCommand
from .enumeration import Enumeration
from .expression import Namespace, evaluate
from .kept import Kept, literal_addition
from .options import dotted, read_from
from .registry import settings_in_front
from .schema import Addition, EngineCard, holding, name_of

CONTRADICTS = "contradicts --engine-arg"
"""Name under which combinations are counted that passed-through options change."""


@frozen
class PassedThrough:
    """Settings and arguments passed with every command of an engine.

    Attributes:
        option: as it would be typed.
        given: paths by which readings find what is given, e.g. ``args.tp_size``.
        pins: the knobs that it sets, with the values that the engine's parser reads.
        related: the knobs that are read from what is given, and those that share another option
            with them.
        config: dotted keys of the engine's own config file, with their values.
        own: the paths of what is kept of the user's command; no knob is read from them.
    """

    option: str = ""
    env: StringMap = {}
    words: Words = ()
    given: Set[str] = frozenset()
    pins: Knobs = {}
    related: Sequence[str] = ()
    config: JsonObject = {}
    own: Set[str] = frozenset()

    def command(self, kind: Engine, configuration: Configuration, context: Context) -> Command:
        """Return a configuration's command; the option of a pinned knob is used once, as typed."""
        scope = context.scope(configuration.knobs)
        additions = [
            addition
            for name, addition in kind.additions(scope, context)
            if not ((name is None or name in self.pins) and self._overrides(addition))
        ]
        additions += literal_addition(self.config)
        command = kind.command_with(additions, scope, context, self.words)
        return replace(command, env={**command.env, **self.env})

    def _overrides(self, addition: Addition) -> bool:
        paths = {f"env.{name}" for name in addition.env}
        paths |= {f"config.{key.partition('.')[0]}" for key in addition.config}
        options = [word for word in addition.args if word.startswith("--")]
        paths |= {f"args.{name_of(re.split('[=.]', option)[0])}" for option in options}
        return paths <= self.given | self.own

    def contradicts(self, kind: Engine, configuration: Configuration, context: Context) -> bool:
        """Return whether a passed-through option makes the engine run another configuration."""
        parsed = kind.parse(self.command(kind, configuration, context), context.version)
        runs = effective(kind.card, kind.knobs(parsed, context), context)
        return any(runs.knobs[name] != configuration.knobs[name] for name in self.related)


NOTHING = PassedThrough()


def passed_through(
    kind: Engine,
    context: Context,
    text: str,
    pins: Knobs,
    kept: Kept,
    files: StringMap,
) -> PassedThrough:
    """Read the passed-through options next to the pins; raises `BadInput` if one is refused, or
    contradicts a pin.

    What is `kept` of the user's command stands in front, so that an option of the text wins. A
    config file among the `files` is no part of a command: its settings are.
    """
    env, typed = settings_in_front(shlex.split(text))
    env = {**kept.env, **env}
    option = f"--engine-arg {kind.name}={shlex.quote(text)}" if text else "--baseline"
    try:
        words, config = kind.with_file(typed, context.version, files)
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from error
    keys = dotted(config)
    settings = Configuration(kind.name, kind.default_knobs(context, pins))
    alone, own = (
        kind.command_with([], context.scope({}), context, each) for each in (words, kept.words)
    )
    passed = PassedThrough(option, env, [*kept.words, *words], config={**kept.config, **keys})
    try:
        given = given_paths(kind, kind.parse(replace(alone, env=env), context.version))
        given |= {f"config.{key}" for key in keys}
        passed = replace(passed, own=given_paths(kind, kind.parse(own, context.version)))
        parsed = kind.parse(passed.command(kind, settings, context), context.version)
        knobs = kind.knobs(parsed, context).knobs
        reads = {name: read_from(kind, name, context.version) for name in kind.card.knobs}
        set_by = knobs_set(kind, parsed, context, given)
        for name in set_by:
            if name in pins and pins[name] != knobs[name]:
                raise BadInput(
                    f"it sets {name} to {knobs[name]}, but --set {name}={pins[name]}: "
                    "remove one of them"
                )
            knob = kind.card.knobs[name]
            if knob.choices is None and (reason := knob.refuses(knobs[name])):
                raise BadInput(f"{name}={knobs[name]}: {kind.card.title} wants {reason}")
    except BadInput as error:
        if kind.table(context.version).borrowed:
            return passed  # An option that this version may know.
        raise BadInput(f"{option}: {error}") from error
    given = _whole(given)
    shared = frozenset[str]().union(*(paths for paths in reads.values() if paths & given))
    related = [name for name, paths in reads.items() if paths & shared]
    return replace(
        passed, given=given, pins={name: knobs[name] for name in set_by}, related=related
    )


def knobs_set(kind: Engine, parsed: ParsedCommand, context: Context, given: Set[str]) -> list[str]:
    """List the knobs of a command that the given paths decide."""
    whole = _whole(given)
    read = [name for name in kind.card.knobs if read_from(kind, name, context.version) & whole]
    return [name for name in read if _decides(kind, name, parsed, context, given)]


def _whole(paths: Set[str]) -> set[str]:
    """Return the options, variables and uppermost keys of some paths."""
    return {".".join(path.split(".")[:2]) for path in paths}


def given_paths(kind: Engine, parsed: ParsedCommand) -> set[str]:
    """Return the paths by which readings find the given options; a config file covers all its
    possible keys."""
    given = {f"env.{name}" for name in parsed.env}
    for option in kind.table(parsed.version).options:
        if option.dest in parsed.given:
            given |= option.paths
    if any(f"args.{name_of(str(case.value))}" in given for case in kind.card.config_flag):
        paths = {p for name in kind.card.knobs for p in read_from(kind, name, parsed.version)}
        given |= {path for path in paths if path.startswith("config.")}
    return given


def _decides(
    kind: Engine, knob: str, parsed: ParsedCommand, context: Context, given: Set[str]
) -> bool:
    """Return whether a knob's reading changes without the given options, as none or as another
    value."""
    readings: list[Scalar] = []
    for absent in (None, object()):
        scope = context.scope({})
        for space in ("args", "env", "config"):
            values: JsonObject = getattr(parsed, space)
            scope[space] = Namespace(_with(absent, values, given, space))
        with suppress(BadInput):
            readings.append(kind.read(knob, scope, parsed.version))
    value = kind.read(knob, kind.scope(parsed, context), parsed.version)
    return not readings or any(reading != value for reading in readings)


def _with(absent: object, values: JsonObject, given: Set[str], path: str) -> Json:
    """Copy nested mappings with a value in the place of what is given."""
    return {
        key: absent
        if (own := f"{path}.{key}") in given
        else _with(absent, value, given, own)
        if isinstance(value, Mapping)
        else value
        for key, value in values.items()
    }


@frozen
class EngineSpace:
    """One engine in one study: the engine, the context of its rules, and its candidates.

    Attributes:
        pins: the pinned knobs that it has, with ``auto`` replaced by its default.
        chosen: the knobs of which the user left one value.
        own: knobs that the user's baseline sets, if it is of this engine.
        held: those of `own` that are kept where nothing else is set, as they are not searched.
        unread: the knobs that the evidence cannot see, whatever their values.
    """

    engine: Engine
    context: Context
    space: Enumeration
    pins: Knobs
    chosen: frozenset[str] = frozenset()
    passed: PassedThrough = NOTHING
    own: Knobs = {}
    held: Knobs = {}
    unread: frozenset[str] = frozenset()

    @property
    def card(self) -> EngineCard:
        return self.engine.card

    def effective(self, settings: Knobs) -> Configuration:
        """Return the engine's defaults on all GPUs with some settings; pins override both."""
        knobs = self.engine.default_knobs(self.context, {**self.held, **settings, **self.pins})
        return effective(self.card, Configuration(self.engine.name, knobs), self.context)

    def beside_values(self, configuration: Configuration) -> dict[str, tuple[Scalar, ...]]:
        """Map the knobs that are tried beside a configuration to their values, the searched ones
        first."""
        version, scope = self.context.version, self.context.scope(configuration.knobs)
        found = {}
        for name, knob in self.card.knobs.items():
            if name in self.unread | self.chosen or not knob.exists_in(version):
                continue
            more = next((e.values for e in holding(knob.beside, scope, version)), [])
            if more and evaluate(knob.active, scope):
                found[name] = (*dict.fromkeys([*search_values(knob, scope, version), *more]),)
        return found

    def beside(self, configuration: Configuration, most: int) -> list[Configuration]:
        """List the valid configurations with up to `most` other values of knobs that are tried
        beside the best, the nearest first."""
        settings = self._settings(configuration)
        tried = self.beside_values(configuration)
        current = configuration.knobs
        steps = [(n, v) for n, values in tried.items() for v in values if v != current[n]]
        found: dict[Configuration, None] = {}
        for number in range(1, most + 1):
            for pairs in combinations(steps, number):
                changes = dict(pairs)
                one = self.effective({**settings, **changes})
                # Fewer changes than pairs: two values of one knob.
                if len(changes) == number and all(one.knobs[n] == v for n, v in pairs):
                    found[one] = None
        return [one for one in found if not broken_rules(self.card, one, self.context)]

    def seen(self, configuration: Configuration) -> Configuration:
        """Return a configuration as far as the evidence shows it: without settings of knobs that
        are `unread`."""
        return self.effective(
            {n: value for n, value in configuration.knobs.items() if n not in self.unread}
        )

    def holding(self, configuration: Configuration) -> EngineSpace:
        """Return the space in which all have the settings of a configuration that the evidence
        cannot see."""
        decided = self.seen(configuration).knobs
        own = {
            n: v for n, v in configuration.knobs.items() if n in self.unread and v != decided.get(n)
        }
        return replace(self, held=own)

    def without(self, configuration: Configuration) -> dict[str, Configuration]:
        """Map each of a configuration's settings to the effective configuration of the command
        without it."""
        settings = self._settings(configuration)
        return {
            name: self.effective({n: value for n, value in settings.items() if n != name})
            for name in settings
        }

    def _settings(self, configuration: Configuration) -> Knobs:
        """Return what a configuration sets that the engine would not decide by itself."""
        settings = dict(configuration.knobs)
        for name in configuration.knobs:
            fewer = {other: value for other, value in settings.items() if other != name}
            if self.effective(fewer) == configuration:
                settings = fewer
        return settings
