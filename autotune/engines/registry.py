"""Engines: their base, and the registry of the installed ones.

An engine is a card (``search_spaces/<engine>/engine.yaml``, or ``<engine>.yaml`` beside the class),
tables of its options (``options/`` beside that, or in the card) and a class that knows what is
peculiar to its command line, registered under the entry-point group ``autotune.engines``.
``examples/llama_server`` is a whole one, with the tests that tell whether it fits.
"""

from contextlib import suppress
from functools import cache

from autotune.base import BadInput, Strings, UnknownName

from .command import Command, Words
from .engine import Engine as Engine
from .engine import ParsedCommand as ParsedCommand
from .launchers import Typed, read
from .launchers import settings_in_front as settings_in_front
from .library import Library, canonical, engine_points
from .shell import Variables

_packaged = cache(Library)


def names() -> Strings:
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
    raise BadInput(
        ". ".join(
            [
                f"not an engine's command line: {' '.join(argv[:3]) or 'nothing'!r}. Known: "
                f"{understood}",
                *broken,
            ]
        )
    )


def split_command(text: str) -> Command:
    """Split a command as a shell does, settings in front, or the block that `Command.shell` writes;
    raises `BadInput` for what no shell reads, or no program."""
    return typed_command(text, None).command


def typed_command(text: str, variables: Variables, library: Library | None = None) -> Typed:
    """Read the text of a typed command or script, or of a script's file, with the variables of its
    shell; raises `BadInput` for none or several servers, and for a value that depends on a run."""

    def serves(words: Words) -> bool:
        with suppress(BadInput):
            return bool(recognise(words, library))
        return False

    return read(text, variables, serves)


def command_of(words: Words) -> Command:
    """Make a command of split words, with ``NAME=value`` settings in front."""
    env, rest = settings_in_front(words)
    if not rest:
        raise BadInput(f"the command line names no program: {' '.join(words)!r}")
    return Command(tuple(rest), env)
