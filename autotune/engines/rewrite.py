"""Rewrite a command for another version of its engine, older or newer.

Renamed options are translated. Their names, and the versions in which each works, are the
``renamed`` section of the engine's card. A name that the version takes is left alone; one that it
would refuse, or ignore without a word, is translated in either direction.

What the other version takes and reads alike then stays as it is. Else the knobs that the command
sets are written as the card writes them for that version. Defaults stay those of each version.
"""

import shlex
from collections.abc import Set
from dataclasses import replace

from autotune.base import BadInput, Notify, StringDict, StringMap, frozen

from .command import Command, Configuration, Knobs, Words, flag_of
from .context import Context, default_of, effective
from .engine import Engine, filled_args, filled_env
from .entry import in_range, span
from .kept import split_options
from .library import Library
from .options import read_from
from .registry import command_of, recognise, settings_in_front
from .schema import name_of
from .space import given_paths, knobs_set


@frozen
class WorkingName:
    """A name that works in a version, and how it names the values of another name."""

    name: str
    is_flag: bool
    values: StringMap = {}


def translate(engine: Engine, command: Command, version: str) -> tuple[Command, list[str]]:
    """Translate a command into the names of a known version; with a sentence for each translated
    name."""
    arguments = engine.arguments(command.argv)
    if arguments is None or not engine.card.renamed:
        return command, []
    translation = _Translation(engine, version)
    words, env = translation.run(list(arguments), dict(command.env))
    if not translation.notes:
        return command, []
    program = command.argv[: len(command.argv) - len(arguments)]
    return Command((*program, *words), env, command.files), list(dict.fromkeys(translation.notes))


def translate_typed(
    words: Words, version: str | None, library: Library, notify: Notify
) -> list[str]:
    """Translate a typed command line; reports options of another version. Raises `BadInput` for no
    engine's command."""
    command = command_of(words)
    engine = recognise(command.argv, library)
    known = engine.version(version)
    translated, notes = translate(engine, command, known)
    for note in filter(None, (engine.borrowing(known, translated.argv), *notes)):
        notify(note)
    return translated.typed() if notes else list(words)


def translate_arguments(engine: Engine, text: str, version: str) -> tuple[str, list[str]]:
    """Translate arguments, with optional leading ``NAME=value`` settings."""
    env, words = settings_in_front(shlex.split(text))
    translated, notes = translate(engine, Command((*engine.program, *words), env), version)
    words = Command(translated.argv[len(engine.program) :], translated.env).typed()
    return (shlex.join(words) if notes else text), notes


class _Translation:
    def __init__(self, engine: Engine, version: str) -> None:
        self._engine = engine
        self._version = version
        self._renamings: list[tuple[str, str, WorkingName]] = []
        for entry in engine.card.renamed:
            back = {new: old for old, new in entry.values.items()}
            self._renamings += [
                (entry.old, entry.old_versions, WorkingName(entry.new, True, entry.values)),
                (entry.new, entry.new_versions, WorkingName(entry.old, entry.kind == "flag", back)),
            ]
        self._flags = engine.table(version).flags
        self.notes: list[str] = []

    def run(self, words: list[str], env: StringDict) -> tuple[list[str], StringDict]:
        for name in [e.old for e in self._engine.card.renamed if e.kind == "environment"]:
            if name in env and (target := self._target(name, is_flag=False)):
                value = env.pop(name)
                if target.is_flag and not value:
                    self.notes.append(
                        f"removed {name}, which is empty and would be {target.name} for "
                        f"{self._engine.card.title} {self._version}"
                    )
                    continue
                if target.is_flag and target.name not in {
                    self._engine.spelled(flag_of(word)) for word in words
                }:
                    words += [target.name, target.values.get(value, value)]
                self._note(name, target.name)
        return self._flagged(words, env), env

    def _flagged(self, words: Words, env: StringDict) -> list[str]:
        out = []
        rest = iter(words)
        for word in rest:
            spelling, equals, value = word.partition("=")
            name = self._engine.spelled(spelling)
            kept = not name.startswith("--") or name in self._flags
            target = None if kept else self._target(name, is_flag=True)
            text = next(rest, None) if target and not equals else value
            if not target or text is None:
                out.append(word)
                continue
            self._note(spelling, target.name)
            text = target.values.get(text, text)
            if not target.is_flag:
                env.setdefault(target.name, text)
            else:
                out += [f"{target.name}={text}"] if equals else [target.name, text]
        return out

    def _note(self, given: str, target: str) -> None:
        self.notes.append(
            f"translated {given} to {target} for {self._engine.card.title} {self._version}"
        )

    def _target(self, name: str, *, is_flag: bool) -> WorkingName | None:
        """Find the nearest working name over any renamings; None if the given one works, or none
        does."""
        reached = [WorkingName(name, is_flag)]
        for here in reached:
            renamings = [row for row in self._renamings if row[0] == here.name]
            held = any(in_range(self._version, versions) for _, versions, _ in renamings)
            if held and (not here.is_flag or here.name in self._flags):
                return None if here is reached[0] else here
            for _, _, there in renamings:
                if there.name not in {other.name for other in reached}:
                    earlier = {old: there.values.get(new, new) for old, new in here.values.items()}
                    reached.append(replace(there, values={**there.values, **earlier}))
        return None


def rewrite(
    kind: Engine, command: Command, old: Context, new: Context
) -> tuple[Command, list[str]]:
    """Return the command for the version of `new`, with a sentence for each change.

    Raises `BadInput` for what that version lacks, with the known versions that have it.
    """
    translated, notes = translate(kind, command, new.version)
    if old.version == new.version:
        return translated, notes
    try:
        before = _Before(kind, command, old, new)
    except BadInput:
        # Without a table for the options of an installation of its own nothing is known of them.
        return translated, notes
    if not before.problem(translated):
        return translated, notes
    written, change = before.written()
    written, notes = translate(kind, written, new.version)
    if problem := before.problem(written):
        raise BadInput(problem)
    return written, [*notes, change]


class _Before:
    """A command as its own version reads it, and its knobs on another version."""

    def __init__(self, kind: Engine, command: Command, old: Context, new: Context) -> None:
        self._kind = kind
        self._command = command
        self._old = old = old.as_read(kind.card)
        self._new = new = new.as_read(kind.card)
        words = kind.arguments(command.argv) or ()
        flags = kind.table(old.version).flags
        self._words = [_in_full(word, flags) for word in kind.prepare(words, old.version, command)]
        self._options = list(split_options(kind, self._words, old.version))
        parsed = kind.parse(command, old.version)
        given = given_paths(kind, parsed)
        self._raw = kind.knobs(parsed, old).knobs
        decided = knobs_set(kind, parsed, old, given)
        self._sources = {name: read_from(kind, name, old.version) & given for name in decided}
        taken = {name: self._taken(paths) for name, paths in self._sources.items()}
        scope = old.scope(self._raw)
        # A value that follows from others by default is none of the user's, unless its option is
        # refused.
        self._set = [
            name
            for name in decided
            if taken[name] is None
            or self._raw[name] != default_of(kind.card.knobs[name], scope, old.version)
        ]
        self._read_otherwise = [
            n for n in self._set if (knobs := taken[n]) is None or knobs[n] != self._raw[n]
        ]
        fixed = {name: self._raw[name] for name in ("replicas", *kind.card.on_node, *self._set)}
        self._knobs = kind.default_knobs(new, fixed)

    def _divided(self, paths: Set[str]) -> tuple[list[str], list[str]]:
        """Divide the arguments into the others and those that set some paths, with their values."""
        others: list[str] = []
        setting: list[str] = []
        for one in self._options:
            sets_a_path = one.option is not None and not paths.isdisjoint(one.option.paths)
            (setting if sets_a_path else others).extend(one.words)
        return others, setting

    def _taken(self, paths: Set[str]) -> Knobs | None:
        """Return the knobs that the other version reads in the options of some paths; None if it
        refuses these."""
        kind = self._kind
        new = self._new
        command = self._command
        env = {name: value for name, value in command.env.items() if f"env.{name}" in paths}
        part = kind.command_with([], new.scope({}), new, self._divided(paths)[1])
        part, _ = translate(kind, replace(part, env=env, files=command.files), new.version)
        try:
            return kind.knobs(kind.parse(part, new.version), new).knobs
        except BadInput:
            return None

    def problem(self, command: Command) -> str | None:
        """Explain why the other version would refuse a command or run something else; None if it
        does neither."""
        kind = self._kind
        version = self._new.version
        table = kind.table(version)
        lacks = f"{kind.card.title} {version} has no option for"
        for flag in (flag_of(word) for word in command.argv if word.startswith("--")):
            known = [other for other in kind.card.versions if flag in kind.table(other).flags]
            if known and not table.borrowed and flag not in table.flags:
                return f"{lacks} {flag}, which is in {span(known)}"
        try:
            read = kind.knobs(kind.parse(command, version), self._new).knobs
        except BadInput as error:
            return str(error)
        runs = [
            effective(kind.card, Configuration(kind.name, knobs), self._new).knobs
            for knobs in (read, self._knobs)
        ]
        other = [f"{name}={runs[1][name]}" for name in self._set if runs[0][name] != runs[1][name]]
        return f"{lacks} {', '.join(other)}" if other else None

    def written(self) -> tuple[Command, str]:
        """Return the command with its knobs in the other version's options, and the change as a
        sentence."""
        kind = self._kind
        command = self._command
        scope = self._new.scope(self._knobs)
        again = []
        paths = set[str]()
        more = self._read_otherwise
        while more:  # Knobs that share an option are written together.
            again += more
            paths = paths.union(*(self._sources[knob] for knob in more))
            more = [
                knob
                for knob, source in self._sources.items()
                if knob not in again and paths & source
            ]
        for option in kind.table(self._old.version).options:
            if "json" in option.type:  # Its other keys would be lost.
                paths -= option.paths
        added = [
            one
            for knob in self._set
            if knob in again
            for one in kind.knob_additions(knob, scope, self._new.version)
        ]
        # Additions to every command are not the user's: leave out those that are refused.
        raw = self._old.scope(self._raw)
        for always in kind.always(raw, self._old):
            words = filled_args([always], raw)
            flags = {f"args.{name_of(word)}" for word in words if word.startswith("-")}
            typed = f" {' '.join(words)} " in f" {' '.join(self._words)} "
            if typed and self._taken(flags) is None:
                paths |= flags
        kept, removed = self._divided(paths)
        new = filled_args(added, scope)
        env = {name: value for name, value in command.env.items() if f"env.{name}" not in paths}
        env |= filled_env(added, scope)
        program = command.argv[: len(command.argv) - len(kind.arguments(command.argv) or ())]
        written = replace(command, argv=(*program, *kept, *new), env=env)
        change = (
            f"wrote {' '.join(removed)} as {' '.join(new)}"
            if new
            else f"left out {' '.join(removed)}"
        )
        return written, f"{change} for {kind.card.title} {self._new.version}"


def _in_full(word: str, flags: Set[str]) -> str:
    """Write an option that is abbreviated in full."""
    flag, equals, value = word.partition("=")
    begun = [one for one in flags if one.startswith(flag)] if flag.startswith("--") else []
    return f"{begun[0]}{equals}{value}" if len(begun) == 1 else word
