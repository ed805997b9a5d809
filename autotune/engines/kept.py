"""Options of a user's command that no knob reads: kept by the engine's candidates, or translated
for another engine.

The cards say which options are counterparts of each other (`Counterpart`), and which another engine
does without (`Dispensable`). A setting of the environment that no engine claims is everybody's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from autotune.base.errors import BadInput

from .command import Command, referenced
from .context import Context
from .engine import Engine
from .entry import in_range
from .options import readers, readings, setting_of
from .schema import Addition, Counterpart, EngineCard, Option, name_of

_BRACES = str.maketrans({"{": r"\x7b", "}": r"\x7d"})
_NUMBER = re.compile(r"-\.?\d.*")
_FILE = re.compile(r"(?:\.{0,2}|~)/.*|.*\.(?:jinja|pem)")


@dataclass(frozen=True, slots=True)
class OwnOption:
    """One option, setting of the environment or key of the config file in a user's command.

    Attributes:
        names: by which it may be called, without leading hyphens.
        option: as declared by the engine's parser; None where no table has it.
        value: as the parser reads it.
        tuned: a knob reads it, or it goes with one.
    """

    names: Sequence[str]
    words: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    option: Option | None = None
    value: Any = None
    tuned: bool = False

    @property
    def name(self) -> str:
        return self.words[0].partition("=")[0] if self.words else self.names[0]

    @property
    def values(self) -> list[str]:
        settings = [str(value) for value in (*self.env.values(), *self.config.values())]
        return [*settings, *"".join(self.words[:1]).split("=", 1)[1:], *self.words[1:]]

    @property
    def text(self) -> str:
        """Return it as typed; a secret is set from a variable."""
        settings = [f"{name}={value}" for name, value in self.env.items()]
        keys = [f"{key}: {json.dumps(value)}" for key, value in self.config.items()]
        return " ".join(
            [*settings, *keys, *self.words, *["(set)"] * any(map(referenced, self.values))]
        )

    def among(self, flags: Iterable[str]) -> bool:
        """Return whether it is one of some flags, or of dotted keys."""
        return not {*map(name_of, flags)}.isdisjoint(self.names)


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of the user's command that every candidate of an engine has, with a text for each
    option.

    Attributes:
        kept: as they were typed.
        translated: with what stands for them, or the reason why nothing does.
        dropped: by ``--drop``.
    """

    words: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    kept: Sequence[str] = ()
    translated: Sequence[str] = ()
    dropped: Sequence[str] = ()


def grouped(kind: Engine, words: Sequence[str], version: str) -> list[OwnOption]:
    """Return each option of prepared arguments; of one that is given again the last, as the engine
    reads it."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
    options = {option.dest: option for option in kind.table(version).options}
    found = dict[object, OwnOption]()
    for group in groups:
        given = kind.given(group, version)
        # A model may stand behind a switch.
        group = [group[0], *(word for word in group[1:] if word != given.get("model_tag"))]
        option = next((options[dest] for dest in given if dest in options), None)
        names = option.names if option else (name_of(group[0].partition("=")[0]),)
        key = option.dest if option and option.action != "append" else len(found)
        found[key] = OwnOption(
            names, group, option=option, value=given[option.dest] if option else None
        )
    return list(found.values())


def own_options(kind: Engine, command: Command, context: Context) -> list[OwnOption]:
    """Read the options of a command, tuned ones too; raises `BadInput` as `Engine.parse` does."""
    version, parsed = context.version, kind.parse(command, context.version)
    read = frozenset[str]().union(*readings(kind, version).values())
    arguments = kind.prepare(kind.arguments(command.argv) or (), version, command)
    elsewhere = [
        kind.card.model_flag or "--model",
        *(str(case.value) for case in kind.card.config_flag),
    ]
    along = [flag for one in kind.card.dispensable if one.tuned for flag in one.flags]
    found: list[OwnOption] = []
    for one in grouped(kind, arguments, version):
        tuned = any(
            readers(kind, version, setting_of(option, None)) for option in [one.option] if option
        )
        if not one.among(elsewhere):
            found.append(replace(one, tuned=tuned or one.among(along)))
        parts = [_part(one, path, leaf) for path, leaf in _leaves(one.value)] if tuned else []
        found += [
            p
            for p in parts
            if f"args.{p.names[0]}" not in read and not _sets_a_knob(kind, context, p)
        ]
    for path, leaf in _leaves(parsed.config):
        key = OwnOption((path,), config={path: leaf})
        found.append(
            replace(key, tuned=f"config.{path}" in read or _sets_a_knob(kind, context, key))
        )
    scope = context.scope(kind.default_knobs(context))
    always = {name: value for one in kind.always(scope, context) for name, value in one.env.items()}
    return found + [
        OwnOption((name,), env={name: value}, tuned=f"env.{name}" in read and name not in always)
        for name, value in command.env.items()
        if always.get(name) != value
    ]


def _part(whole: OwnOption, path: str, leaf: Any) -> OwnOption:
    """Return one key of an option's JSON object, by its dotted name."""
    text = leaf if isinstance(leaf, str) else json.dumps(leaf)
    return OwnOption((f"{whole.names[0]}.{path}", *whole.names), (f"{whole.name}.{path}", text))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested mappings with their values; none for another value."""
    for key, part in value.items() if isinstance(value, Mapping) else ():
        below = f"{path}.{key}" if path else str(key)
        if isinstance(part, Mapping) and part:
            yield from _leaves(part, below)
        else:
            yield below, part


def as_they_are(config: Mapping[str, Any]) -> list[Addition]:
    """Return the addition of keys to the config file; text in braces is no template there."""
    texts = {
        key: f"{{{repr(v).translate(_BRACES)}}}" for key, v in config.items() if isinstance(v, str)
    }
    return [Addition(config={**config, **texts})] if config else []


def _sets_a_knob(kind: Engine, context: Context, option: OwnOption) -> bool:
    """Return whether a knob is read from a command with this option alone as from none without
    it."""
    scope = context.scope({})
    alone = kind.command_with(as_they_are(option.config), scope, context, option.words)
    commands = alone, kind.command_with([], scope, context)
    one, other = (kind.knobs(kind.parse(command, context.version), context) for command in commands)
    return one != other


def without_dropped(
    options: Sequence[OwnOption], asked: Sequence[str]
) -> tuple[list[OwnOption], list[OwnOption]]:
    """Split the options that are to be kept from those of ``--drop``; raises `BadInput` for one
    that is not there."""
    dropped: list[OwnOption] = []
    for typed in asked:
        named = [one for one in options if one.among([typed])]
        if not named:
            known = (
                ", ".join(sorted(one.name for one in options if not one.tuned))
                or "no option to keep"
            )
            raise BadInput(f"--drop {typed}: --baseline does not set it; it sets {known}")
        if all(one.tuned for one in named):
            raise BadInput(
                f"--drop {typed}: nothing to drop: it is a knob, which the search tunes; --set pins one"
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
    held = [one for one in card.counterparts if in_range(version, one.versions)]
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
    there = counterparts_in(target.card, version)
    env = dict[str, str]()
    kept, told, lacking, rows = (
        list[str](),
        list[str](),
        list[str](),
        list[tuple[OwnOption, Counterpart, list[str]]](),
    )
    for one in options:
        entry = next(
            (c for c in source.counterparts if one.name == c.variable or one.among(c.flags)), None
        )
        twin = entry and next((c for c in there.counterparts if c.meaning == entry.meaning), None)
        written = _written(target, version, one, entry, twin) if entry and twin else None
        off = one.value is False and one.option is not None and not one.option.default
        if one.env and not _matches(source.variables, one.name):
            env |= one.env
            kept.append(one.text)
        elif twin is not None and written is not None and not off:
            rows.append((one, twin, written))
        elif why := [
            d for d in source.dispensable if _matches(d.variables, one.name) or one.among(d.flags)
        ]:
            told.append(f"{one.text} → nothing ({why[0].reason})")
        elif not off:  # Without the option any engine does what is said.
            lacking.append(one.name)
    if lacking:
        names = ", ".join(lacking)
        drops = " ".join(f"--drop {name.lstrip('-')}" for name in lacking)
        have = "has no counterpart" if len(lacking) == 1 else "have no counterparts"
        raise BadInput(
            f"{source.engine}'s {names} {have} in {target.name} {version}; {drops} allows it"
        )
    words = [word for _, _, written in rows for word in written]
    for one, twin, written in rows:
        more = [
            word for flag, value in twin.also.items() if flag not in words for word in (flag, value)
        ]
        words += more
        if [*written, *more] == list(one.words):
            kept.append(one.text)
        else:
            told.append(
                f"{one.text} → {' '.join([*written, *more]) or 'nothing (it needs no option there)'}"
            )
    return Kept(tuple(words), env, {}, tuple(kept), tuple(told), tuple(one.text for one in dropped))


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _written(
    target: Engine, version: str, option: OwnOption, entry: Counterpart, twin: Counterpart
) -> list[str] | None:
    """Return an option's words for another engine; None where that has no such value."""
    tries: list[list[str]] = [[]]
    for value in option.values:
        shared = entry.values.get(value) if entry.values else value
        forms = [one.form for one in (entry, twin) if one.form]
        if shared is None or not all(re.fullmatch(form, shared) for form in forms):
            return None
        own = (
            [name for name, means in twin.values.items() if means == shared]
            if twin.values
            else [shared]
        )
        tries = [[*values, name] for values in tries for name in own]
    template = [twin.flags[0], "{value}"] if twin.args is None else twin.args
    for values in tries:
        words = [word for part in template for word in (values if part == "{value}" else [part])]
        if _accepted(target, version, words):
            return words
    return None


def _accepted(target: Engine, version: str, words: Sequence[str]) -> bool:
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


def launched_too(
    kind: Engine, command: Command, asked: Sequence[OwnOption], version: str
) -> tuple[Command, list[str]]:
    """Add the options of ``--engine-arg`` to a typed command, but those that it sets itself; with
    notes."""
    given = kind.parse(command, version).given
    own = [
        one for one in asked if one.name in command.env or (one.option and one.option.dest in given)
    ]
    added = [one for one in asked if one not in own]
    env = {name: value for one in added for name, value in one.env.items()}
    option = f"--engine-arg {kind.name}: the baseline"
    notes = (
        [f"{option} is started with {', '.join(one.text for one in added)}, too"] if added else []
    )
    notes += (
        [f"{option} keeps its own value, not {', '.join(one.text for one in own)}"] if own else []
    )
    argv = (*command.argv, *(word for one in added for word in one.words))
    return replace(command, argv=argv, env={**command.env, **env}), notes
