"""``docker-run.sh``: a script that runs the recommended server in a container, published on loopback.

The options are those of a launch by ``--on docker`` but for the network: there the server is on the host's, here one
port of it is published.
"""

from __future__ import annotations

import shlex

from autotune.outputs.export import shell, words
from autotune.outputs.export.container import PORT, Container, container_of
from autotune.outputs.export.text import heading
from autotune.outputs.export.winner import Winner
from autotune.serving.docker_run import DOCKER_RUN, FILES_FOLDER, docker_card


def render(winner: Winner) -> str:
    """The script. Further arguments are passed on to the server; ``PUBLISH`` is where it is reached."""
    container = container_of(winner)
    about = [
        *heading(winner),
        f"It is reached at 127.0.0.1:{PORT} unless PUBLISH says otherwise: PUBLISH=0.0.0.0:{PORT} ./docker-run.sh",
    ]
    return shell.script(about, container.files, _lines(winner, container))


def _lines(winner: Winner, container: Container) -> list[str]:
    # A secret goes in by name, so that it is on no command line.
    inside = {name: value for name, value in container.env.items() if words.reference_in(value)[1] is None}
    secret = {name: value for name, value in container.env.items() if name not in inside}
    card = docker_card()
    options = [*card.options, *card.devices[winner.spec.hardware.vendor]]
    lines = [*shell.started(secret), shlex.join(DOCKER_RUN)]
    lines += [shlex.join(option) for option in options if option[0] != "--network"]
    lines.append(f'--publish "${{PUBLISH:-127.0.0.1:{PORT}}}:{PORT}"')
    lines += [f"--volume {volume}" for volume in _volumes(container)]
    inside = {**container.gpu_choice, **inside}
    inherited = [name for name in card.variables if name not in inside]
    named = [f"HF_HOME={container.models}", *inherited, *(f"{n}={v}" for n, v in inside.items()), *secret]
    lines += [f"--env {shlex.quote(setting)}" for setting in dict.fromkeys(named)]
    if container.files:
        lines.append(f"--workdir {FILES_FOLDER}")
    lines += [] if container.own_entrypoint else ["--entrypoint="]
    return [*lines, shlex.quote(container.image), *shell.arguments(container.argv, {})]


def _volumes(container: Container) -> list[str]:
    caches = [shlex.quote(f"{name}:{folder}") for folder, name in container.caches.items()]
    weights = shlex.quote(container.weights) if container.weights else '"${HF_HOME:-$HOME/.cache/huggingface}"'
    models = f"{weights}:{container.models}"
    mounts = [shlex.quote(f"{path}:{path}:ro") for path in container.mounts]
    files = [f'"$folder"/{shlex.quote(f"{name}:{FILES_FOLDER}/{name}:ro")}' for name in container.files]
    return [*caches, models, *mounts, *files]
