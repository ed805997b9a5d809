"""``serve.sh``: a script that starts the recommended server exactly as it was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from autotune import redact
from autotune.outputs.export import words
from autotune.outputs.export.text import comment, heading
from autotune.outputs.export.winner import Winner
from autotune.study.recommendation import Choice
from autotune.trial import referenced

_LOOPBACK = ("--host", "127.0.0.1")


def render(winner: Winner) -> str:
    """The script. Further arguments are passed on, so that ``serve.sh --host 0.0.0.0`` overrides."""
    choice = winner.choice
    if choice.stand_in:
        return _no_command(winner)
    about = [
        *heading(winner),
        "It listens on loopback unless the arguments say otherwise: ./serve.sh --host 0.0.0.0",
    ]
    return script(about, choice.files, _start(choice))


def script(about: list[str], files: Mapping[str, str], lines: Sequence[str]) -> str:
    """A script that says what it is worth, writes the server's files and runs one command.

    Args:
        lines: the command, quoted; the script's own arguments follow.
    """
    return "".join(
        [
            "#!/usr/bin/env bash\n",
            comment(about),
            "set -euo pipefail\n",
            _write_files(files),
            " \\\n  ".join([*lines, '"$@"']) + "\n",
        ]
    )


def _no_command(winner: Winner) -> str:
    """A script that says what the table says, and fails: how such a server is started nobody has told."""
    said = f"the replayed table does not tell how {winner.choice.engine} is started; its row says: "
    row = shlex.quote(said + shlex.join(redact.argv(winner.choice.argv)[1:]))
    return f"#!/usr/bin/env bash\n{comment(heading(winner))}printf '%s\\n' {row} >&2\nexit 1\n"


def _write_files(files: Mapping[str, str]) -> str:
    if not files:
        return ""
    made = 'folder="$(mktemp -d "${TMPDIR:-/tmp}/autotune-serve.XXXXXX")"  # read by the server, so it stays'
    return "\n".join([made, *writing(files, '"$folder"/')]) + "\n"


def writing(files: Mapping[str, str], folder: str = "") -> list[str]:
    """Commands of a POSIX shell that write files below a folder, which is given quoted and with its slash."""
    lines: list[str] = []
    for name, content in files.items():
        place = folder + shlex.quote(name)
        if "/" in name:
            lines.append(f'mkdir -p "$(dirname {place})"')
        lines.append(f"printf '%s' {shlex.quote(content)} > {place}")
    return lines


def _start(choice: Choice) -> list[str]:
    """``exec``, so that signals reach the server; ``env``, so that any variable name will do."""
    # A container's words set its variables; only those that they name without a value come from outside.
    outside = {n: value for n, value in choice.env.items() if not choice.container or referenced(value)}
    # In a container the files lie in the working folder.
    lines = arguments(choice.container, choice.files) if choice.container else []
    lines += arguments(choice.engine_argv, {} if choice.container else choice.files)
    # vLLM listens on every interface unless told otherwise.
    if not any(argument.split("=")[0] == _LOOPBACK[0] for argument in choice.engine_argv):
        lines.append(" ".join(_LOOPBACK))
    return [*started(outside), *lines]


def started(env: Mapping[str, str]) -> list[str]:
    """How a command begins that replaces the script and gets these variables; secrets are asked for."""
    settings = [f"{name}={quoted(value)}" for name, value in words.settings_without_secrets(env).items()]
    return ["exec env", *settings] if settings else ["exec"]


def arguments(argv: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """Quoted words; an option and its values share a line."""
    lines: list[str] = []
    for argument in words.without_secrets(argv):
        word = _word(argument, files)
        is_option = argument.startswith("-") and not (argument == "-m" and len(lines) == 1)
        if is_option or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _word(argument: str, files: Mapping[str, str]) -> str:
    option, equals, value = argument.partition("=")
    mounted = argument.removeprefix("./").partition(":")[0]
    if argument.startswith(f"./{mounted}:") and mounted in files:
        return f'"$folder"/{shlex.quote(argument[2:])}'
    if argument in files:
        return f'"$folder"/{shlex.quote(argument)}'
    if equals and value in files:
        return f'{shlex.quote(option)}="$folder"/{shlex.quote(value)}'
    return quoted(argument)


def quoted(word: str) -> str:
    """A word for the shell; the script stops with a message where a variable that it refers to is not set."""
    prefix, variable = words.reference_in(word)
    if variable is None:
        return shlex.quote(word)
    asked = f'"${{{variable}:?set {variable} to the secret that this command needs}}"'
    return f"{shlex.quote(prefix)}{asked}" if prefix else asked
