"""Base of every engine: configuration to command line, and command line to configuration.

The options of a version are a table, ``search_spaces/<engine>/options/<version>.json``, of which
`OptionParser` makes an `argparse` parser. An engine with few options has them in its card.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NoReturn

import yaml
from packaging.version import InvalidVersion, Version

from autotune.base import (
    BadInput,
    Json,
    JsonObject,
    MalformedFile,
    RefusedCommand,
    StringDict,
    StringMap,
    Strings,
    frozen,
)

from .cards import EngineExtras, ModelCard
from .command import Command, Configuration, Knobs, Scalar, Words, flag_of, gpu_settings_of_servers
from .context import Context, default_of
from .entry import first_for, in_range, spaces_root, span
from .expression import Namespace, Scope, evaluate, fill, fill_value, names, template_names
from .option_table import OptionTable, read_table, suggestion
from .schema import Addition, EngineCard, ForcedAcceptance, RandomWeights, Removed, holding, name_of

_PYTHON = re.compile(r"\S*python[\d.]* ((?:-[WX] ?\S+ |-[bBdEiIOPqRsSuvx]+ )+)-m ")
"""An interpreter with options of its own in front of a module."""
RULE = "not in this version's --help"
_UNRECOGNIZED = "unrecognized arguments: "
_FILE_OPTION = "--config"
"""Option of vLLM and SGLang that names a YAML file, whose keys stand for long options."""


def human_int(text: str) -> int:
    """Read ``64k`` as 64000, ``64K`` as 65536 and ``auto`` as -1."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if match:
        base = 1000 if match[2].islower() else 1024
        return int(float(match[1]) * base ** ("kmgt".index(match[2].lower()) + 1))
    return -1 if text.strip().lower() == "auto" else int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"Value {text} cannot be converted: not JSON ({error})"
        ) from error


def _bool(text: str) -> bool:
    if text.lower() not in {"true", "false", "1", "0"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not a boolean")
    return text.lower() in {"true", "1"}


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "human_int": human_int,
    "json": _json,
    "json_or_str": lambda text: _json(text) if re.fullmatch(r"(?s)\s*\{.*\}\s*", text) else text,
    "bool": _bool,
}


class _Switch(argparse.Action):
    def __init__(self, option_strings: Words, off: Words, **keywords: Any) -> None:
        super().__init__([*option_strings, *off], nargs=0, **keywords)
        self._off = off

    def __call__(self, _parser: object, namespace: object, *typed: Any) -> None:
        setattr(namespace, self.dest, typed[1] not in self._off)


class OptionParser(argparse.ArgumentParser):
    """Parse an engine's arguments as the engine's own parser of that version does, with its
    messages."""

    def __init__(self, engine: Engine, version: str) -> None:
        super().__init__(prog=engine.name, add_help=False, allow_abbrev=engine.abbreviations)
        self._engine = engine
        self._table = table = engine.table(version)
        if engine.card.model_flag is None:
            self.add_argument("model_tag", nargs="?", default=argparse.SUPPRESS)
        for option in table.options:
            keywords: Json = {
                "dest": option.dest,
                "default": argparse.SUPPRESS,
                "action": option.action,
            }
            if option.negations:
                keywords |= {"action": _Switch, "off": option.negations}
            elif option.action in {"store", "append"}:
                choices = [choice for choice in option.choices if choice is not None] or None
                keywords |= {"type": _TYPES[option.type], "choices": choices, "nargs": option.nargs}
                if option.nargs == "?":
                    keywords["const"] = option.const
            self.add_argument(*option.flags, **keywords)

    def error(self, message: str) -> NoReturn:
        version = self._table.version
        # Because the engine takes what is gone for an abbreviation of several others.
        words = message.partition("ambiguous option: ")[2].split()[:1]
        words += message.partition(_UNRECOGNIZED)[2].split()
        unknown = [flag_of(word) for word in words if word.startswith("-")]
        choices = re.findall(r"argument ([^ :/]+).*invalid choice: '([^']*)'", message)
        hint = self._engine.whereabouts(unknown, version, dict(choices))
        raise RefusedCommand(f"{self._table.engine} {version}", message, hint)

    def parse(self, arguments: Words) -> tuple[Json, Strings]:
        """Return the given options, by destination, and ``model_tag``; and the options that a
        borrowed table lacks.

        Raises `BadInput` where the engine exits.
        """
        if not self._table.borrowed:
            return vars(self.parse_args(list(arguments))), ()
        removed = self._engine.removed(self._table.version)
        if gone := [flag for flag in map(flag_of, arguments) if flag in removed]:
            self.error(f"{_UNRECOGNIZED}{' '.join(gone)}")
        given, unknown = self.parse_known_args(list(arguments))
        return vars(given), tuple(flag_of(word) for word in unknown if word.startswith("--"))

    def values(self, given: Json) -> Json:
        """Return every option by every name, with defaults for missing ones."""
        values = self._table.defaults
        for option in self._table.options:
            if option.dest in given:
                values.update(dict.fromkeys(option.names, given[option.dest]))
        return values


def expand_file(
    arguments: Words, files: StringMap, at: int, negations: Container[str] = ()
) -> list[str]:
    """Insert the options of a ``--config`` file after the first arguments, so that the command line
    wins.

    Args:
        files: content of files that come with the command; others are read from disk.
        at: arguments that stay in front, e.g. a positional model.
        negations: options that stand for a key that is false, where the parser has them.

    Raises `BadInput` when the file cannot be read or is no mapping.
    """
    words, name = split_file(arguments, [_FILE_OPTION])
    if name is None:
        return words
    document = read_mapping(name, files)
    options: list[str] = []
    for key, value in document.items():
        if value is False:
            options += [negated] if (negated := f"--no-{key}") in negations else []
            continue
        options.append(f"--{key}")
        if isinstance(value, list):
            options += map(str, value)
        elif isinstance(value, Mapping):
            options.append(json.dumps(value))
        elif value is not True:
            options.append(str(value))
    return [*words[:at], *options, *words[at:]]


def split_file(arguments: Words, flags: Container[str]) -> tuple[list[str], str | None]:
    """Split off the config file that arguments name by one of some flags; None without one."""
    words = list(arguments)
    index = next((i for i, word in enumerate(words) if flag_of(word) in flags), None)
    if index is None:
        return words, None
    flag, equals, name = words.pop(index).partition("=")
    if not equals and index == len(words):
        raise BadInput(f"error: argument {flag}: expected one argument")
    return words, name if equals else words.pop(index)


def read_mapping(name: str, files: StringMap) -> Json:
    """Read the YAML mapping in a file of a command, or on disk; raises `BadInput` for none."""
    try:
        text = files[name] if name in files else Path(name).read_text(encoding="utf-8")
        document = yaml.safe_load(text) or {}
    except (OSError, ValueError) as error:
        raise BadInput(f"the config file {name!r} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise MalformedFile(name, f"not YAML: {error}") from error
    if not isinstance(document, dict):
        raise MalformedFile(name, "the top level is not a mapping of keys to values")
    return document


@frozen
class ParsedCommand:
    """An engine's command line as parsed by that version's parser.

    Attributes:
        model: an id or a path, as it was written.
        args: every option by destination and by long spelling, defaults included.
        given: destinations of the options that stood on the command line.
        config: content of the engine's own config file.
        unknown: options that a borrowed table lacks, and that are passed on.
    """

    version: str
    model: str
    args: JsonObject
    given: frozenset[str]
    env: StringMap
    config: JsonObject
    servers: int
    unknown: Strings

    def has(self, option: str | None) -> bool:
        """Return whether an option or key of the engine's file is set; None: always."""
        return option is None or any(given.get(option) for given in (self.args, self.config))


class Engine:
    """One engine, described by its card; an engine's own file overrides only its peculiarities.

    Args:
        card: ``search_spaces/<engine>/engine.yaml``.
        roots: folders laid out like ``search_spaces/`` that hold the option tables; the packaged
            one by default.
    """

    abbreviations: ClassVar[bool] = True
    """True if the engine's parser takes unambiguous beginnings of long options."""
    hyphens: ClassVar[bool] = False
    """True if it takes underscores for the hyphens of long options."""

    flags_in_file: ClassVar[str] = "*"
    """Versions that read flags in a ``--config`` file correctly."""

    def __init__(self, card: EngineCard, roots: Sequence[Path] = ()) -> None:
        self.card = card
        self.program: Strings = tuple(card.program)
        self._roots = (*roots, spaces_root())
        self._installed: Mapping[str, OptionTable] = {}
        # Made once: that takes longer than parsing a hundred commands.
        self._parser = cache(partial(OptionParser, self))

    def installed(self, program: Words, table: OptionTable) -> Engine:
        """Copy the engine with one installation's program and options, and its version added to the
        card's."""
        here = type(self)(self.card, self._roots)
        here.program = tuple(program)
        here._installed = {table.version: table}
        return here

    @property
    def name(self) -> str:
        return self.card.engine

    def version(self, text: str | None = None) -> str:
        """Resolve a text to a known version or its own number; None: the newest. Raises `BadInput`
        for no version."""
        if text is None:
            return next(iter(self._installed), self.card.newest)
        if text in self._installed:
            return text
        known = self.known_version(text)
        try:
            return known or str(Version(text.strip()))
        except InvalidVersion as error:
            raise BadInput(
                f"unknown {self.name} version {text!r}. Known: {', '.join(self.card.versions)}; "
                "a prefix is enough, and "
                "another number borrows the options of the nearest"
            ) from error

    def known_version(self, text: str) -> str | None:
        """Find a known version by a text; None for no match.

        Exact first, then the same release (``1.2.0rc5`` is read as 1.2.0; no candidate as another),
        then a release prefix (``0.5`` is the newest of 0.5).
        """
        try:
            wanted = Version(text.strip())
        except InvalidVersion:
            return None
        begun = [
            v
            for v in self.card.versions
            if Version(v).release[: len(wanted.release)] == wanted.release
        ]
        same = [v for v in begun if Version(v).release == wanted.release]
        matches = [v for v in same if Version(v) == wanted] or [
            v for v in same or begun if not same or not Version(v).is_prerelease
        ]
        return next(reversed(matches), None)

    def borrowing(self, version: str, words: Words = ()) -> str | None:
        """Warn that a version uses another version's options, and name what no table has; None if
        not."""
        if version in self.card.versions or version in self._installed:
            return None
        warning = (
            f"{self.card.title} {version}'s flags are not bundled; using those of "
            f"{self.by_distance(version)[0]}"
        )
        unknown = self.lacking(version, words)
        if not unknown:
            return warning
        flags = [one for one in unknown if one.startswith("--")]
        hint = self.whereabouts(flags, version, {})
        return f"{warning}; they lack {', '.join(unknown)}, passed on unchecked{hint}"

    def lacking(self, version: str, words: Words) -> list[str]:
        """List the options of a command that the tables for a version lack."""
        takes = str.startswith if self.abbreviations else str.__eq__
        return [
            flag
            for flag in map(flag_of, words)
            if flag.startswith("--")
            and not any(takes(known, self.spelled(flag)) for known in self.table(version).flags)
        ]

    def whereabouts(self, flags: Words, version: str, choices: StringMap) -> str:
        """Say of options that a version lacks since when, and what is written instead, or which
        known versions have them, or these choices of an option; else name similar options."""
        tables = [self.table(known) for known in self.card.versions]
        having = {f: [t.version for t in tables if self.spelled(f) in t.flags] for f in flags}
        for flag, choice in choices.items():
            having[f"{flag} {choice}"] = [
                table.version
                for table in tables
                for one in table.options
                if flag in one.flags and choice in one.choices
            ]
        said = {what: f"in {span(found)}" for what, found in having.items() if found}
        for flag in flags:
            if one := self.removed(version).get(self.spelled(flag)):
                said[flag] = f"removed in {one.since}, {one.instead}"
        similar = suggestion([f for f in flags if f not in said], self.table(version).flags)
        return "".join(f"; {what}: {where}" for what, where in said.items()) + similar

    def removed(self, version: str) -> dict[str, Removed]:
        """Map the options that were removed before a version, or in it, to what is known of
        them."""
        return {
            flag: one
            for one in self.card.removed
            if in_range(version, f">={one.since},<{one.back}")
            for flag in one.flags
        }

    def spelled(self, flag: str) -> str:
        """Return an option as the parser's table spells it."""
        return flag.replace("_", "-") if self.hyphens and flag.startswith("--") else flag

    def by_distance(self, version: str) -> list[str]:
        """Sort the known versions by distance; of two equal ones the older is first."""

        def number(text: str) -> int:
            wanted = Version(text)
            return (wanted.major * 1000 + wanted.minor) * 1000 + wanted.micro

        return sorted(self.card.versions, key=lambda known: abs(number(known) - number(version)))

    def table(self, version: str) -> OptionTable:
        """Read the option table of a known version or the installed one; other versions borrow the
        known ones'."""
        if version in self._installed:
            return self._installed[version]
        if version not in self.card.versions:
            near, *others = map(self.table, self.by_distance(version))
            return near.borrowed_by(version, others)
        if self.card.options:
            declared = tuple(option for option in self.card.options if option.is_for(version))
            return OptionTable(self.name, version, declared)
        return read_table(self.name, version, self._roots)

    def default_knobs(self, context: Context, settings: Knobs | None = None) -> dict[str, Scalar]:
        """Compute the engine's defaults on all GPUs: settings, the card's ``on_node``, and their
        consequences."""
        settings = settings or {}
        scope = context.scope({"replicas": 1, **settings})
        on_node = {name: fill_value(value, scope) for name, value in self.card.on_node.items()}
        fixed = {**on_node, **settings}
        scope = context.scope(fixed)
        for name, knob in self.card.knobs.items():
            if name not in fixed:
                scope[name] = default_of(knob, scope, context.version)
        return {name: scope[name] for name in self.card.knobs}

    def command(
        self, configuration: Configuration, context: Context, passthrough: Words = ()
    ) -> Command:
        """Return a configuration's command; raises `BadInput` if this version cannot set one of its
        knobs."""
        scope = context.scope(configuration.knobs)
        additions = [addition for _, addition in self.additions(scope, context)]
        return self.command_with(additions, scope, context, passthrough)

    def additions(self, scope: Scope, context: Context) -> Iterator[tuple[str | None, Addition]]:
        """Yield the additions to a command, each with its knob; None for those of every command."""
        for name in self.card.knobs:
            for addition in self.knob_additions(name, scope, context.version):
                yield name, addition
        for addition in self.always(scope, context):
            yield None, addition

    def always(self, scope: Scope, context: Context) -> list[Addition]:
        """List the additions to every command: the model's, and the card's ``always``."""
        return holding(self.always_of(context.model), scope, context.version)

    def always_of(self, model: ModelCard) -> list[Addition]:
        """List the additions to commands with a model, under conditions of their own."""
        return [*model.engines.get(self.name, EngineExtras()).always, *self.card.always]

    def command_with(
        self, additions: Sequence[Addition], scope: Scope, context: Context, passthrough: Words = ()
    ) -> Command:
        """Return the command that serves the model with some additions."""
        flag = self.card.model_flag
        model = [context.model.id] if flag is None else [flag, context.model.id]
        bare = Command(
            (*self.program, *model), servers=gpu_settings_of_servers(scope, context.hardware.vendor)
        )
        command = self._added(bare, additions, scope, context.version)
        return replace(command, argv=(*command.argv, *passthrough))

    def _added(
        self, command: Command, additions: Sequence[Addition], scope: Scope, version: str
    ) -> Command:
        """Add some additions to a command; their keys win over those of the command's own file."""
        argv = (*command.argv, *filled_args(additions, scope))
        env = {**command.env, **filled_env(additions, scope)}
        files = dict(command.files)
        if any(addition.config for addition in additions):
            name = self.card.config_file
            if name not in files:
                flags = (case.value for case in self.card.config_flag if case.is_for(version))
                argv += (str(next(flags)), name)
            document = yaml.safe_load(files.get(name, "{}"))
            for addition in additions:
                for key, value in addition.config.items():
                    *parents, last = key.split(".")
                    level = document
                    for parent in parents:
                        level = level.setdefault(parent, {})
                    if value == {}:
                        level.setdefault(last, {})
                    else:
                        level[last] = fill_value(value, scope)
            files[name] = yaml.safe_dump(document, sort_keys=False)
        return replace(command, argv=argv, env=env, files=files)

    def with_keys(self, command: Command, keys: Sequence[Addition], version: str) -> Command:
        """Return a command with these keys in a config file of its own."""
        argv, _ = self.split_file(command.argv)
        return self._added(replace(command, argv=tuple(argv), files={}), keys, {}, version)

    def knob_additions(self, name: str, scope: Scope, version: str) -> list[Addition]:
        """List the additions of one knob to the command line; raises `BadInput` if this version
        cannot set it."""
        knob = self.card.knobs[name]
        changed = scope[name] != default_of(knob, scope, version)
        if not (changed or knob.emit_default) or not evaluate(knob.active, scope):
            return []
        additions = holding(knob.emit, scope, version) if knob.exists_in(version) else []
        if changed and not additions:
            since = f", which began with {knob.since}" if not knob.exists_in(version) else ""
            raise BadInput(
                f"{self.card.title} {version} has no option for {name}={scope[name]!r}{since}"
            )
        return additions

    def setting(
        self, knob: str, configuration: Configuration, context: Context, command: Command
    ) -> str:
        """Quote the options of a command that set a knob, e.g. ``--tp-size 8``; empty for none."""
        scope = context.scope(configuration.knobs)
        options: list[str] = []
        for addition in holding(self.card.knobs[knob].emit, scope, context.version):
            args = filled_args([addition], scope)
            if {*args} <= {*command.argv}:
                options += args
            options += [
                f"{name}={text}"
                for name, text in filled_env([addition], scope).items()
                if command.env.get(name) == text
            ]
            options += [
                f"{key}: {fill_value(value, scope)}"
                for key, value in addition.config.items()
                if command.files
            ]
        return " ".join(options)

    def arguments(self, argv: Words) -> Strings | None:
        """Remove the engine's program from a command line; None for another program."""
        if own := _PYTHON.match(" ".join(argv)):
            argv = [argv[0], *argv[1 + len(own[1].split()) :]]
        for program in sorted([self.program, *self.card.forms], key=len, reverse=True):
            if argv and tuple(argv[1 : len(program)]) == program[1:]:
                name = PurePosixPath(argv[0]).name
                if program[0] in (argv[0], name) or (
                    program[0] == "python3" and name.startswith("python")
                ):
                    return tuple(argv[len(program) :])
        return None

    def parse(self, command: Command, version: str) -> ParsedCommand:
        """Parse a command as this engine of that version does; raises `BadInput` with the engine's
        refusal."""
        arguments = self.arguments(command.argv)
        if arguments is None:
            raise BadInput(f"not a {self.card.title} command: {' '.join(command.argv)}")
        parser = self._parser(version)
        given, unknown = parser.parse(self.prepare(arguments, version, command))
        values = parser.values(given)
        model = given.get("model_tag") or values.get(name_of(self.card.model_flag or "--model"))
        if not model or (self.card.model_flag is None and not {"model_tag", "model"} & set(given)):
            raise BadInput(
                f"{self.name} {version}: error: the command names no model: "
                f"{' '.join(command.argv)}"
            )
        return ParsedCommand(
            version,
            str(model),
            values,
            frozenset(given),
            command.env,
            self.config(values, command, version),
            command.replicas,
            unknown,
        )

    def given(self, words: Words, version: str) -> Json:
        """Parse some prepared arguments; returns the given options by destination."""
        return self._parser(version).parse(words)[0]

    def prepare(self, arguments: Words, version: str, command: Command) -> Words:
        """Rewrite the arguments as the engine does before it parses them."""
        return arguments

    def config(self, values: JsonObject, command: Command, version: str) -> Json:
        """Read the engine's own config file; empty if it has none."""
        return {}

    def split_file(self, words: Words) -> tuple[list[str], str | None]:
        """Split off the config file of typed arguments; None without one."""
        return split_file(words, [_FILE_OPTION, *(str(one.value) for one in self.card.config_flag)])

    def with_file(self, words: Words, version: str, files: StringMap) -> tuple[Words, Json]:
        """Return typed arguments with the options of a config file that comes with them, or
        without it, and the content of the engine's own."""
        if self.split_file(words)[1] not in files:
            return words, {}
        command = Command((), files=files)
        words = self.prepare(words, version, command)
        return self.split_file(words)[0], self.config(self.given(words, version), command, version)

    def knobs(self, parsed: ParsedCommand, context: Context) -> Configuration:
        """Read the knobs back from a command, the others at their defaults; before the engine's own
        effects."""
        scope = self.scope(parsed, context)
        knobs: dict[str, Scalar] = {}
        for name, knob in self.card.knobs.items():
            value = self.read(name, scope, parsed.version)
            if value is None:
                value = default_of(knob, {**scope, **knobs}, parsed.version)
            knobs[name] = value
        return Configuration(self.name, knobs)

    def switch(self, version: str) -> ForcedAcceptance | None:
        """Return the switch that forces a number of accepted drafted tokens in a version; None for
        none."""
        return first_for(self.card.forced_acceptance, version)

    def with_forced_acceptance(self, command: Command, version: str, length: float) -> Command:
        """Add the switch, which a version must have, to a command: this number of tokens per step
        of a sequence."""
        switch = self.switch(version)
        assert switch
        return self._added(command, [switch], {"forced": f"{switch.counted(length):g}"}, version)

    def random_weights(self, context: Context) -> RandomWeights | None:
        """Return the switch that starts a model with random weights in a version; None for none.

        A model with experts needs one that routes tokens evenly: random gates may send all of them
        to the same ones.
        """
        scope = context.scope({})
        return next(iter(holding(self.card.random_weights, scope, context.version)), None)

    def with_random_weights(self, command: Command, context: Context) -> Command:
        """Add the switch, which the version must have, to a command."""
        switch = self.random_weights(context)
        assert switch
        return self._added(command, [switch], {}, context.version)

    def reads_weights(self, parsed: ParsedCommand, context: Context) -> bool:
        """Return False if a command starts its server with random weights instead of the
        checkpoint's."""
        switch = self.random_weights(context)
        return not switch or not evaluate(switch.read, self.scope(parsed, context))

    def forced_length(self, parsed: ParsedCommand, context: Context) -> float | None:
        """Return the tokens per step that a command forces; None without the switch, or for a
        malformed value."""
        if switch := self.switch(parsed.version):
            with suppress(TypeError, ValueError):
                number = float(evaluate(switch.read, self.scope(parsed, context)))
                return number + switch.counts_drafts if number > 0 else None
        return None

    @staticmethod
    def scope(parsed: ParsedCommand, context: Context) -> Json:
        """Return the names visible to a reading."""
        named = {name: Namespace(getattr(parsed, name)) for name in ("args", "env", "config")}
        return {**context.scope({}), **named, "servers": parsed.servers}

    def reading(self, knob: str, version: str) -> str:
        """Find the expression that reads a knob from a command line of a version; ``None`` if it
        cannot be set."""
        entry = self.card.knobs[knob]
        return next(entry.expressions(entry.read, version), "None")

    def read(self, knob: str, scope: Scope, version: str) -> Scalar:
        """Read one knob; None if it is not given. Raises `BadInput` for a value of a wrong kind."""
        try:
            value: Scalar = evaluate(self.reading(knob, version), scope)
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError("a number of more than 64 bits")
        except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
            # A value of the wrong kind, e.g. a number where the engine expects a JSON object.
            raise BadInput(
                f"{self.name} {version}: error: the value given for {knob} is malformed ({error})"
            ) from error
        return value


def filled_args(additions: Sequence[Addition], scope: Scope) -> list[str]:
    """Return the words that additions put on the command line."""
    return [fill(arg, scope) for addition in additions for arg in addition.args]


def filled_env(additions: Sequence[Addition], scope: Scope) -> StringDict:
    """Return the environment variables that additions set."""
    settings = (item for addition in additions for item in addition.env.items())
    return {name: fill(text, scope) for name, text in settings}


def accepted(
    engine: Engine, context: Context, configurations: Sequence[Configuration]
) -> tuple[list[Configuration], dict[str, int]]:
    """Return the configurations whose command the version's parser accepts, and the number refused,
    by message.

    A command line is made of parts: the options of one knob, or what goes along with every
    configuration (None). Each is parsed once per values of the knobs that it depends on. A
    configuration counts for the first part refused.
    """
    used: dict[str | None, Set[str]] = {}
    for name, knob in engine.card.knobs.items():
        conditions = names(knob.active, *(case.when for case in knob.default))
        used[name] = {name} | conditions | _names(knob.emit)
    used[None] = _names(engine.always_of(context.model))
    left = list(configurations)
    counts = Counter[str]()
    for part, depends in used.items():
        ordered = [name for name in engine.card.knobs if name in depends]
        values = [tuple([one.knobs[name] for name in ordered]) for one in left]
        one_of_each = dict(zip(values, left, strict=True))
        refusals = {key: _refusal(engine, context, part, one) for key, one in one_of_each.items()}
        counts.update(filter(None, map(refusals.get, values)))
        left = [one for one, key in zip(left, values, strict=True) if not refusals[key]]
    return left, dict(counts)


def _refusal(
    engine: Engine, context: Context, knob: str | None, configuration: Configuration
) -> str | None:
    """Return the parser's message if it refuses a part of a command, e.g. an unrecognised
    option."""
    scope, table = context.scope(configuration.knobs), engine.table(context.version)
    try:
        if knob is None:
            additions = engine.always(scope, context)
        else:
            additions = engine.knob_additions(knob, scope, context.version)
        # A version without a table may take an option that another one refuses: a launch will show.
        if table.borrowed or not any(addition.args or addition.config for addition in additions):
            return None
        command = engine.command_with(additions, scope, context)
        parsed = engine.parse(command, context.version)
        # A parser that takes beginnings of options reads one that it lost as another that begins
        # alike: the beginning of the right one gives back what was asked for.
        options = [
            flag_of(word).partition(".")[0] for word in command.argv if word.startswith("--")
        ]
        lost = [option for option in options if option not in table.flags]
        if not lost:
            return None
        if knob is not None and engine.knobs(parsed, context).knobs[knob] == scope[knob]:
            return None
    except BadInput as error:
        return str(error)
    return f"{engine.name} {context.version}: error: {_UNRECOGNIZED}{lost[0]}"


def _names(additions: Sequence[Addition]) -> frozenset[str]:
    """Return the names in the expressions of some additions."""
    texts = [
        text
        for one in additions
        for text in (*one.args, *one.env.values(), *one.config.values())
        if isinstance(text, str)
    ]
    return names(*(addition.when for addition in additions)) | template_names(*texts)
