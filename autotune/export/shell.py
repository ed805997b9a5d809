"""``serve.sh``: a script that starts the recommended server exactly as it was measured."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from autotune import redact
from autotune.export import heading
from autotune.recommendation import Choice, Recommendation
from autotune.trial import referenced

_LOOPBACK = ("--host", "127.0.0.1")


def render(recommendation: Recommendation, choice: Choice) -> str:
    """The script. Further arguments are passed on, so that ``serve.sh --host 0.0.0.0`` overrides."""
    if choice.stand_in:
        return _no_command(recommendation, choice)
    about = [
        *heading.lines(recommendation, choice),
        "It listens on loopback unless the arguments say otherwise: ./serve.sh --host 0.0.0.0",
    ]
    return "".join(
        [
            "#!/usr/bin/env bash\n",
            heading.comment(about),
            "set -euo pipefail\n",
            _write_files(choice.files),
            _start(choice),
        ]
    )


def _no_command(recommendation: Recommendation, choice: Choice) -> str:
    """A script that says what the table says, and fails: how such a server is started nobody has told."""
    said = f"the replayed table does not tell how {choice.engine} is started; its row says: "
    words = shlex.quote(said + shlex.join(redact.argv(choice.argv)[1:]))
    return (
        f"#!/usr/bin/env bash\n{heading.comment(heading.lines(recommendation, choice))}"
        f"printf '%s\\n' {words} >&2\nexit 1\n"
    )


def _write_files(files: Mapping[str, str]) -> str:
    if not files:
        return ""
    lines = ['folder="$(mktemp -d "${TMPDIR:-/tmp}/autotune-serve.XXXXXX")"  # read by the server, so it stays']
    for name, content in files.items():
        place = f'"$folder"/{shlex.quote(name)}'
        if "/" in name:
            lines.append(f'mkdir -p "$(dirname {place})"')
        lines.append(f"printf '%s' {shlex.quote(content)} > {place}")
    return "\n".join(lines) + "\n"


def _start(choice: Choice) -> str:
    """``exec``, so that signals reach the server; ``env``, so that any variable name will do."""
    # A container's words set its variables; only those that they name without a value come from outside.
    outside = {n: value for n, value in choice.env.items() if not choice.container or referenced(value)}
    words = [_setting(name, value) for name, value in outside.items()]
    # In a container the files lie in the working folder.
    words += _arguments(choice.container, choice.files) if choice.container else []
    words += _arguments(choice.engine_argv, {} if choice.container else choice.files)
    # vLLM listens on every interface unless told otherwise.
    if not any(argument.split("=")[0] == _LOOPBACK[0] for argument in choice.engine_argv):
        words.append(" ".join(_LOOPBACK))
    command = ["exec env" if outside else "exec", *words, '"$@"']
    return " \\\n  ".join(command) + "\n"


def _setting(name: str, value: str) -> str:
    if referenced(value):
        return f"{name}={_ask(referenced(value) or name)}"
    if redact.is_secret_name(name) or redact.is_secret_value(value):
        return f"{name}={_ask(name)}"
    return shlex.quote(f"{name}={value}")


def _arguments(argv: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """Quoted words; an option and its values share a line."""
    masked = redact.argv(argv)
    lines: list[str] = []
    option = ""
    for argument, shown in zip(argv, masked, strict=True):
        if argument.startswith("-"):
            option = argument.partition("=")[0]
        word = _word(argument, files) if argument == shown else _secret_word(argument, option)
        is_option = argument.startswith("-") and not (argument == "-m" and len(lines) == 1)
        if is_option or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _word(argument: str, files: Mapping[str, str]) -> str:
    option, equals, value = argument.partition("=")
    mounted = argument.removeprefix("./").partition(":")[0]
    source = referenced(value if equals else argument)
    if source is not None:
        return f"{shlex.quote(option)}={_ask(source)}" if equals else _ask(source)
    if argument.startswith(f"./{mounted}:") and mounted in files:
        return f'"$folder"/{shlex.quote(argument[2:])}'
    if argument in files:
        return f'"$folder"/{shlex.quote(argument)}'
    if equals and value in files:
        return f'{shlex.quote(option)}="$folder"/{shlex.quote(value)}'
    return shlex.quote(argument)


def _secret_word(argument: str, option: str) -> str:
    asked = _ask(option)
    return f"{shlex.quote(option)}={asked}" if argument.startswith("-") else asked


def _ask(name: str) -> str:
    """A reference to a variable that the caller must set; the script stops with a message where it is not."""
    variable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or "SECRET"
    variable = variable if not variable[0].isdigit() else f"_{variable}"
    return f'"${{{variable}:?set {variable} to the secret that this command needs}}"'
