"""Write the engines' own config files.

vLLM and SGLang read YAML with ``--config``: long option names without hyphens in front. Both turn
the file into command-line words before they parse: true becomes a bare flag, a list several values,
all else one value. A JSON argument stays a string, which every version understands.
``trtllm-serve`` reads the engine's own file; options of the command line that are fields of it go
into it, and where both name one, the file's value stands, as in the engine. What concerns the
server alone (host, port, parsers) stays on the command line. Sources:
https://docs.vllm.ai/en/latest/configuration/serve_args.html,
https://docs.sglang.io/advanced_features/server_arguments.html,
https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import yaml

from autotune.base import Json, beside, redact
from autotune.engines.entry import in_range

from .shell import quoted
from .winner import (
    Winner,
    about,
    asked_for,
    comment,
    groups,
    settings_without_secrets,
)


class Parts(NamedTuple):
    """A command line's parts: the program's words, and options (True for a flag, a list for several
    values).

    The rest are words that a config file cannot hold (short or repeated options); secrets are
    options with one.
    """

    program: list[str]
    options: Json
    rest: list[str]
    secrets: list[str]


def _parse(argv: list[str]) -> Parts:
    """Split a command line: program and positional words first, then options, in autotune's own
    order."""
    program, *split = groups(argv)
    parts = Parts(program, {}, [], [])
    names = [group[0].partition("=")[0] for group in split]
    for name, group in zip(names, split, strict=True):
        _, equals, first = group[0].partition("=")
        values = [first, *group[1:]] if equals else group[1:]
        if redact.argv(group) != group or asked_for(group, {}):
            parts.secrets.append(name)
        elif not name.startswith("--") or names.count(name) > 1:
            parts.rest.extend(group)
        else:
            scalars = [_scalar(word) for word in values]
            parts.options[name[2:]] = scalars if len(scalars) > 1 else (scalars or [True])[0]
    return parts


def _scalar(word: str) -> Any:
    """Return a number where writing it and reading it back gives the same word, else the word."""
    value = yaml.safe_load(word) if re.fullmatch(r"-?\d+(?:\.\d+)?", word) else word
    return value if str(value) == word else word


def render_config(winner: Winner) -> str:
    """Return the file's text; its first lines hold the command that uses it."""
    choice = winner.choice
    kind = winner.engine
    argv = winner.model_first()
    parts = _parse(argv)
    program = parts.program
    document = parts.options
    start = len(argv) - len(kind.arguments(argv) or ())
    if kind.card.model_flag is None and len(program) > start:
        document = {"model": program.pop(start), **document}
    notes = []
    flags = any(value is True for value in document.values())
    if flags and not in_range(winner.parser_version, kind.flags_in_file):
        since = kind.flags_in_file.removeprefix(">=")
        notes.append(
            f"{kind.card.title} before {since} misreads flags in this file: export the shell "
            "format instead"
        )
    command = [*program, "--config", f"{choice.engine}.yaml", *parts.rest]
    return _file(winner, document, command, choice.files, parts.secrets, notes)


def _file(
    winner: Winner,
    document: Json,
    command: Sequence[str],
    files: Iterable[str],
    secrets: Iterable[str],
    notes: Iterable[str] = (),
) -> str:
    """Return YAML in the order of the command line; its first lines show its use with files and
    secrets."""
    choice = winner.choice
    env = settings_without_secrets(choice.env)
    settings = [f"{name}={quoted(value)}" for name, value in env.items()]
    use = " ".join([*settings, shlex.join(command)])
    head = about("heading", winner)
    head += about("config_file", winner, use=use, files=files, secrets=secrets)
    # No allow_unicode: PyYAML would write line breaks such as U+0085 that it reads back as a space.
    return comment([*head, *notes]) + yaml.safe_dump(document, sort_keys=False, width=2**20)


def render_trtllm(winner: Winner) -> str:
    """Return the file's text; its first lines hold the command that uses it."""
    choice = winner.choice
    parts = _parse(winner.model_first())
    # Known are the options that name the file, and those that are fields of it.
    known = yaml.safe_load(beside(__file__, "trtllm_config.yaml"))
    named = [name for name in known["config_options"] if name in parts.options]
    own = [str(parts.options.pop(name)) for name in named]
    # Begin with the config file that the command line names, where autotune wrote it.
    content = next((choice.files[name] for name in own if name in choice.files), "")
    document: Json = yaml.safe_load(content) or {}
    remaining = []
    for name, value in parts.options.items():
        field = known["fields"].get(name)
        if field is None:
            values = value if isinstance(value, list) else [] if value is True else [value]
            remaining += [f"--{name}", *map(str, values)]
        else:
            *parents, last = field.split(".")
            nested = document
            for parent in parents:
                nested = nested.setdefault(parent, {})
            # The file wins over the command line.
            nested.setdefault(last, value)
    flag = (named or known["config_options"])[0]
    command = [*parts.program, f"--{flag}", "trtllm.yaml", *remaining, *parts.rest]
    needed = [name for name in choice.files if name not in own]
    return _file(winner, document, command, needed, parts.secrets)
