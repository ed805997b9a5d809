"""``compose.yaml``: the recommended server as a service of ``docker compose up``, published on
loopback.

Several are services that differ in their GPUs alone, behind nginx, which counts requests in flight
as the client did (https://nginx.org/en/docs/http/ngx_http_upstream_module.html, least_conn; its
image is one of Docker's official ones). Keys: https://docs.docker.com/reference/compose-file/
(services, configs with content, GPU reservations, interpolation).
"""

from __future__ import annotations

from importlib.resources import files
from string import Template
from typing import Any

from autotune.engines.command import PORT, written
from autotune.servers.docker_run import FILES_FOLDER, docker_card

from .winner import Container, Winner, chooses_gpus, container_of, doubled, required, yaml_file

# Not by urllib, which would ask the proxy that Docker names in every container's environment where
# one is configured.
_ASK = f"import sys; from http.client import HTTPConnection; asked = HTTPConnection('127.0.0.1', {PORT}, timeout=20); "
_ASK += "asked.request('GET', sys.argv[1]); sys.exit(asked.getresponse().status != 200)"


_BALANCER = "nginx:stable"
_NGINX = Template(
    files("autotune.outputs.export").joinpath("nginx.conf").read_text(encoding="utf-8")
)


def render(winner: Winner) -> str:
    """Return the file's text."""
    container = container_of(winner)
    server = _service(container)
    configs = {
        f"file-{i}": {"content": doubled(text)}
        for i, text in enumerate(container.files.values(), 1)
    }
    services = {"server": server}
    if winner.servers:  # All GPUs go into each of them.
        ports, names = server.pop("ports"), [f"server-{i}" for i in range(winner.replicas)]
        services = {}
        for name, own in zip(names, winner.servers, strict=True):
            like = {"extends": {"service": names[0]}} if services else server
            services[name] = {**like, "environment": {**(like.get("environment") or {}), **own}}
        services["balancer"] = {
            "image": _BALANCER,
            "configs": [{"source": "balancer", "target": "/etc/nginx/nginx.conf"}],
            "ulimits": {"nofile": 131072},
            "ports": ports,
            "depends_on": {name: {"condition": "service_healthy"} for name in names},
            "restart": "unless-stopped",
        }
        upstream = "\n    ".join(f"server {name}:{PORT};" for name in names)
        configs["balancer"] = {"content": _NGINX.substitute(servers=upstream, port=PORT)}
    document: dict[str, Any] = {"name": container.name, "services": services}
    if configs:
        document["configs"] = configs
    document["volumes"] = {name: {"name": name} for name in container.caches.values()}
    own_weights = container.weights or "this user's ~/.cache/huggingface"
    about = [
        "use: docker compose up --detach --wait",
        f"Its address is 127.0.0.1:{winner.port}, on this machine only; change ports to open it.",
        f"Weights come from {own_weights}; change volumes if yours are elsewhere.",
        container.start_limit_source,
        *(["Needs Docker Compose 2.23.1 or later, which writes the files."] if configs else []),
        *(
            f"set {name} to the secret that this command needs, outside or in .env"
            for name in container.secrets
        ),
    ]
    return yaml_file(winner, about, document)


def _service(container: Container) -> dict[str, Any]:
    """Return one server; variables without a value come from the caller's environment, if set."""
    card = docker_card()
    names, own = card.variables, {**container.gpu_choice, **container.env}
    if container.vendor == "nvidia":
        # Only the reserved GPUs go in, and are counted from 0 there.
        names, own = [name for name in names if not chooses_gpus(name)], dict(container.env)
    settings = {name: _value(value) for name, value in own.items()}
    service: dict[str, Any] = {"image": container.image}
    if not container.own_entrypoint:
        service["entrypoint"] = []
    service["command"] = [_value(word) for word in container.argv]
    service["environment"] = {"HF_HOME": card.models, **dict.fromkeys(names), **settings}
    if container.files:
        service["working_dir"] = FILES_FOLDER
        service["configs"] = [
            {"source": f"file-{i}", "target": f"{FILES_FOLDER}/{name}"}
            for i, name in enumerate(container.files, 1)
        ]
    for option in (*card.options, *card.devices[container.vendor]):
        _set_option(service, option[0], option[-1])
    volumes = [f"{name}:{folder}" for folder, name in container.caches.items()]
    volumes.append(f"{doubled(container.weights or '~/.cache/huggingface')}:{card.models}")
    volumes += [doubled(f"{path}:{path}:ro") for path in container.mounts]
    if container.vendor == "nvidia":
        count = container.winner.gpus * container.winner.replicas
        device = {"driver": "nvidia", "count": count, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service | {
        "ports": [f"127.0.0.1:{container.winner.port}:{PORT}"],
        "volumes": volumes,
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _ASK, container.health],
            "start_period": f"{container.start_limit_s}s",
            "interval": "30s",
            "timeout": "30s",
            "retries": 5,
        },
        "restart": "unless-stopped",
    }


def _set_option(service: dict[str, Any], option: str, value: str) -> None:
    """Set the service key that corresponds to an option of ``docker run``."""
    match option:
        case "--network" | "--gpus":
            pass  # A port is published in place of the host's network; GPUs are reserved by their number.
        case "--init":
            service["init"] = True
        case "--ipc":
            service["ipc"] = value
        case "--ulimit":
            name, _, limit = value.partition("=")
            service.setdefault("ulimits", {})[name] = int(limit)
        case "--device":
            service.setdefault("devices", []).append(f"{value}:{value}")
        case _:
            service.setdefault(option.removeprefix("--").replace("-", "_"), []).append(value)


def _value(word: str) -> str:
    return written(word, doubled, required)
