"""Rewrite a command for another version of its engine, older or newer: the same knobs, in that version's spelling.

What the other version takes and reads alike stays as it is, but for renamed options. Else the knobs that the command
sets are written as the card writes them for that version, and the other options go by the card's ``renamed``. Defaults
stay those of each version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from autotune.engines import Engine
from autotune.engines.engine import OptionTable
from autotune.engines.space import given_names, knobs_set, read_from
from autotune.engines.translate import translate
from autotune.errors import BadInput
from autotune.space.context import Context, default_of, effective
from autotune.space.expression import fill
from autotune.space.schema import Addition, Option, name_of
from autotune.trial import Command, Configuration, Scalar


def rewrite(kind: Engine, command: Command, old: Context, new: Context) -> tuple[Command, list[str]]:
    """Return the command for the version of `new`, with a sentence for each change.

    Raises `BadInput` for what that version lacks, with the known versions that have it.
    """
    translated, notes = translate(kind, command, new.version)
    if old.version == new.version:
        return translated, notes
    try:
        before = _Before(kind, command, old, new)
    except BadInput:  # An installation of its own had options that no table has: nothing is known of them.
        return translated, notes
    if before.problem(translated) is None:
        return translated, notes
    written, said = before.written()
    written, notes = translate(kind, written, new.version)
    if (problem := before.problem(written)) is not None:
        raise BadInput(problem)
    return written, [*notes, said]


class _Before:
    """A command as its own version reads it, and its knobs on another version."""

    def __init__(self, kind: Engine, command: Command, old: Context, new: Context) -> None:
        self._kind, self._command, self._old, self._new = kind, command, old, new
        self._table, self._words = kind.table(old.version), list(kind.arguments(command.argv) or ())
        parsed = kind.parse(command, old.version)
        given, self._raw = given_names(kind, parsed), kind.knobs(parsed, old).knobs
        decided = knobs_set(kind, parsed, old, given)
        self._sources = {name: read_from(kind, name, old.version) & given for name in decided}
        taken = {name: self._takes(*self._part(names)) for name, names in self._sources.items()}
        scope = old.scope(self._raw)
        # A value that follows from others by default is none of the user's, unless its option is refused.
        self._set = [
            name
            for name, knobs in taken.items()
            if knobs is None or self._raw[name] != default_of(kind.card.knobs[name], scope, old.version)
        ]
        self._read_otherwise = [n for n in self._set if (knobs := taken[n]) is None or knobs[n] != self._raw[n]]
        fixed = {name: self._raw[name] for name in ("replicas", *kind.card.on_node, *self._set)}
        self._knobs = kind.default_knobs(new, fixed)

    def _part(self, names: Set[tuple[str, str]]) -> tuple[list[str], dict[str, str]]:
        """Return the options and variables of a command behind some names of readings."""
        dests = {one.dest for one in self._table.options if names & {("args", name) for name in one.names}}
        words = _divided(self._kind, self._table, self._words, dests)[1]
        return words, {name: value for name, value in self._command.env.items() if ("env", name) in names}

    def _takes(self, words: Sequence[str], env: Mapping[str, str]) -> Mapping[str, Scalar] | None:
        """Return the knobs that the other version reads in a part of the command; None if it refuses that."""
        kind, version = self._kind, self._new.version
        part = replace(kind.command_with([], self._new.scope({}), self._new, words), env=env, files=self._command.files)
        try:
            return kind.knobs(kind.parse(translate(kind, part, version)[0], version), self._new).knobs
        except BadInput:
            return None

    def problem(self, command: Command) -> str | None:
        """Explain why the other version would refuse a command or run something else; None if it does neither."""
        kind, version = self._kind, self._new.version
        table = kind.table(version)
        words = [word for word in kind.arguments(command.argv) or () if word.startswith("--") and not table.borrowed]
        for flag in [word.partition("=")[0] for word in words if not _option(kind, table, word)]:
            if known := [other for other in kind.card.versions if _option(kind, kind.table(other), flag)]:
                return self._lacks(flag, known)
        try:
            read = kind.knobs(kind.parse(command, version), self._new)
        except BadInput as error:
            return str(error)
        there, wanted = (self._effective(knobs) for knobs in (read.knobs, self._knobs))
        other = [f"{name}={wanted[name]}" for name in self._set if there[name] != wanted[name]]
        return self._lacks(", ".join(other), ()) if other else None

    def written(self) -> tuple[Command, str]:
        """Return the command with its knobs in the other version's options, and the change as a sentence."""
        kind, command, scope = self._kind, self._command, self._new.scope(self._knobs)
        again, names = list[str](), set[tuple[str, str]]()
        more = self._read_otherwise
        while more:  # Knobs that share an option are written together.
            again += more
            names = names.union(*(self._sources[knob] for knob in more))
            more = [knob for knob, source in self._sources.items() if knob not in again and names & source]
        # The other keys of a JSON value or of a config file would be lost.
        names -= {("args", name) for one in self._table.options if "json" in one.type for name in one.names}
        added = [one for knob in self._set if knob in again for one in self._additions(knob, scope)]
        # What goes along with every command differs between versions, too.
        always, raw = kind.always(scope, self._new), self._old.scope(self._raw)
        of_old = [([fill(word, raw) for word in one.args], one) for one in kind.always(raw, self._old)]
        gone = [words for words, one in of_old if one not in always and self._takes(words, {}) is None]
        flags = {word for words in gone if _stands_in(words, self._words) for word in words if word.startswith("-")}
        added += [one for one in always if flags & set(one.args)]
        names |= {("args", name_of(flag)) for flag in flags}
        removed, variables = self._part(names)
        dests = {one.dest for one in self._table.options if names & {("args", name) for name in one.names}}
        kept, _ = _divided(kind, self._table, self._words, dests)
        new = [fill(word, scope) for one in added for word in one.args]
        env = {name: value for name, value in command.env.items() if name not in variables}
        env |= {name: fill(text, scope) for one in added for name, text in one.env.items()}
        program = command.argv[: len(command.argv) - len(self._words)]
        return replace(command, argv=(*program, *kept, *new), env=env), self._told(removed, new)

    def _told(self, removed: Sequence[str], new: Sequence[str]) -> str:
        said = f"wrote {' '.join(removed)} as {' '.join(new)}" if new else f"left out {' '.join(removed)}"
        return f"{said} for {self._kind.card.title} {self._new.version}"

    def _additions(self, knob: str, scope: Mapping[str, Any]) -> Sequence[Addition]:
        card, version = self._kind.card, self._new.version
        try:
            return self._kind.knob_additions(knob, scope, version)
        except BadInput:
            known = [other for other in card.versions if card.knobs[knob].exists_in(other)]
            raise BadInput(self._lacks(f"{knob}={scope[knob]}", known if version not in known else ())) from None

    def _lacks(self, what: str, known: Sequence[str]) -> str:
        """Return a sentence about an option or a value that the other version lacks, with versions that have it."""
        where = f", which is in {' to '.join(dict.fromkeys([known[0], known[-1]]))}" if known else ""
        return f"{self._kind.card.title} {self._new.version} has no option for {what}{where}"

    def _effective(self, knobs: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        return effective(self._kind.card, Configuration(self._kind.name, knobs), self._new).knobs


def _option(kind: Engine, table: OptionTable, word: str) -> Option | None:
    """Find the option that a word begins, also by an unambiguous beginning where its parser takes that."""
    flag = word.partition("=")[0].partition(".")[0]
    flag = flag.replace("_", "-") if kind.hyphens and flag.startswith("--") else flag
    names = {name: one for one in table.options if one.action != "retired" for name in one.flags}
    names |= {f"--no-{name[2:]}": one for name, one in names.items() if one.action == "boolean_optional"}
    begun = {one.dest: one for name, one in names.items() if name.startswith(flag)} if kind.abbreviations else {}
    return names.get(flag) or (next(iter(begun.values())) if len(begun) == 1 and len(flag) > 2 else None)


def _divided(kind: Engine, table: OptionTable, words: Sequence[str], dests: Set[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into those that are kept and the options of `dests`, with their values."""
    kept, removed, values = list[str](), list[str](), 0
    for word in words:
        option = _option(kind, table, word) if word.startswith("-") and not values else None
        if option is not None and option.dest in dests:
            valued = option.action in ("store", "append") and "=" not in word
            values = (option.nargs if isinstance(option.nargs, int) else 1) if valued else 0
            removed.append(word)
        elif values:
            values -= 1
            removed.append(word)
        else:
            kept.append(word)
    return kept, removed


def _stands_in(part: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether some words stand in a command line one after the other."""
    return any(list(words[i : i + len(part)]) == part for i in range(len(words)))
