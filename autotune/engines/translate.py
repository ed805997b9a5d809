"""Translate renamed options into the names of the engine's version, older or newer.

The names and the versions in which each works are the ``renamed`` section of the engine's card. A
name that the version takes is left alone; one that it would refuse, or ignore without a word, is
translated in either direction.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune.base.notify import Notify

from .command import Command, Words
from .engine import Engine, flag_of
from .entry import in_range
from .library import Library
from .registry import command_of, recognise, settings_in_front


@dataclass(frozen=True, slots=True)
class Name:
    """A name that works in a version, and how it names the values of another name."""

    name: str
    is_flag: bool
    values: Mapping[str, str] = field(default_factory=dict)


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
        self._engine, self._version = engine, version
        self._renamed = engine.card.renamed
        self._flags = engine.table(version).flags
        self.notes: list[str] = []

    def run(self, words: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        for name in [entry.old for entry in self._renamed if entry.kind == "environment"]:
            if name in env and (target := self._target(name, is_flag=False)) is not None:
                value = env.pop(name)
                if target.is_flag and not value:
                    known = f"{self._engine.card.title} {self._version}"
                    self.notes.append(
                        f"removed {name}, which is empty and would be {target.name} for {known}"
                    )
                    continue
                if target.is_flag and target.name not in {
                    self._engine.spelled(flag_of(word)) for word in words
                }:
                    words += [target.name, target.values.get(value, value)]
                self._note(name, target.name)
        return self._flagged(words, env), env

    def _flagged(self, words: Words, env: dict[str, str]) -> list[str]:
        out: list[str] = []
        rest = iter(words)
        for word in rest:
            spelling, equals, value = word.partition("=")
            name = self._engine.spelled(spelling)
            target = (
                self._target(name, is_flag=True)
                if name.startswith("--") and name not in self._flags
                else None
            )
            given = None if target is None else value if equals else next(rest, None)
            if target is None or given is None:
                out.append(word)
                continue
            self._note(spelling, target.name)
            given = target.values.get(given, given)
            if not target.is_flag:
                env.setdefault(target.name, given)
            else:
                out += [f"{target.name}={given}"] if equals else [target.name, given]
        return out

    def _note(self, given: str, target: str) -> None:
        self.notes.append(
            f"translated {given} to {target} for {self._engine.card.title} {self._version}"
        )

    def _target(self, name: str, *, is_flag: bool) -> Name | None:
        """Find the nearest working name over any renamings; None if the given one works, or none
        does."""
        reached = [Name(name, is_flag)]
        for here in reached:
            ranges = [e.old_versions for e in self._renamed if e.old == here.name]
            ranges += [e.new_versions for e in self._renamed if e.new == here.name]
            held = any(in_range(self._version, versions) for versions in ranges)
            if held and (not here.is_flag or here.name in self._flags):
                return None if here is reached[0] else here
            reached += [
                n for n in self._neighbours(here) if n.name not in {other.name for other in reached}
            ]
        return None

    def _neighbours(self, here: Name) -> Iterator[Name]:
        for entry in self._renamed:
            if entry.old == here.name:
                name, is_flag, values = entry.new, True, entry.values
            elif entry.new == here.name:
                name, is_flag, values = (
                    entry.old,
                    entry.kind == "flag",
                    {new: old for old, new in entry.values.items()},
                )
            else:
                continue
            yield Name(
                name,
                is_flag,
                {**values, **{old: values.get(new, new) for old, new in here.values.items()}},
            )
