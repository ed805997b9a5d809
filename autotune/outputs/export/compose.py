"""``compose.yaml``: the recommended server as a service of ``docker compose up``, published on loopback.

Keys: https://docs.docker.com/reference/compose-file/ (services, configs with content, GPU reservations, interpolation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.outputs.export import words
from autotune.outputs.export.container import PORT, Container, chooses_gpus, container_of, start_limit_s
from autotune.outputs.export.text import comment, dump_yaml, heading
from autotune.outputs.export.winner import Winner
from autotune.serving.docker_run import FILES_FOLDER, docker_card

# Not by urllib, which would ask the proxy that Docker names in every container's environment where one is configured.
_ASK = f"import sys; from http.client import HTTPConnection; asked = HTTPConnection('127.0.0.1', {PORT}, timeout=20); "
_ASK += "asked.request('GET', sys.argv[1]); sys.exit(asked.getresponse().status != 200)"


def render(winner: Winner) -> str:
    """The file."""
    container = container_of(winner)
    limit_s, said = start_limit_s(winner)
    document: dict[str, Any] = {"name": container.name, "services": {"server": _service(winner, container, limit_s)}}
    if container.files:
        document["configs"] = {
            _config(i): {"content": _literal(text)} for i, text in enumerate(container.files.values(), 1)
        }
    document["volumes"] = {name: {"name": name} for name in container.caches.values()}
    own_cache = "this user's ~/.cache/huggingface"
    about = [
        *heading(winner),
        "use: docker compose up --detach --wait",
        f"It is reached at 127.0.0.1:{PORT} of this machine only; change ports to open it.",
        f"Weights are those of {container.weights or own_cache}; change volumes where they lie elsewhere.",
        said,
        *(["Docker Compose 2.23.1 or later writes the files"] if container.files else []),
        *(f"set {name} to the secret that this command needs, outside or in .env" for name in container.secrets),
    ]
    return comment(about) + dump_yaml(document)


def _service(winner: Winner, container: Container, limit_s: int) -> dict[str, Any]:
    service: dict[str, Any] = {"image": container.image}
    if not container.own_entrypoint:
        service["entrypoint"] = []
    service |= {"command": [_value(word) for word in container.argv], "environment": _environment(winner, container)}
    if container.files:
        service["working_dir"] = FILES_FOLDER
        service["configs"] = [
            {"source": _config(i), "target": f"{FILES_FOLDER}/{name}"} for i, name in enumerate(container.files, 1)
        ]
    card = docker_card()
    for option in (*card.options, *card.devices[winner.spec.hardware.vendor]):
        if option[0] not in _ELSEWHERE:
            _OPTIONS[option[0]](service, option[-1])
    if winner.spec.hardware.vendor == "nvidia":
        _reserve_gpus(service, winner.gpus)
    return service | {
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "volumes": _volumes(container),
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _ASK, container.health],
            "start_period": f"{limit_s}s",
            "interval": "30s",
            "timeout": "30s",
            "retries": 5,
        },
        "restart": "unless-stopped",
    }


def _environment(winner: Winner, container: Container) -> dict[str, str | None]:
    """A variable without a value is the caller's, where it is set."""
    names, own = docker_card().variables, {**container.gpu_choice, **container.env}
    if winner.spec.hardware.vendor == "nvidia":
        # Only the reserved ones go in, and are counted from 0 there.
        names = [name for name in names if not chooses_gpus(name)]
        own = dict(container.env)
    return {
        "HF_HOME": container.models,
        **dict.fromkeys(names),
        **{name: _value(value) for name, value in own.items()},
    }


def _volumes(container: Container) -> list[str]:
    caches = [f"{name}:{folder}" for folder, name in container.caches.items()]
    models = f"{_literal(container.weights or '~/.cache/huggingface')}:{container.models}"
    return [*caches, models, *(_literal(f"{path}:{path}:ro") for path in container.mounts)]


def _reserve_gpus(service: dict[str, Any], count: int) -> None:
    device = {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
    service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}


def _ulimit(service: dict[str, Any], value: str) -> None:
    name, _, limit = value.partition("=")
    service.setdefault("ulimits", {})[name] = int(limit)


def _appended(key: str) -> Callable[[dict[str, Any], str], None]:
    return lambda service, value: service.setdefault(key, []).append(value)


_OPTIONS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "--init": lambda service, _: service.update(init=True),
    "--ipc": lambda service, value: service.update(ipc=value),
    "--ulimit": _ulimit,
    "--device": lambda service, value: service.setdefault("devices", []).append(f"{value}:{value}"),
    "--group-add": _appended("group_add"),
    "--cap-add": _appended("cap_add"),
    "--security-opt": _appended("security_opt"),
}
"""What each option of ``docker run`` is called in a service."""
_ELSEWHERE = {"--network", "--gpus"}
"""A port is published in place of the host's network; GPUs are reserved by their number."""


def _config(number: int) -> str:
    return f"file-{number}"


def _literal(text: str) -> str:
    """Text in which Compose replaces nothing."""
    return text.replace("$", "$$")


def _value(word: str) -> str:
    prefix, variable = words.reference_in(word)
    if variable is None:
        return _literal(word)
    return f"{_literal(prefix)}${{{variable}:?set {variable} to the secret that this command needs}}"
