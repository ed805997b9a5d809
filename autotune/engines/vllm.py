"""vLLM: the peculiarities of its ``FlexibleArgumentParser``."""

import json
import re
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.base import Json, RefusedCommand

from .command import Command, Words
from .engine import Engine, expand_file, human_int, read_mapping
from .entry import in_range

_NAME = re.compile(r"(?<=--)[^.=]*")


class VLLM(Engine):
    """``vllm serve MODEL …``.

    Its parser takes underscores for hyphens, ``--option.key value`` for a key of a JSON option
    (``+`` appends to a list) and ``-O3`` for the optimisation level (before 0.12: of the
    compilation).
    """

    hyphens = True

    def prepare(self, arguments: Words, version: str, command: Command) -> Words:
        """Expand the shorthands; dotted keys become one JSON value per option."""
        positional = 1 if arguments and not arguments[0].startswith("-") else 0
        expanded = expand_file(arguments, command.files, positional, self._negations(version))
        words: list[str] = []
        for argument in expanded:
            if words and words[-1] == "-O" and argument.isdecimal():
                words[-1] += argument
            else:
                words.append(argument)
        words = [word for argument in words for word in self._rewrite(argument, version)]
        plain = []
        dotted: dict[str, Json] = {}
        rest = iter(words)
        for word in rest:
            option, equals, value = word.partition("=")
            if not (option.startswith("-") and "." in option) or re.fullmatch(r"-\d*\.\d+", option):
                plain.append(word)
                continue
            text = value if equals else next(rest, None)
            if text is None:
                raise RefusedCommand(f"vllm {version}", f"argument {option}: expected one argument")
            _merge(dotted, option, text)
        return [
            *plain,
            *(word for option, value in dotted.items() for word in (option, json.dumps(value))),
        ]

    def _negations(self, version: str) -> Set[str]:
        # Before, false was dropped: argparse_utils.py load_config_file (0.27.0, 0.28.0).
        return self.table(version).flags if in_range(version, ">=0.28") else frozenset()

    def borrowing(self, version: str, words: Words = ()) -> str | None:
        """Warn, too, of what is false in a ``--config`` file and dropped."""
        warnings = [super().borrowing(version, words)]
        file = self.split_file(words)[1] or ""
        for key, value in read_mapping(file, {}).items() if Path(file).is_file() else ():
            name = self.spelled(f"--no-{key}")
            known = value is False and name in self.table(version).flags
            if known and f"--no-{key}" not in self._negations(version):
                warnings.append(f"vLLM {version} ignores {key}: false in {file}; add {name}")
        return "; ".join(filter(None, warnings)) or None

    def with_forced_acceptance(self, command: Command, version: str, length: float) -> Command:
        """Spell the JSON option with dots, too: an added JSON option would replace it."""
        words = []
        rest = iter(command.argv)
        for word in rest:
            option, equals, value = word.partition("=")
            if self.spelled(option) not in ("--speculative-config", "-sc"):
                words.append(word)
                continue
            for key, given in json.loads(value if equals else next(rest)).items():
                words += [f"--speculative-config.{key}", json.dumps(given)]
        return super().with_forced_acceptance(replace(command, argv=tuple(words)), version, length)

    @staticmethod
    def _rewrite(argument: str, version: str) -> list[str]:
        if argument.startswith("--"):
            return [_NAME.sub(lambda match: match[0].replace("_", "-"), argument, count=1)]
        level = re.fullmatch(r"-O=?(\w+)", argument)
        if not level:
            return [argument]
        old = version.startswith("0.11.")
        return ["--compilation-config.level" if old else "--optimization-level", level[1]]


def _merge(target: dict[str, Json], option: str, text: str) -> None:
    name, *keys = option.removesuffix("+").split(".")
    value: Any = text.split(",") if option.endswith("+") else _value(text)
    level = target.setdefault(name, {})
    for key in keys[:-1]:
        if not isinstance(level.get(key), dict):
            level[key] = {}
        level = level[key]
    if option.endswith("+") and isinstance(level.get(keys[-1]), list):
        value = [*level[keys[-1]], *value]
    level[keys[-1]] = value


def _value(text: str) -> Any:
    for convert in (json.loads, human_int):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
