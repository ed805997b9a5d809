"""``kubernetes.yaml``: a Deployment and a Service of the recommended server, with the claim and the files it needs.

Fields: https://kubernetes.io/docs/reference/kubernetes-api/. GPUs: "Schedule GPUs" there, and the device plugins of
NVIDIA (``nvidia.com/gpu``) and AMD (``amd.com/gpu``). Shared memory as a volume: "Volumes", emptyDir. A start that
takes minutes: "Configure Liveness, Readiness and Startup Probes".
"""

from __future__ import annotations

import math
import re
from typing import Any

from autotune.outputs.export import words
from autotune.outputs.export.container import PORT, SHARED_MEMORY_GIB, Container, container_of, start_limit_s
from autotune.outputs.export.text import comment, dump_yaml, heading
from autotune.outputs.export.winner import Winner
from autotune.serving.docker_run import FILES_FOLDER, docker_card

_TOKEN = "HF_TOKEN"
_GPUS = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_PERIOD_S = 10
# Some models bring their weights a second time, in a form that no engine here reads.
_FETCH = "import sys; from huggingface_hub import snapshot_download as fetch; "
_FETCH += "fetch(**dict(zip(('repo_id', 'revision'), sys.argv[1:])), ignore_patterns='original/*')"
_FETCH_S = 7200
"""For the image and the weights: 700 GB at 100 MB/s. Kubernetes' own 600 s would call the deployment failed by then."""


def render(winner: Winner) -> str:
    """The manifests, for ``kubectl apply --filename``."""
    container = container_of(winner)
    limit_s, said = start_limit_s(winner)
    documents = [_config_map(container)] if container.files else []
    documents += [_claim(container), _deployment(winner, container, limit_s), _service(container)]
    return comment(_about(winner, container, said)) + dump_yaml(*documents)


def _about(winner: Winner, container: Container, said: str) -> list[str]:
    hardware = winner.recommendation.hardware
    about = [
        *heading(winner),
        "use: kubectl apply --filename kubernetes.yaml",
        f"It holds for {hardware} only: add a nodeSelector where the cluster has other GPUs too.",
        f"startup probe: {said}",
    ]
    # A hostPath would bind the pod to one node's disk and wants a right that clusters seldom give.
    about.append("The claim keeps weights and compiled kernels: one pod at a time, on whatever node it is.")
    if not container.is_local:
        about.append("The weights are fetched before the server starts, so that its start is the one that was seen.")
    keys = [_TOKEN, *(name for name in container.secrets if name != _TOKEN)]
    literals = " ".join(f'--from-literal={key}="${key}"' for key in keys)
    needed = "needed for" if container.secrets else "only where the model needs"
    about.append(f"{needed} a token or key: kubectl create secret generic {container.name} {literals}")
    return about


def _metadata(container: Container, ending: str = "") -> dict[str, Any]:
    return {"name": f"{container.name}{ending}", "labels": {"app.kubernetes.io/name": container.name}}


def _config_map(container: Container) -> dict[str, Any]:
    data = {_key(i, name): text for i, (name, text) in enumerate(container.files.items())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(container, "-files"), "data": data}


def _key(number: int, name: str) -> str:
    """A ConfigMap's key for a file of any name."""
    plain = re.fullmatch(r"[-._A-Za-z0-9]{1,200}", name) and not name.startswith("..") and name != "."
    return name if plain else f"file-{number}"


def _claim(container: Container) -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{container.storage_gib}Gi"}},
    }
    metadata = _metadata(container, "-cache")
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _service(container: Container) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": container.name}
    spec = {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(container), "spec": spec}


def _deployment(winner: Winner, container: Container, limit_s: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": container.name}
    metadata = _metadata(container)
    metadata["annotations"] = {
        "autotune/study": winner.recommendation.study,
        "autotune/configuration": winner.choice.fingerprint,
        "autotune/evidence": winner.recommendation.evidence.value,
    }
    spec = {
        "replicas": 1,
        "progressDeadlineSeconds": _FETCH_S + limit_s,
        # The GPUs and the claim are one pod's: a new one starts when the old one has gone.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(winner, container, limit_s)},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _pod(winner: Winner, container: Container, limit_s: int) -> dict[str, Any]:
    # Kubernetes sets NAME_PORT and the like for every service, and engines read variables of such names.
    pod: dict[str, Any] = {"enableServiceLinks": False}
    if not container.is_local:
        pod["initContainers"] = [_fetch(container)]
    return pod | {"containers": [_server(winner, container, limit_s)], "volumes": _volumes(container)}


def _fetch(container: Container) -> dict[str, Any]:
    """Fetches the weights that the server will ask for; the server may be told to be offline, this container is not."""
    wanted = [container.model, *([container.revision] if container.revision else [])]
    environment = [row for row in _environment(container) if row["name"].startswith("HF_")]
    return {
        "name": "fetch-weights",
        "image": container.image,
        "command": ["python3", "-c", _FETCH, *map(_literal, wanted)],
        "env": [row for row in environment if row["name"] != "HF_HUB_OFFLINE"],
        "volumeMounts": _cache_mounts(container),
    }


def _server(winner: Winner, container: Container, limit_s: int) -> dict[str, Any]:
    vendor = winner.spec.hardware.vendor
    server: dict[str, Any] = {"name": "server", "image": container.image}
    # As the image's arguments they go through its own entry point; as the command they replace it.
    server["args" if container.own_entrypoint else "command"] = [_value(word) for word in container.argv]
    if container.files:
        server["workingDir"] = FILES_FOLDER
    server["env"] = _environment(container)
    server["ports"] = [{"name": "http", "containerPort": PORT}]
    if vendor in _GPUS:
        server["resources"] = {"limits": {_GPUS[vendor]: winner.gpus}}
    server |= _security(vendor)
    server |= _probes(container, limit_s)
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}, *_cache_mounts(container)]
    mounts += [{"name": _host(i), "mountPath": path, "readOnly": True} for i, path in enumerate(container.mounts)]
    if container.files:
        mounts.append({"name": "files", "mountPath": FILES_FOLDER, "readOnly": True})
    return server | {"volumeMounts": mounts}


def _probes(container: Container, limit_s: int) -> dict[str, Any]:
    """A server under full load may answer late: it is taken off, and killed, only after minutes of silence."""
    asked = {"httpGet": {"path": container.health, "port": "http"}, "timeoutSeconds": 30}
    return {
        "startupProbe": {**asked, "periodSeconds": _PERIOD_S, "failureThreshold": math.ceil(limit_s / _PERIOD_S)},
        "readinessProbe": {**asked, "periodSeconds": 30, "failureThreshold": 3},
        "livenessProbe": {**asked, "periodSeconds": 30, "failureThreshold": 10},
    }


def _security(vendor: str) -> dict[str, Any]:
    """What ``docker run`` gives a container on this hardware beside its devices, which the device plugin hands over."""
    options = docker_card().devices[vendor]
    added = [option[1] for option in options if option[0] == "--cap-add"]
    context: dict[str, Any] = {"capabilities": {"add": added}} if added else {}
    if ["--security-opt", "seccomp=unconfined"] in options:
        context["seccompProfile"] = {"type": "Unconfined"}
    return {"securityContext": context} if context else {}


def _environment(container: Container) -> list[dict[str, Any]]:
    """The variables; those to which arguments and other variables refer come first."""
    given = {name: words.reference_in(value) for name, value in container.env.items()}
    rows: list[dict[str, Any]] = [{"name": "HF_HOME", "value": container.models}]
    behind = dict.fromkeys((_TOKEN, *container.secrets))
    rows += [_secret(container, name, name) for name in behind if name not in given]
    for name, (prefix, variable) in given.items():
        value = {"name": name, "value": _value(container.env[name])}
        rows.append(_secret(container, name, variable) if variable and not prefix else value)
    return rows


def _secret(container: Container, name: str, key: str) -> dict[str, Any]:
    source: dict[str, Any] = {"name": container.name, "key": key}
    if key == _TOKEN:
        source["optional"] = True
    return {"name": name, "valueFrom": {"secretKeyRef": source}}


def _cache_mounts(container: Container) -> list[dict[str, Any]]:
    return [
        {"name": "cache", "mountPath": folder, "subPath": folder.rpartition("/")[2].lstrip(".")}
        for folder in container.caches
    ]


def _volumes(container: Container) -> list[dict[str, Any]]:
    shared = {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}
    volumes: list[dict[str, Any]] = [
        {"name": "shared-memory", "emptyDir": shared},
        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{container.name}-cache"}},
    ]
    volumes += [{"name": _host(i), "hostPath": {"path": path}} for i, path in enumerate(container.mounts)]
    if container.files:
        items = [{"key": _key(i, name), "path": name} for i, name in enumerate(container.files)]
        volumes.append({"name": "files", "configMap": {"name": f"{container.name}-files", "items": items}})
    return volumes


def _host(number: int) -> str:
    return f"host-{number}"


def _literal(text: str) -> str:
    """Text in which Kubernetes replaces no ``$(NAME)``."""
    return text.replace("$", "$$")


def _value(word: str) -> str:
    prefix, variable = words.reference_in(word)
    return _literal(word) if variable is None else f"{_literal(prefix)}$({variable})"
