"""Shell scripts: ``serve.sh`` starts the recommended server exactly as measured, ``docker-run.sh``
in a container.

The container's options are those of a launch by ``--on docker`` but for the network: there the
server is on the host's, here one port of it is published, on loopback.
"""

import shlex
from collections.abc import Sequence

from autotune.base import StringMap, redact
from autotune.engines.command import referenced, written
from autotune.servers.docker_run import DOCKER_RUN, FILES_FOLDER, docker_card

from .winner import (
    Winner,
    about,
    comment,
    container_of,
    image_notes,
    required,
    settings_without_secrets,
    without_secrets,
)

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def render(winner: Winner) -> str:
    """Return the script. It passes further arguments on, so that ``serve.sh --host 0.0.0.0``
    overrides the address."""
    choice = winner.choice
    if choice.stand_in:
        row = (
            f"the replayed table has no start command of {choice.engine}; its row is: "
            f"{shlex.join(redact.argv(choice.argv)[1:])}"
        )
        lead = comment(about("heading", winner))
        return f"#!/usr/bin/env bash\n{lead}printf '%s\\n' {shlex.quote(row)} >&2\nexit 1\n"
    # A command that does not say where to listen must not listen on every interface.
    command, port = winner.fleet.apart_from_port(winner.command.on_loopback())
    env = choice.env
    lines = []
    folder_of = choice.files
    if choice.container:
        # A container's words set its variables; only those that they name without a value come from
        # outside. The files lie in its working folder.
        env = {name: value for name, value in env.items() if referenced(value)}
        lines = _arguments(choice.container, choice.files)
        folder_of = {}
    lines += [*_arguments(command.argv, folder_of), *port]
    host = winner.text_of("host") or _LOOPBACK[0]
    notes = about("shell", winner, host=host, loopback=_LOOPBACK)
    return _script(winner, notes, env, lines)


def render_docker(winner: Winner) -> str:
    """Return the script. It passes further arguments to the server; ``PUBLISH`` is the address on
    the host."""
    container = container_of(winner)
    fleet = winner.fleet
    card = docker_card()
    # A secret goes in by name, so that it is on no command line.
    inside = container.plain_env
    secret = {name: value for name, value in container.env.items() if name not in inside}
    inside = {**fleet.gpu_choice(container.gpu_choice), **inside}
    weights = '"${HF_HOME:-$HOME/.cache/huggingface}"'
    if container.weights:
        weights = shlex.quote(container.weights)
    volumes = [
        *(shlex.quote(f"{name}:{folder}") for folder, name in container.caches.items()),
        f"{weights}:{card.models}",
        *(shlex.quote(f"{path}:{path}:ro") for path in container.mounts),
        *(
            f'"$folder"/{shlex.quote(f"{name}:{FILES_FOLDER}/{name}:ro")}'
            for name in container.files
        ),
    ]
    settings = [
        f"HF_HOME={card.models}",
        *(name for name in card.variables if name not in inside),
        *(f"{name}={value}" for name, value in inside.items()),
        *secret,
    ]
    options = [*card.options, *card.devices[container.vendor]]
    lines = [
        shlex.join(DOCKER_RUN),
        *(shlex.join(option) for option in options if option[0] != "--network"),
        f"--publish {fleet.published}",
        *(f"--volume {volume}" for volume in volumes),
        *(f"--env {shlex.quote(setting)}" for setting in dict.fromkeys(settings)),
    ]
    if container.files:
        lines.append(f"--workdir {FILES_FOLDER}")
    if not container.own_entrypoint:
        lines.append("--entrypoint=")
    lines += [shlex.quote(container.image), *_arguments(container.argv, {})]
    notes = [*image_notes(winner), *about("docker", winner)]
    return _script(winner, notes, secret, lines)


def _script(winner: Winner, notes: list[str], env: StringMap, lines: Sequence[str]) -> str:
    """Return a script that writes the server's files and runs the command of quoted `lines` with
    variables; it asks for secrets."""
    settings = [f"{name}={quoted(value)}" for name, value in settings_without_secrets(env).items()]
    notes = [*about("heading", winner), *notes, *about("several_servers", winner)]
    script = ["#!/usr/bin/env bash", *comment(notes).splitlines(), "set -euo pipefail"]
    if files := winner.choice.files:
        script.append(
            'folder="$(mktemp -d "${TMPDIR:-/tmp}/autotune-serve.XXXXXX")"  # not removed: the '
            "server reads it"
        )
        script += writing(files, '"$folder"/')
    script += winner.fleet.script(settings, [*lines, '"$@"'])
    return "\n".join([*script, ""])


def writing(files: StringMap, folder: str = "") -> list[str]:
    """Return POSIX shell commands that write files into a folder (quoted, with a slash at the
    end)."""
    lines = []
    for name, content in files.items():
        place = folder + shlex.quote(name)
        if "/" in name:
            lines.append(f'mkdir -p "$(dirname {place})"')
        lines.append(f"printf '%s' {shlex.quote(content)} > {place}")
    return lines


def _arguments(argv: Sequence[str], files: StringMap) -> list[str]:
    """Return quoted words; an option and its values share a line."""
    lines: list[str] = []
    for argument in without_secrets(argv):
        word = _word(argument, files)
        is_option = argument.startswith("-") and not (argument == "-m" and len(lines) == 1)
        if is_option or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _word(argument: str, files: StringMap) -> str:
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
    """Quote a word for the shell, which stops with a message if a variable in it is not set."""
    return written(word, shlex.quote, lambda variable: f'"{required(variable)}"')
