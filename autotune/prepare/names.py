"""Find the knobs and engine versions that people mean by the names they type.

A knob answers to its own name and to the engines' options that set it, in any spelling of the engine's parser
(``max-num-seqs``, ``tp``). Which options those are is read from the engine's card, from ``emit`` and ``read``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

from autotune.engines import Engine
from autotune.engines import engine as load
from autotune.errors import BadInput, UnknownName
from autotune.space.library import Library
from autotune.space.schema import Knob


@dataclass(frozen=True, slots=True)
class _Alias:
    """An option's name, and the knob that it sets.

    Attributes:
        rank: 0: the option takes the knob's value; 1: it is always written with the knob; 2: under a condition, or it
            is a key of a longer name; 3: the knob's value depends on it.
    """

    name: str
    knob: str
    rank: int


def knob_named(text: str, engines: Sequence[Engine], library: Library) -> str:
    """The knob that a name means: its own, or an option that takes the knob's value.

    Args:
        engines: those that are searched; the names of others count where these know nothing of the kind.

    Raises:
        UnknownName: nothing is called so, or several knobs are; it names the nearest.
        BadInput: the option takes another value than the knob.
    """
    knobs = {name for kind in engines for name in kind.card.knobs}
    aliases = [_Alias(knob, knob, 0) for knob in knobs]
    aliases += [alias for kind in engines for alias in _aliases(kind)]
    meant = _meant(_plain(text), aliases)
    if not meant:
        others = library.engines.keys() - {kind.name for kind in engines}
        for name in sorted(others):
            # What the package of an engine that is not searched lacks is no matter here.
            with suppress(BadInput):
                aliases += [alias for alias in _aliases(load(name, library)) if alias.knob in knobs]
        meant = _meant(_plain(text), aliases)
    if not meant:
        near = difflib.get_close_matches(_plain(text), {a.name for a in aliases if len(a.name) > 5}, n=1)
        raise UnknownName("knob", text, knobs, meant=near)
    rank = min(alias.rank for alias in meant)
    found = sorted({alias.knob for alias in meant if alias.rank == rank})
    if len(found) > 1:
        raise UnknownName("knob", text, knobs, meant=found)
    if rank > 0:
        help_ = next(kind.card.knobs[found[0]].help for kind in engines if found[0] in kind.card.knobs)
        raise BadInput(f"--set {text}: did you mean {found[0]!r} ({help_})?")
    return found[0]


def _meant(name: str, aliases: Sequence[_Alias]) -> list[_Alias]:
    """The aliases of this name, and where none takes the knob's value those that begin with its words."""
    meant = [alias for alias in aliases if alias.name == name]
    if not any(alias.rank == 0 for alias in meant):
        # Much as the engines' own parsers take the beginning of an option.
        meant += [alias for alias in aliases if alias.name.startswith(f"{name}_")]
    return meant


def _aliases(engine: Engine) -> Iterator[_Alias]:
    """The names of an engine's options that set a knob, in all spellings of its newest version's parser."""
    spelled: dict[str, set[str]] = {}
    for option in engine.table(engine.version()).options:
        spellings = {*option.names, *map(_plain, option.flags)}
        spelled.update(dict.fromkeys(spellings, spellings))
    for knob_name, knob in engine.card.knobs.items():
        for text, rank in _options_of(knob_name, knob):
            name = _plain(text)
            for spelling in (name, *spelled.get(name, ())):
                yield _Alias(spelling, knob_name, rank)
            if "." in name:
                yield _Alias(name.rpartition(".")[2], knob_name, 2)


def _options_of(name: str, knob: Knob) -> Iterator[tuple[str, int]]:
    """The options that set one knob, each with its rank as in `_Alias`."""
    value = f"{{{name}}}"
    for addition in knob.emit:
        flags = [pair for pair in zip_longest(addition.args, addition.args[1:]) if pair[0].startswith("--")]
        for option, setting in [*flags, *addition.config.items()]:
            yield option, 2 if addition.when != "True" else 0 if setting == value else 1
        for variable in addition.env:
            yield variable, 2
    for reading in knob.read:
        options = re.findall(r"\bargs\.(\w+)", reading.value)
        for option in options:
            yield option, 0 if reading.value == f"args.{option}" else 3


def _plain(option: str) -> str:
    """An option's name without its dashes, hyphens as underscores, in lower case."""
    return option.strip().lstrip("-").replace("-", "_").lower()


def engine_and_version(text: str, library: Library) -> tuple[str, str | None]:
    """Split ``--engine NAME`` or ``NAME==VERSION`` into the engine's name and what was typed of a version."""
    name, equals, version = (part.strip() for part in text.partition("=="))
    if (equals and not version) or re.search(r"[<>=~!]", name):
        raise BadInput(f"--engine {text!r}: write engine==version, e.g. vllm==0.32.0")
    return library.engine(name).engine, version or None
