"""The recommended server in a container: for ``docker compose``, Kubernetes, dstack and GPUStack.

``compose.yaml``: published on loopback. Several servers are services that differ in their GPUs
alone, behind nginx.

dstack: a service (`dstack apply` publishes it) and a task (the same server, its port forwarded).
One run is one file. Fields: https://dstack.ai/docs/reference/dstack.yml/service and …/task;
resources, environment and instance volumes are described there too.

``gpustack.yaml``: a deployment that GPUStack imports. vLLM and SGLang are backends of GPUStack's
own and get their parameters; an engine that is none, or that needs files of its own, is a custom
backend with its whole command. Fields: GPUStack 2.3, ``gpustack/schemas/models.py``
(``ModelCreate``) and ``deployment_document.py``; https://docs.gpustack.ai, "Model Deployment
Management" and "Inference Backend Management".
"""

import math
import re
import shlex
from string import Template
from typing import Any

import yaml

from autotune.base import Json, StringDict, beside
from autotune.engines import Library
from autotune.engines.command import PORT, reference_in, written
from autotune.servers.docker_run import FILES_FOLDER, docker_card

from .shell import writing
from .winner import (
    Container,
    Winner,
    about,
    asked_for,
    chooses_gpus,
    comment,
    container_of,
    doubled,
    dump_yaml,
    groups,
    image_notes,
    required,
)

_TOKEN = "HF_TOKEN"
_USERS_WEIGHTS = "~/.cache/huggingface"
_SHARED_MEMORY_GIB = 32
"""Size of /dev/shm if a container cannot share the host's: the value of SGLang's documentation for
``docker run`` (https://docs.sglang.io, install with Docker: ``--shm-size 32g``); vLLM and
TensorRT-LLM need less."""


def _yaml_file(container: Container, form: str, *documents: Any, **known: object) -> str:
    """Return YAML documents of a server in a container; the first lines describe content and
    use."""
    winner = container.winner
    use = about(form, winner, container=container, **known)
    return comment([*about("heading", winner), *image_notes(winner), *use]) + dump_yaml(*documents)


def _filled(name: str, container: Container, **values: Any) -> list[Any]:
    """Return the YAML documents of a packaged file, filled with values and the container's."""
    known = {
        **vars(container),
        "port": PORT,
        "outside_port": container.winner.port,
        "folder": FILES_FOLDER if container.files else None,
        "replicas": container.winner.fleet.count,
        "shared_memory_gib": _SHARED_MEMORY_GIB,
        **values,
    }
    documents = yaml.safe_load_all(beside(__file__, name))
    return [_fill(document, known) for document in documents]


def _fill(node: Any, values: Json) -> Any:
    """Put values in place of ``$name``; what has none is left out."""
    if isinstance(node, list):
        return [item for item in (_fill(one, values) for one in node) if item is not None]
    if isinstance(node, dict):
        items = {key: _fill(value, values) for key, value in node.items()}
        return {key: value for key, value in items.items() if value is not None} or None
    if isinstance(node, str):
        name = node.removeprefix("$")
        return (
            values[name] if name in values and name != node else Template(node).substitute(values)
        )
    return node


def compose(winner: Winner) -> str:
    """Return ``compose.yaml``."""
    container = container_of(winner)
    services, configs = winner.fleet.composed(*_compose_services(container))
    written_files = {
        f"file-{i}": {"content": doubled(text)}
        for i, text in enumerate(container.files.values(), 1)
    }
    document: Json = {"name": container.name, "services": services}
    if configs := written_files | configs:
        document["configs"] = configs
    document["volumes"] = {name: {"name": name} for name in container.caches.values()}
    return _yaml_file(container, "compose", document, configs=configs)


def _compose_services(container: Container) -> tuple[Json, Json]:
    """Return the service of one server, and that of a balancer in front of several."""
    fleet = container.winner.fleet
    card = docker_card()
    # Without a value, a variable comes from the caller's environment, if set.
    inherited = card.variables
    own = {**container.gpu_choice, **container.env}
    gpus = None
    if container.vendor == "nvidia":
        # Only the reserved GPUs go in, and are counted from 0 there.
        inherited = [name for name in inherited if not chooses_gpus(name)]
        own = dict(container.env)
        gpus = [{"driver": "nvidia", "count": fleet.gpus * fleet.count, "capabilities": ["gpu"]}]
    settings = {name: written(value, doubled, required) for name, value in own.items()}
    head, tail, balancer = _filled(
        "compose.yaml",
        container,
        entrypoint=None if container.own_entrypoint else [],
        command=[written(word, doubled, required) for word in container.argv],
        environment={"HF_HOME": card.models, **dict.fromkeys(inherited), **settings},
        configs=[
            {"source": f"file-{i}", "target": f"{FILES_FOLDER}/{name}"}
            for i, name in enumerate(container.files, 1)
        ]
        or None,
        gpus=gpus,
        volumes=[
            *(f"{name}:{folder}" for folder, name in container.caches.items()),
            f"{doubled(container.weights or _USERS_WEIGHTS)}:{card.models}",
            *(doubled(f"{path}:{path}:ro") for path in container.mounts),
        ],
        healthy={name: {"condition": "service_healthy"} for name in fleet.names},
    )
    return {**head, **_docker_options(container), **tail}, balancer


def _docker_options(container: Container) -> Json:
    """Return the service keys that correspond to the options of ``docker run``."""
    card = docker_card()
    keys: Json = {}
    for option, *values in (*card.options, *card.devices[container.vendor]):
        match option, values:
            case (("--network" | "--gpus"), _):
                pass  # A port is published in place of the host's network; GPUs are reserved by their number.
            case "--init", _:
                keys["init"] = True
            case "--ipc", [value]:
                keys["ipc"] = value
            case "--ulimit", [value]:
                name, _, limit = value.partition("=")
                keys.setdefault("ulimits", {})[name] = int(limit)
            case "--device", [value]:
                keys.setdefault("devices", []).append(f"{value}:{value}")
            case _:
                keys.setdefault(option.removeprefix("--").replace("-", "_"), []).extend(values)
    return keys


_PERIOD_S = 10
_FETCH_S = 7200
"""Seconds to fetch image and weights: 700 GB at 100 MB/s."""


def kubernetes(winner: Winner) -> str:
    """Return a Deployment and a Service of the recommended server, with its claim and its files,
    for ``kubectl apply --filename``."""
    container = container_of(winner)
    config_map, *documents = _manifests(container)
    if container.files:
        documents.insert(0, config_map)
    return _yaml_file(container, "kubernetes", *documents, secrets=_secrets(container))


def _manifests(container: Container) -> list[Any]:
    """Return the documents of the packaged manifests for a container, that of its files first."""
    winner = container.winner
    env = _kubernetes_env(container)
    keys = {_key(i, name): name for i, name in enumerate(container.files)}
    words = [_kubernetes_word(word) for word in container.argv]
    options = docker_card().devices[container.vendor]
    caches = [
        {"name": "cache", "mountPath": folder, "subPath": folder.rpartition("/")[2].lstrip(".")}
        for folder in container.caches
    ]
    documents = _filled(
        "kubernetes.yaml",
        container,
        labels={"app.kubernetes.io/name": container.name},
        data={key: container.files[name] for key, name in keys.items()},
        study=winner.recommendation.study,
        fingerprint=winner.choice.fingerprint,
        evidence=winner.recommendation.label.lower(),
        deadline_s=_FETCH_S + container.start_limit_s,
        repository=doubled(container.model),
        revision=container.revision and doubled(container.revision),
        # The server may be told to be offline; what fetches its weights is not.
        fetch_env=[
            row for row in env if row["name"].startswith("HF_") and row["name"] != "HF_HUB_OFFLINE"
        ],
        caches=caches,
        args=words if container.own_entrypoint else None,
        command=None if container.own_entrypoint else words,
        env=env,
        gpus={f"{container.vendor}.com/gpu": winner.gpus} if container.vendor != "cpu" else None,
        capabilities=[option[1] for option in options if option[0] == "--cap-add"] or None,
        seccomp="Unconfined" if ["--security-opt", "seccomp=unconfined"] in options else None,
        period_s=_PERIOD_S,
        starts=math.ceil(container.start_limit_s / _PERIOD_S),
    )
    pod = documents[2]["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"] += caches
    _mount(pod, container, keys)
    if container.model_is_local:
        del pod["initContainers"]
    return documents


def _mount(pod: Json, container: Container, keys: StringDict) -> None:
    """Mount the host's folders, and the files of a ConfigMap by their `keys`, in a pod's server."""
    volumes = pod["volumes"]
    mounts = pod["containers"][0]["volumeMounts"]
    for i, path in enumerate(container.mounts):
        volumes.append({"name": f"host-{i}", "hostPath": {"path": path}})
        mounts.append({"name": f"host-{i}", "mountPath": path, "readOnly": True})
    if keys:
        items = [{"key": key, "path": name} for key, name in keys.items()]
        content = {"name": f"{container.name}-files", "items": items}
        volumes.append({"name": "files", "configMap": content})
        mounts.append({"name": "files", "mountPath": FILES_FOLDER, "readOnly": True})


def _secrets(container: Container) -> list[str]:
    """Return the variables that hold secrets: the token of Hugging Face, and the command's."""
    return list(dict.fromkeys((_TOKEN, *container.secrets)))


def _key(number: int, name: str) -> str:
    """Return a ConfigMap key for a file of any name."""
    is_key = re.fullmatch(r"[-._A-Za-z0-9]{1,200}", name) and not re.match(r"\.\.|\.$", name)
    return name if is_key else f"file-{number}"


def _kubernetes_env(container: Container) -> list[Json]:
    """Return the variables; variables that others refer to come first."""

    def secret(name: str, key: str) -> Json:
        source: Json = {"name": container.name, "key": key}
        if key == _TOKEN:
            source["optional"] = True
        return {"name": name, "valueFrom": {"secretKeyRef": source}}

    rows: list[Json] = [{"name": "HF_HOME", "value": docker_card().models}]
    rows += [secret(name, name) for name in _secrets(container) if name not in container.env]
    for name, value in container.env.items():
        prefix, variable = reference_in(value)
        if variable and not prefix:
            rows.append(secret(name, variable))
        else:
            rows.append({"name": name, "value": _kubernetes_word(value)})
    return rows


def _kubernetes_word(word: str) -> str:
    return written(word, doubled, "$({})".format)


_INSTANCE = "/var/cache/autotune"
_IMAGE_GB = 100
"""Gigabytes for image and system on top of the weights: dstack's own default."""
_MEMORY_SHARE = 0.9
"""Required share of a GPU's data-sheet memory: providers round to powers of two, and the driver
reserves some."""


def dstack_service(winner: Winner) -> str:
    """Return ``service.dstack.yml``, which serves the model at dstack's own endpoint."""
    return _dstack(container_of(winner), "service")


def dstack_task(winner: Winner) -> str:
    """Return ``task.dstack.yml``; `dstack apply` forwards the port to this machine's loopback."""
    winner.fleet.check_alone()
    return _dstack(container_of(winner), "task")


def _dstack(container: Container, kind: str) -> str:
    """Return a run whose shell commands replace the image's entry point; they also set values that
    hold a ``$``.

    Under ``env`` dstack's server replaces ``${{ }}`` and its runner ``${NAME}``; in commands
    ``dstack apply`` alone replaces, and takes ``$$`` for one ``$``
    (``dstack/_internal/utils/interpolator.py``).
    """
    hardware = container.winner.spec.hardware
    fleet = container.winner.fleet
    secrets = _secrets(container)
    models = docker_card().models
    variables = [*secrets, f"HF_HOME={models}"]
    settings = []
    for name, value in container.env.items():
        if "$" in value:
            settings.append(f"{name}={_dstack_word(value)}")
        else:
            variables.append(f"{name}={value}")
    commands = [f"mkdir -p {FILES_FOLDER} && cd {FILES_FOLDER}"] if container.files else []
    start = ["exec env" if settings else "exec", *settings, *map(_dstack_word, container.argv)]
    commands += [*writing(container.files), " ".join(start)]
    # Folders of the instance; where a backend has none, the run begins without them. Weights are
    # the same for all.
    folders = {f"{_INSTANCE}/{name}": folder for folder, name in container.caches.items()}
    folders[f"{_INSTANCE}/huggingface"] = models
    service, task = _filled(
        "dstack.yaml",
        container,
        env=variables,
        commands=list(map(doubled, commands)),
        several=fleet.count if fleet.servers else None,
        # The packaged cards are named as the GPUs are sold; a card of one's own may have any name.
        gpu=hardware.name.upper() if hardware.name in Library().hardware else None,
        gpu_memory_gb=int(hardware.memory_gb * _MEMORY_SHARE),
        gpus=container.winner.gpus,
        disk_gib=container.storage_gib + _IMAGE_GB,
        volumes=[
            *(
                {"instance_path": place, "path": folder, "optional": True}
                for place, folder in folders.items()
            ),
            *({"instance_path": path, "path": path} for path in container.mounts),
        ],
    )
    document = service if kind == "service" else task
    if hardware.vendor == "cpu":
        document["resources"]["gpu"] = 0
    return _yaml_file(container, "dstack", document, kind=kind, secrets=secrets)


def _dstack_word(word: str) -> str:
    return written(word, shlex.quote, '"${}"'.format)


_BACKENDS = {"vllm": "vLLM", "sglang": "SGLang"}
_ADDRESS_WORDS = 4
"""``--host ANYWHERE --port PORT`` at the end of a container's command: GPUStack sets its own."""


def gpustack(winner: Winner) -> str:
    """Return ``gpustack.yaml``."""
    container = container_of(winner)
    argv = []
    secrets = []
    for group in groups(container.argv[:-_ADDRESS_WORDS]):
        if asked_for(group, {}):
            secrets.append(group[0].partition("=")[0])
        else:
            argv += group
    secrets += [name for name in container.env if name not in container.plain_env]
    local = container.model if container.model_is_local else None
    backend = None if container.files else _BACKENDS.get(winner.choice.engine)
    (document,) = _filled(
        "gpustack.yaml",
        container,
        source="local_path" if local else "huggingface",
        repository=None if local else container.model,
        local_path=local,
        description="; ".join(about("heading", winner)),
        gpus=winner.gpus if container.vendor != "cpu" else None,
        backend=backend or "Custom",
        parameters=_backend_parameters(winner, argv) if backend else None,
        run_command=None if backend else _run_command(container, argv),
        env={
            **container.plain_env,
            "GPUSTACK_MODEL_RUNTIME_SHM_SIZE_GIB": str(_SHARED_MEMORY_GIB),
        },
    )
    return _yaml_file(container, "gpustack", document, secrets=secrets)


def _backend_parameters(winner: Winner, argv: list[str]) -> list[str]:
    """Return one entry per option with its values; GPUStack sets the program and the model.

    GPUStack splits an entry that begins with an option as a shell does, any other is one word
    (``flatten_to_argv``).
    """
    card = winner.engine.card
    entries = []
    options = groups(["", *(winner.engine.arguments(argv) or ())])[1:]
    length = card.knobs["context_length"].emit[0].args[0]
    if length not in {group[0].partition("=")[0] for group in options}:
        # GPUStack would set 8192; the engine's own default, with which this was tuned, is the
        # model's limit.
        context = winner.spec.context(winner.choice.engine_version).as_read(card)
        options.append([length, str(context.model.architecture.context_limit)])
    for name, *values in options:
        option, equals, value = name.partition("=")
        entry = " ".join([name, *values])
        if option == (card.model_flag or "--model"):
            continue
        if shlex.join([name, *values]) == entry:
            entries.append(entry)
        else:
            quoted = f"{option}={shlex.quote(value)}" if equals else shlex.quote(option)
            entries += [quoted, *values]
    return entries


def _run_command(container: Container, argv: list[str]) -> str:
    """Return the whole command, split by GPUStack as a shell does; an inner shell writes the files
    first."""
    serving = container.winner.engine.card.serving
    command = shlex.join(
        [
            *("{{model_path}}" if word == container.model else word for word in argv),
            serving.host_flag,
            "{{worker_ip}}",
            serving.port_flag,
            "{{port}}",
        ]
    )
    if container.files:
        folder = [f"mkdir -p {FILES_FOLDER}", f"cd {FILES_FOLDER}"]
        script = " && ".join([*folder, *writing(container.files), f"exec {command}"])
        command = shlex.join(["bash", "-c", script])
    return command
