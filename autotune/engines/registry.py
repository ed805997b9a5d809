"""Engines: their base, and the registry of the installed ones.

An engine is a card (``search_spaces/<engine>/engine.yaml``, or ``<engine>.yaml`` beside the class),
tables of its options (``options/`` beside that, or in the card) and a class that knows what is
peculiar to its command line, registered under the entry-point group ``autotune.engines``.
``examples/llama_server`` is a whole one, with the tests that tell whether it fits.
"""

from __future__ import annotations

import re
import shlex
from functools import cache

from autotune.base import BadInput, UnknownName

from .command import Command, Words, from_block
from .engine import Engine as Engine
from .engine import ParsedCommand as ParsedCommand
from .library import Library, canonical, engine_points

_packaged = cache(Library)
_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def names() -> tuple[str, ...]:
    """List the installed engines, in alphabetical order."""
    return tuple(sorted(engine_points()))


def engine(name: str, library: Library | None = None) -> Engine:
    """Load the engine of that name or alias, from the packaged library by default; raises
    `UnknownName`."""
    return _load(canonical(name), library or _packaged())


@cache
def _load(name: str, library: Library) -> Engine:
    point = engine_points().get(name)
    if not point:
        raise UnknownName("engine", name, names())
    if name not in library.engines:
        raise BadInput(
            f"the engine {name!r} has no card: put {name}.yaml next to the module {point.module}"
        )
    card = library.engine(name)
    try:
        made: Engine = point.load()(card, library.roots)
    except Exception as error:
        # Somebody else's code, which may fail in any way.
        why = f"{type(error).__name__}: {error}"
        raise BadInput(
            f"the engine {name!r} cannot be loaded ({why}); repair or uninstall its package"
        ) from error
    return made


def recognise(argv: Words, library: Library | None = None) -> Engine:
    """Find the engine whose program a command line starts; raises `BadInput` with the known
    programs."""
    known = (library or _packaged()).engines
    engines = []
    broken = []
    for name in filter(known.__contains__, names()):
        try:
            engines.append(engine(name, library))
        except BadInput as error:
            broken.append(str(error))
    for candidate in engines:
        if candidate.arguments(argv) is not None:
            return candidate
    understood = ", ".join(f"'{' '.join(candidate.card.program)} …'" for candidate in engines)
    shown = " ".join(argv[:3]) or "nothing"
    raise BadInput(
        ". ".join([f"not an engine's command line: {shown!r}. Known: {understood}", *broken])
    )


def split_command(text: str) -> Command:
    """Split a command as a shell does, settings in front, or the block that `Command.shell` writes;
    raises `BadInput` for open quotes, or no program."""
    return from_block(text.replace("\\\n", " "), _split)


def _split(text: str) -> Command:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"malformed command line ({error}): {text}") from error
    return command_of(words)


def command_of(words: Words) -> Command:
    """Make a command of split words, with ``NAME=value`` settings in front."""
    env, rest = settings_in_front(words)
    if not rest:
        raise BadInput(f"the command line names no program: {' '.join(words)!r}")
    return Command(tuple(rest), env)


def settings_in_front(words: Words) -> tuple[dict[str, str], list[str]]:
    """Split words into the leading ``NAME=value`` settings and the rest; ``env`` and ``export`` are
    dropped."""
    env: dict[str, str] = {}
    rest = list(words)
    while rest:
        match = _SETTING.fullmatch(rest[0])
        if match:
            env[match[1]] = match[2]
        elif rest[0] not in {"env", "export"}:
            break
        rest.pop(0)
    return env, rest
