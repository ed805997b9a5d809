"""Options of a user's command that no knob reads: kept by the engine's candidates, or translated
for another engine.

The cards say which options are counterparts of each other (`Counterpart`), and which another engine
does without (`Dispensable`). A setting of the environment that no engine claims is everybody's.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from autotune.base import BadInput, JsonObject, StringDict, StringMap, frozen

from .command import Command, Words, flag_of, referenced
from .context import Context
from .engine import Engine
from .entry import first_for
from .options import dotted, leaves, readers, readings
from .schema import Addition, Counterpart, EngineCard, Option, name_of

_BRACES = str.maketrans({"{": r"\x7b", "}": r"\x7d"})
_NUMBER = re.compile(r"-\.?\d.*")
_FILE = re.compile(r"(?:\.{0,2}|~)/.*|.*\.(?:jinja|pem)")


@frozen
class OwnOption:
    """One option, setting of the environment or key of the config file in a user's command.

    Attributes:
        names: by which it may be called, without leading hyphens.
        option: as declared by the engine's parser; None where no table has it.
        value: as the parser reads it.
        tuned: a knob reads it, or it goes with one.
    """

    names: Sequence[str]
    words: Words = ()
    env: StringMap = {}
    config: JsonObject = {}
    option: Option | None = None
    value: Any = None
    tuned: bool = False

    @property
    def name(self) -> str:
        return flag_of(self.words[0]) if self.words else self.names[0]

    @property
    def values(self) -> list[str]:
        settings = [str(value) for value in (*self.env.values(), *self.config.values())]
        return [*settings, *"".join(self.words[:1]).split("=", 1)[1:], *self.words[1:]]

    @property
    def text(self) -> str:
        """Return it as typed; a secret is set from a variable."""
        settings = [f"{name}={value}" for name, value in self.env.items()]
        keys = [f"{key}: {json.dumps(value)}" for key, value in self.config.items()]
        secret = ["(set)"] if any(map(referenced, self.values)) else []
        return " ".join([*settings, *keys, *self.words, *secret])

    def among(self, flags: Iterable[str]) -> bool:
        """Return whether it is one of some flags, or of dotted keys."""
        return not {*map(name_of, flags)}.isdisjoint(self.names)

    def matches(self, variables: Iterable[str]) -> bool:
        """Return whether it has the name of one of some environment variables, or patterns of
        them."""
        return any(fnmatchcase(self.name, pattern) for pattern in variables)


@frozen
class Kept:
    """The part of the user's command that every candidate of an engine has, with a text for each
    option.

    Attributes:
        kept: as they were typed.
        translated: with what stands for them, or the reason why nothing does.
        dropped: by ``--drop``.
    """

    words: Words = ()
    env: StringMap = {}
    config: JsonObject = {}
    kept: Sequence[str] = ()
    translated: Sequence[str] = ()
    dropped: Sequence[str] = ()


def grouped(words: Words) -> list[list[str]]:
    """Divide words into those of no option, and of each option with its values."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            groups.append([])
        groups[-1].append(word)
    return groups


def split_options(kind: Engine, words: Words, version: str) -> Iterator[OwnOption]:
    """Divide prepared arguments into options; the words of no option, a model, come without
    names."""
    unnamed, *groups = grouped(words)
    yield OwnOption((), unnamed)
    options = {option.dest: option for option in kind.table(version).options}
    for flag, *values in groups:
        given = kind.given([flag, *values], version)
        option = next((options[dest] for dest in given if dest in options), None)
        names = option.names if option else (name_of(flag_of(flag)),)
        # A model may stand behind a switch.
        model = [value for value in values if value == given.get("model_tag")]
        own = [flag, *(value for value in values if value not in model)]
        value = given[option.dest] if option else None
        yield OwnOption(names, own, option=option, value=value)
        yield OwnOption((), model)


def given_options(kind: Engine, words: Words, version: str) -> list[OwnOption]:
    """Return each option of prepared arguments; of one that is given again the last, as the engine
    reads it."""
    found: dict[object, OwnOption] = {}
    for one in split_options(kind, words, version):
        if one.names:
            repeatable = not one.option or one.option.action == "append"
            found[len(found) if repeatable else one.names] = one
    return list(found.values())


def keys_of(document: JsonObject) -> list[OwnOption]:
    """Return each key of a config file."""
    return [OwnOption((key,), config={key: value}) for key, value in dotted(document).items()]


def own_options(kind: Engine, command: Command, context: Context) -> list[OwnOption]:
    """Read the options of a command, tuned ones too; raises `BadInput` as `Engine.parse` does."""
    version = context.version
    parsed = kind.parse(command, version)
    read = frozenset[str]().union(*readings(kind, version).values())
    arguments = kind.prepare(kind.arguments(command.argv) or (), version, command)
    elsewhere = [
        kind.card.model_flag or "--model",
        *(str(case.value) for case in kind.card.config_flag),
    ]
    with_knobs = [flag for entry in kind.card.dispensable if entry.tuned for flag in entry.flags]
    found = []
    for one in given_options(kind, arguments, version):
        tuned = one.option is not None and bool(readers(kind, version, one.option.paths))
        if not one.among(elsewhere):
            found.append(replace(one, tuned=tuned or one.among(with_knobs)))
        if tuned and isinstance(one.value, Mapping):
            parts = (_part(one, key, leaf) for key, leaf in leaves(one.value) if key)
            found += [
                part
                for part in parts
                if f"args.{part.names[0]}" not in read and not _sets_a_knob(kind, context, part)
            ]
    for own in keys_of(parsed.config):
        tuned = f"config.{own.name}" in read or _sets_a_knob(kind, context, own)
        found.append(replace(own, tuned=tuned))
    scope = context.scope(kind.default_knobs(context))
    always = {name: value for one in kind.always(scope, context) for name, value in one.env.items()}
    return found + [
        OwnOption((name,), env={name: value}, tuned=f"env.{name}" in read and name not in always)
        for name, value in command.env.items()
        if always.get(name) != value
    ]


def _part(whole: OwnOption, key: str, leaf: Any) -> OwnOption:
    """Return one key of an option's JSON object, by its dotted name."""
    text = leaf if isinstance(leaf, str) else json.dumps(leaf)
    return OwnOption((f"{whole.names[0]}{key}", *whole.names), (f"{whole.name}{key}", text))


def literal_addition(config: JsonObject) -> list[Addition]:
    """Return the addition of keys to the config file; text in braces is no template there."""
    texts = {
        key: f"{{{repr(v).translate(_BRACES)}}}" for key, v in config.items() if isinstance(v, str)
    }
    return [Addition(config={**config, **texts})] if config else []


def _sets_a_knob(kind: Engine, context: Context, option: OwnOption) -> bool:
    """Return whether a knob is read from a command with this option alone as from none without
    it."""
    scope = context.scope({})
    alone = kind.command_with(literal_addition(option.config), scope, context, option.words)
    commands = alone, kind.command_with([], scope, context)
    one, other = (kind.knobs(kind.parse(command, context.version), context) for command in commands)
    return one != other


def without_dropped(
    options: Sequence[OwnOption], asked: Sequence[str]
) -> tuple[list[OwnOption], list[OwnOption]]:
    """Split the options that are to be kept from those of ``--drop``; raises `BadInput` for one
    that is not there."""
    dropped = []
    for typed in asked:
        named = [one for one in options if one.among([typed])]
        if not named:
            known = sorted(one.name for one in options if not one.tuned)
            raise BadInput(
                f"--drop {typed}: --baseline does not set it; it sets "
                f"{', '.join(known) or 'no option to keep'}"
            )
        if all(one.tuned for one in named):
            raise BadInput(
                f"--drop {typed}: nothing to drop: it is a knob, which the search tunes or keeps; "
                "--set pins one, with auto to the engine's own"
            )
        dropped += [one for one in named if not one.tuned]
    return [one for one in options if not one.tuned and one not in dropped], dropped


def kept_by(options: Sequence[OwnOption], dropped: Sequence[OwnOption]) -> Kept:
    """Return what candidates of the command's own engine have of it."""
    return Kept(
        tuple(word for one in options for word in one.words),
        {name: value for one in options for name, value in one.env.items()},
        {key: value for one in options for key, value in one.config.items()},
        tuple(one.text for one in options),
        dropped=tuple(one.text for one in dropped),
    )


def counterparts_in(card: EngineCard, version: str) -> EngineCard:
    """Return a card with the counterparts of one version."""
    held = [one for one in card.counterparts if one.is_for(version)]
    return card.model_copy(update={"counterparts": held})


def translated_for(
    target: Engine,
    version: str,
    source: EngineCard,
    options: Sequence[OwnOption],
    dropped: Sequence[OwnOption],
) -> Kept:
    """Translate the options for another engine; raises `BadInput` naming those without a
    counterpart.

    `source` is the card of their engine with the counterparts of its version.
    """
    env: StringDict = {}
    kept = []
    translated = []
    lacking = []
    rows = []
    for one in options:
        entry = next(
            (c for c in source.counterparts if one.name == c.variable or one.among(c.flags)), None
        )
        same = (c for c in target.card.counterparts if entry and c.meaning == entry.meaning)
        twin = first_for(same, version)
        written = _written(target, version, one, entry, twin) if entry and twin else None
        off = one.value is False and one.option and not one.option.default
        if one.env and not one.matches(source.variables):
            env |= one.env
            kept.append(one.text)
        elif twin and written is not None and not off:
            rows.append((one, twin, written))
        elif needless := [
            d for d in source.dispensable if one.matches(d.variables) or one.among(d.flags)
        ]:
            translated.append(f"{one.text} → nothing ({needless[0].reason})")
        elif not off:  # Any engine without the option has it switched off.
            lacking.append(one.name)
    if lacking:
        have = "has no counterpart" if len(lacking) == 1 else "have no counterparts"
        drops = " ".join(f"--drop {name.lstrip('-')}" for name in lacking)
        raise BadInput(
            f"{source.engine}'s {', '.join(lacking)} {have} in {target.name} {version}; {drops} allows it"
        )
    words = [word for _, _, written in rows for word in written]
    for one, twin, written in rows:
        also = [word for item in twin.also.items() if item[0] not in words for word in item]
        words += also
        written += also
        if written == list(one.words):
            kept.append(one.text)
        else:
            translated.append(
                f"{one.text} → {' '.join(written) or 'nothing (it needs no option there)'}"
            )
    dropped_texts = tuple(one.text for one in dropped)
    return Kept(tuple(words), env, {}, tuple(kept), tuple(translated), dropped_texts)


def _written(
    target: Engine, version: str, option: OwnOption, entry: Counterpart, twin: Counterpart
) -> list[str] | None:
    """Return an option's words for another engine; None where that has no such value."""
    forms = [one.form for one in (entry, twin) if one.form]
    spellings = []
    for value in option.values:
        shared = entry.values.get(value) if entry.values else value
        if shared is None or not all(re.fullmatch(form, shared) for form in forms):
            return None
        own = [name for name, means in twin.values.items() if means == shared]
        spellings.append(own if twin.values else [shared])
    template = [twin.flags[0], "{value}"] if twin.args is None else twin.args
    for values in itertools.product(*spellings):
        words = [word for part in template for word in (values if part == "{value}" else [part])]
        if _accepted(target, version, words):
            return words
    return None


def _accepted(target: Engine, version: str, words: Words) -> bool:
    """Return whether a version's parser takes these words, each option by its full name."""
    table = target.table(version)
    try:
        given = target.given(words, version)
    except BadInput:
        return False
    known = all(word in table.flags for word in words if word.startswith("--"))
    return table.borrowed or (known and "model_tag" not in given)


def missing_files(card: EngineCard, options: Sequence[OwnOption]) -> list[str]:
    """Return the options that name a file which is not on this machine."""
    flags = [flag for entry in card.counterparts if entry.file for flag in entry.flags]
    return [
        f"{one.name} {path}"
        for one in options
        if one.among(flags)
        for value in one.values
        if _FILE.fullmatch(path := value.rpartition("=")[2])
        and not os.path.exists(os.path.expanduser(path))
    ]


def with_engine_args(
    kind: Engine, command: Command, asked: Sequence[OwnOption], version: str
) -> tuple[Command, list[str]]:
    """Add the options of ``--engine-arg`` to a typed command, but those that it sets itself; with
    notes."""
    parsed = kind.parse(command, version)
    keys = dotted(parsed.config)
    own = [
        one
        for one in asked
        if one.name in command.env
        or (one.option and one.option.dest in parsed.given)
        or any(f"{key}.".startswith(f"{one.name}.") for key in keys if one.config)
    ]
    added = [one for one in asked if one not in own]
    env = {name: value for one in added for name, value in one.env.items()}
    option = f"--engine-arg {kind.name}: the baseline"
    notes = []
    if added:
        notes.append(f"{option} is started with {', '.join(one.text for one in added)}, too")
    if own:
        notes.append(f"{option} keeps its own value, not {', '.join(one.text for one in own)}")
    argv = (*command.argv, *(word for one in added for word in one.words))
    command = replace(command, argv=argv, env={**command.env, **env})
    if config := {key: value for one in added for key, value in one.config.items()}:
        command = kind.with_keys(
            command, [*literal_addition(parsed.config), *literal_addition(config)], version
        )
    return command, notes
