"""The command-line options of one engine version, and the `argparse` parser that they make.

Tables are ``search_spaces/<engine>/options/<version>.json``; ``scripts/snapshot_options.py`` writes them. An
engine with few options has them in its card.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import yaml

from autotune.errors import BadInput, MalformedFile, RefusedCommand
from autotune.space.schema import Option

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNRECOGNIZED = "unrecognized arguments: "
_FILE_OPTION = "--config"
"""Names the YAML file of options that vLLM and SGLang read: its keys stand for long options."""


@dataclass(frozen=True, slots=True)
class OptionTable:
    """All options of one engine version.

    Attributes:
        config_keys: keys of the engine's own config file, nested ones dotted; empty = none, or not known which.
        borrowed: from another version: an option or a value that it lacks is passed on and not refused.
    """

    engine: str
    version: str
    options: tuple[Option, ...]
    config_keys: frozenset[str] = frozenset()
    borrowed: bool = False

    def __hash__(self) -> int:
        # An option's default may be a list.
        return hash((self.engine, self.version))

    @property
    def defaults(self) -> dict[str, Any]:
        """Map every name of every option to its default."""
        return {
            name: False if option.default is None and option.action == "store_true" else option.default
            for option in self.options
            for name in option.names
        }

    @property
    def flags(self) -> frozenset[str]:
        """Return every spelling, with the ``--no-`` ones of boolean options."""
        boolean = (f for o in self.options if o.action == "boolean_optional" for f in o.flags if f.startswith("--"))
        return frozenset([*(f for o in self.options for f in o.flags), *(f"--no-{f[2:]}" for f in boolean)])

    def meant(self, unknown: Sequence[str]) -> str:
        """Ask for the options that were probably meant by unknown ones; empty where none is near."""
        near = [flag for word in unknown for flag in difflib.get_close_matches(word, sorted(self.flags), n=1)]
        return f"; did you mean {', '.join(near)}?" if near else ""

    def lent_to(self, version: str, others: Sequence[OptionTable] = ()) -> OptionTable:
        """Make the table of a version without one, with others' options where this one has none of their spellings.

        No option, no choice of an option and no key of a config file is refused.
        """
        options = list(self.options)
        for table in others:
            known = {flag for option in options for flag in option.flags}
            # In front, so that of one name this table's default counts.
            options = [*(option for option in table.options if known.isdisjoint(option.flags)), *options]
        free = tuple(option.model_copy(update={"choices": ()}) for option in options)
        return OptionTable(self.engine, version, free, borrowed=True)


@lru_cache(maxsize=32)
def read_table(path: Path) -> OptionTable:
    """Read a table; raises ``OSError`` when there is none and ``KeyError`` or ``ValueError`` when it is malformed."""
    document = json.loads(path.read_text(encoding="utf-8"))
    options = tuple(map(Option.model_validate, document["options"]))
    return OptionTable(document["engine"], document["version"], options, frozenset(document.get("config_keys", ())))


def human_int(text: str) -> int:
    """Read ``64k`` as 64000, ``64K`` as 65536 and ``auto`` as -1."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if match:
        return int(float(match[1]) * _SUFFIXES[match[2]])
    return -1 if text.strip().lower() == "auto" else int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted: not JSON ({error})") from error


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


class _Retired(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_args: Any) -> None:
        parser.error(f"unrecognized arguments: {self.option_strings[0]} (no longer supported by this version)")


class OptionParser(argparse.ArgumentParser):
    """Parses an engine's arguments as the engine's own parser of that version does, and refuses with its messages."""

    def __init__(self, table: OptionTable, *, positional: bool, abbreviations: bool) -> None:
        super().__init__(prog=table.engine, add_help=False, allow_abbrev=abbreviations)
        self._table = table
        self.register("action", "boolean_optional", argparse.BooleanOptionalAction)
        self.register("action", "retired", _Retired)
        if positional:
            self.add_argument("model_tag", nargs="?", default=argparse.SUPPRESS)
        for option in table.options:
            keywords: dict[str, Any] = {"dest": option.dest, "default": argparse.SUPPRESS, "action": option.action}
            if option.action == "retired":
                keywords["nargs"] = 0
            elif option.action in {"store", "append"}:
                choices = [choice for choice in option.choices if choice is not None] or None
                keywords |= {"type": _TYPES[option.type], "choices": choices, "nargs": option.nargs}
                if option.const is not None and option.nargs == "?":
                    keywords["const"] = option.const
            self.add_argument(*option.flags, **keywords)

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix(_UNRECOGNIZED).split() if message.startswith(_UNRECOGNIZED) else []
        hint = self._table.meant([word.partition("=")[0] for word in unknown if word.startswith("-")])
        raise RefusedCommand(f"{self._table.engine} {self._table.version}", message, hint)

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the given options, by destination, and ``model_tag``; raises `BadInput` where the engine exits."""
        if self._table.borrowed:
            return vars(self.parse_known_args(list(arguments))[0])
        return vars(self.parse_args(list(arguments)))

    def values(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return every option by every name, defaults for what was not given."""
        values = self._table.defaults
        for option in self._table.options:
            if option.dest in given:
                values.update(dict.fromkeys(option.names, given[option.dest]))
        return values


@lru_cache(maxsize=32)
def parser_of(table: OptionTable, positional: bool, abbreviations: bool) -> OptionParser:
    """Make the parser of a table, once: it takes longer than to parse a hundred commands."""
    return OptionParser(table, positional=positional, abbreviations=abbreviations)


def expand_file(arguments: Sequence[str], files: Mapping[str, str], at: int) -> list[str]:
    """Put the options of a ``--config`` file behind the first arguments, so that the command line wins.

    Args:
        files: content of files that come with the command; others are read from disk.
        at: arguments that stay in front, e.g. a positional model.

    Raises `BadInput` when the file cannot be read or is no mapping.
    """
    words = list(arguments)
    index = next((i for i, word in enumerate(words) if word.partition("=")[0] == _FILE_OPTION), None)
    if index is None:
        return words
    _, equals, name = words[index].partition("=")
    if not equals and index + 1 == len(words):
        raise BadInput(f"error: argument {_FILE_OPTION}: expected one argument")
    document = read_mapping(name if equals else words[index + 1], files)
    del words[index : index + (1 if equals else 2)]
    at = min(at, len(words))
    options: list[str] = []
    for key, value in document.items():
        if isinstance(value, bool):
            options += [f"--{key}"] if value else []
        elif isinstance(value, list):
            options += [f"--{key}", *map(str, value)]
        else:
            options += [f"--{key}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return [*words[:at], *options, *words[at:]]


def read_mapping(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Read the YAML mapping in a file of a command, or on disk; raises `BadInput` when there is none."""
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
