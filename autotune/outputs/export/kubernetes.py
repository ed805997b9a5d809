"""``kubernetes.yaml``: a Deployment and a Service of the recommended server, with its claim and its
files.

Fields: https://kubernetes.io/docs/reference/kubernetes-api/. GPUs: "Schedule GPUs" there, and the
device plugins of NVIDIA (``nvidia.com/gpu``) and AMD (``amd.com/gpu``). Shared memory as a volume:
"Volumes", emptyDir. A start that takes minutes: "Configure Liveness, Readiness and Startup Probes".
"""

from __future__ import annotations

import math
import re
from typing import Any

from autotune.engines.command import PORT, reference_in, written
from autotune.servers.docker_run import FILES_FOLDER, docker_card

from .winner import SHARED_MEMORY_GIB, Container, Winner, container_of, doubled, yaml_file

_TOKEN = "HF_TOKEN"
_GPUS = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_PERIOD_S = 10
# Some models bring their weights a second time, in a form that no engine here reads.
_FETCH = "import sys; from huggingface_hub import snapshot_download as fetch; "
_FETCH += "fetch(**dict(zip(('repo_id', 'revision'), sys.argv[1:])), ignore_patterns='original/*')"
_FETCH_S = 7200
"""Seconds to fetch image and weights: 700 GB at 100 MB/s. Kubernetes' default of 600 s would fail
the deployment."""


def render(winner: Winner) -> str:
    """Return the manifests, for ``kubectl apply --filename``."""
    container = container_of(winner)
    labels = {"app.kubernetes.io/name": container.name}

    def manifest(kind: str, ending: str, **fields: Any) -> dict[str, Any]:
        metadata = {"name": f"{container.name}{ending}", "labels": labels}
        return {
            "apiVersion": "apps/v1" if kind == "Deployment" else "v1",
            "kind": kind,
            "metadata": metadata,
            **fields,
        }

    documents = []
    if container.files:
        data = {_key(i, name): text for i, (name, text) in enumerate(container.files.items())}
        documents.append(manifest("ConfigMap", "-files", data=data))
    storage = {"requests": {"storage": f"{container.storage_gib}Gi"}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": storage}
    documents.append(manifest("PersistentVolumeClaim", "-cache", spec=claim))
    deployment = {
        "replicas": winner.replicas,
        "progressDeadlineSeconds": _FETCH_S + container.start_limit_s,
        # The GPUs and the claim are one pod's: a new one starts when the old one has gone.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(container)},
    }
    documents.append(manifest("Deployment", "", spec=deployment))
    documents[-1]["metadata"]["annotations"] = {
        "autotune/tuner/study": winner.recommendation.study,
        "autotune/configuration": winner.choice.fingerprint,
        "autotune/evidence": winner.recommendation.label.lower(),
    }
    ports = [{"name": "http", "port": winner.port, "targetPort": "http"}]
    documents.append(manifest("Service", "", spec={"selector": labels, "ports": ports}))
    about = [
        "use: kubectl apply --filename kubernetes.yaml",
        f"Valid for {winner.recommendation.hardware} only: add a nodeSelector if the cluster also has other GPUs.",
        f"startup probe: {container.start_limit_source}",
        # A hostPath would bind the pod to one node's disk and wants a right that clusters seldom
        # give.
        "The claim stores weights and compiled kernels, for one pod at a time, on any node.",
    ]
    if winner.replicas > 1:
        about[-1] = (
            "The claim stores weights and compiled kernels, for pods of one node (ReadWriteMany: of any)."
        )
        about.append(
            "The Service chooses pods at random; the measurement chose the pod with the fewest requests."
        )
    if not container.model_is_local:
        about.append(
            "The weights are fetched before the server starts, so that its start takes as long as measured."
        )
    literals = " ".join(
        f'--from-literal={key}="${key}"' for key in dict.fromkeys((_TOKEN, *container.secrets))
    )
    needed = "needed for" if container.secrets else "only where the model needs"
    about.append(
        f"{needed} a token or key: kubectl create secret generic {container.name} {literals}"
    )
    return yaml_file(winner, about, *documents)


def _key(number: int, name: str) -> str:
    """Return a ConfigMap key for a file of any name."""
    plain = (
        re.fullmatch(r"[-._A-Za-z0-9]{1,200}", name) and not name.startswith("..") and name != "."
    )
    return name if plain else f"file-{number}"


def _pod(container: Container) -> dict[str, Any]:
    """Return the pod: the container that fetches the weights, the server, and the volumes of
    both."""
    environment = _environment(container)
    caches = [
        {"name": "cache", "mountPath": folder, "subPath": folder.rpartition("/")[2].lstrip(".")}
        for folder in container.caches
    ]
    # Kubernetes sets NAME_PORT and the like for every service, and engines read variables of such
    # names.
    pod: dict[str, Any] = {"enableServiceLinks": False}
    if not container.model_is_local:
        wanted = [container.model, *([container.revision] if container.revision else [])]
        # The server may be told to be offline; what fetches its weights is not.
        own = [
            row
            for row in environment
            if row["name"].startswith("HF_") and row["name"] != "HF_HUB_OFFLINE"
        ]
        fetch: dict[str, Any] = {"name": "fetch-weights", "image": container.image}
        fetch |= {
            "command": ["python3", "-c", _FETCH, *map(doubled, wanted)],
            "env": own,
            "volumeMounts": caches,
        }
        pod["initContainers"] = [fetch]
    volumes: list[dict[str, Any]] = [
        {
            "name": "shared-memory",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"},
        },
        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{container.name}-cache"}},
    ]
    mounts: list[dict[str, Any]] = [{"name": "shared-memory", "mountPath": "/dev/shm"}, *caches]
    for i, path in enumerate(container.mounts):
        volumes.append({"name": f"host-{i}", "hostPath": {"path": path}})
        mounts.append({"name": f"host-{i}", "mountPath": path, "readOnly": True})
    if container.files:
        items = [{"key": _key(i, name), "path": name} for i, name in enumerate(container.files)]
        volumes.append(
            {"name": "files", "configMap": {"name": f"{container.name}-files", "items": items}}
        )
        mounts.append({"name": "files", "mountPath": FILES_FOLDER, "readOnly": True})
    server = {**_server(container), "env": environment, "volumeMounts": mounts}
    return pod | {"containers": [server], "volumes": volumes}


def _server(container: Container) -> dict[str, Any]:
    """Return the server's container without its environment and mounts."""
    server: dict[str, Any] = {"name": "server", "image": container.image}
    # As the image's arguments they go through its own entry point; as the command they replace it.
    server["args" if container.own_entrypoint else "command"] = [
        _value(word) for word in container.argv
    ]
    if container.files:
        server["workingDir"] = FILES_FOLDER
    server |= {"env": [], "ports": [{"name": "http", "containerPort": PORT}]}
    if container.vendor in _GPUS:
        server["resources"] = {"limits": {_GPUS[container.vendor]: container.winner.gpus}}
    # What equals `docker run` on this hardware, beside the device plugin's devices.
    options = docker_card().devices[container.vendor]
    added = [option[1] for option in options if option[0] == "--cap-add"]
    security: dict[str, Any] = {"capabilities": {"add": added}} if added else {}
    if ["--security-opt", "seccomp=unconfined"] in options:
        security["seccompProfile"] = {"type": "Unconfined"}
    server |= {"securityContext": security} if security else {}
    # A server under full load may answer late: it is taken off, and killed, only after minutes of
    # silence.
    probe = {"httpGet": {"path": container.health, "port": "http"}, "timeoutSeconds": 30}
    starts = math.ceil(container.start_limit_s / _PERIOD_S)
    return server | {
        "startupProbe": {**probe, "periodSeconds": _PERIOD_S, "failureThreshold": starts},
        "readinessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 3},
        "livenessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 10},
    }


def _environment(container: Container) -> list[dict[str, Any]]:
    """Return the variables; variables that others refer to come first."""

    def secret(name: str, key: str) -> dict[str, Any]:
        source = {
            "name": container.name,
            "key": key,
            **({"optional": True} if key == _TOKEN else {}),
        }
        return {"name": name, "valueFrom": {"secretKeyRef": source}}

    rows: list[dict[str, Any]] = [{"name": "HF_HOME", "value": docker_card().models}]
    rows += [
        secret(name, name)
        for name in dict.fromkeys((_TOKEN, *container.secrets))
        if name not in container.env
    ]
    for name, value in container.env.items():
        prefix, variable = reference_in(value)
        rows.append(
            secret(name, variable)
            if variable and not prefix
            else {"name": name, "value": _value(value)}
        )
    return rows


def _value(word: str) -> str:
    return written(word, doubled, "$({})".format)
