"""The YAML that vLLM and SGLang read with ``--config``: long option names without hyphens in front.

Both turn the file into command-line words before they parse: true becomes a bare flag, a list several
values, all else one value. A JSON argument stays a string, which every version understands.
Sources: https://docs.vllm.ai/en/latest/configuration/serve_args.html,
https://docs.sglang.io/advanced_features/server_arguments.html.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from autotune.engines import engine
from autotune.outputs.export import heading, options, shell, words
from autotune.outputs.export.command import model_first
from autotune.outputs.export.winner import Winner
from autotune.study.recommendation import Choice
from autotune.study.user_library import library_of

_SGLANG_FLAGS_FIXED = Version("0.5.8")  # https://github.com/sgl-project/sglang/pull/16638


def render(winner: Winner) -> str:
    """The file, with the command that uses it in its first lines."""
    choice = winner.choice
    kind = engine(choice.engine, library_of(winner.spec))
    argv = model_first(choice, kind)
    parts = options.parse(argv)
    program, document = parts.program, parts.options
    start = len(argv) - len(kind.arguments(argv) or ())
    if choice.engine == "vllm" and len(program) > start:
        document = {"model": program[start], **document}
        program = program[:start] + program[start + 1 :]
    name = "vllm.yaml" if choice.engine == "vllm" else "sglang.yaml"
    about = heading.lines(winner) + usage(choice, [*program, "--config", name, *parts.rest], choice.files)
    about += [f"left out, as its value is a secret: pass {option} on the command line" for option in parts.secrets]
    flags = any(value is True for value in document.values())
    if choice.engine == "sglang" and flags and _is_before(choice.engine_version, _SGLANG_FLAGS_FIXED):
        about.append("SGLang before 0.5.8 misreads flags in this file: export the shell format instead")
    return heading.comment(about) + options.dump(document)


def _is_before(version: str, other: Version) -> bool:
    """Whether a version is an earlier one; one that cannot be read, as of a replayed table, may be."""
    try:
        return Version(version) < other
    except InvalidVersion:
        return True


def usage(choice: Choice, command: Sequence[str], files: Iterable[str]) -> list[str]:
    """How the file is used: the command with its environment, and the files that must lie beside it."""
    given = words.settings_without_secrets(choice.env)
    settings = [f"{name}={shell.quoted(value)}" for name, value in given.items()]
    needed = [f"needs {name} beside it, which the shell format writes" for name in files]
    if choice.container:
        needed.append(f"measured in a container of {choice.container[-1]}, which the shell format starts")
    return ["use: " + " ".join([*settings, shlex.join(command)]), *needed]
