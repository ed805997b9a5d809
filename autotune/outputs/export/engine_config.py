"""The YAML that vLLM and SGLang read with ``--config``: long option names without hyphens in front.

Both turn the file into command-line words before they parse: true becomes a bare flag, a list several
values, all else one value. A JSON argument stays a string, which every version understands.
Sources: https://docs.vllm.ai/en/latest/configuration/serve_args.html,
https://docs.sglang.io/advanced_features/server_arguments.html.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion

from autotune.engines import engine
from autotune.outputs.export import heading, options, shell, words
from autotune.outputs.export.command import model_first
from autotune.outputs.export.winner import Winner
from autotune.space.entry import in_range
from autotune.study.recommendation import Choice
from autotune.study.user_library import library_of


def render(winner: Winner) -> str:
    """The file, with the command that uses it in its first lines."""
    choice = winner.choice
    kind = engine(choice.engine, library_of(winner.spec))
    argv = model_first(choice, kind)
    parts = options.parse(argv)
    program, document = parts.program, parts.options
    start = len(argv) - len(kind.arguments(argv) or ())
    if kind.card.model_flag is None and len(program) > start:
        document = {"model": program[start], **document}
        program = program[:start] + program[start + 1 :]
    name = f"{choice.engine}.yaml"
    about = heading.lines(winner) + usage(choice, [*program, "--config", name, *parts.rest], choice.files)
    about += [f"left out, as its value is a secret: pass {option} on the command line" for option in parts.secrets]
    flags = any(value is True for value in document.values())
    if flags and not _is_in(choice.engine_version, kind.flags_in_file):
        title, since = kind.card.title, kind.flags_in_file.removeprefix(">=")
        about.append(f"{title} before {since} misreads flags in this file: export the shell format instead")
    return heading.comment(about) + options.dump(document)


def _is_in(version: str, versions: str) -> bool:
    """Whether a version is surely in a range; one that cannot be read, as of a replayed table, is only in ``*``."""
    try:
        return in_range(version, versions)
    except InvalidVersion:
        return False


def usage(choice: Choice, command: Sequence[str], files: Iterable[str]) -> list[str]:
    """How the file is used: the command with its environment, and the files that must lie beside it."""
    given = words.settings_without_secrets(choice.env)
    settings = [f"{name}={shell.quoted(value)}" for name, value in given.items()]
    needed = [f"needs {name} beside it, which the shell format writes" for name in files]
    if choice.container:
        needed.append(f"measured in a container of {choice.container[-1]}, which the shell format starts")
    return ["use: " + " ".join([*settings, shlex.join(command)]), *needed]
