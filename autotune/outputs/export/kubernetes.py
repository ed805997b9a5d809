"""``kubernetes.yaml``: a Deployment and a Service of the recommended server, with the claim and the files it needs.

Fields: https://kubernetes.io/docs/reference/kubernetes-api/. GPUs: "Schedule GPUs" there, and the device plugins of
NVIDIA (``nvidia.com/gpu``) and AMD (``amd.com/gpu``). Shared memory as a volume: "Volumes", emptyDir. A start that
takes minutes: "Configure Liveness, Readiness and Startup Probes".
"""

from __future__ import annotations

import math
import re
from typing import Any

from autotune.outputs.export.container import SHARED_MEMORY_GIB, Container, container_of
from autotune.outputs.export.winner import Winner, doubled, yaml_file
from autotune.serving.docker_run import FILES_FOLDER, docker_card
from autotune.trial import PORT, reference_in, written

_TOKEN = "HF_TOKEN"
_GPUS = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_PERIOD_S = 10
# Some models bring their weights a second time, in a form that no engine here reads.
_FETCH = "import sys; from huggingface_hub import snapshot_download as fetch; "
_FETCH += "fetch(**dict(zip(('repo_id', 'revision'), sys.argv[1:])), ignore_patterns='original/*')"
_FETCH_S = 7200
"""For the image and the weights: 700 GB at 100 MB/s. Kubernetes' own 600 s would call the deployment failed by then."""


def render(winner: Winner) -> str:
    """Return the manifests, for ``kubectl apply --filename``."""
    container = container_of(winner)
    documents: list[dict[str, Any]] = []
    if container.files:
        data = {_key(i, name): text for i, (name, text) in enumerate(container.files.items())}
        documents.append({**_manifest("ConfigMap", container, "-files"), "data": data})
    resources = {"requests": {"storage": f"{container.storage_gib}Gi"}}
    claim = _manifest("PersistentVolumeClaim", container, "-cache")
    claim["spec"] = {"accessModes": ["ReadWriteOnce"], "resources": resources}
    service = _manifest("Service", container)
    service["spec"] = {
        "selector": _labels(container),
        "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
    }
    return yaml_file(winner, _about(container), *documents, claim, _deployment(container), service)


def _about(container: Container) -> list[str]:
    hardware = container.winner.recommendation.hardware
    about = [
        "use: kubectl apply --filename kubernetes.yaml",
        f"It holds for {hardware} only: add a nodeSelector where the cluster has other GPUs too.",
        f"startup probe: {container.start_limit_source}",
        # A hostPath would bind the pod to one node's disk and wants a right that clusters seldom give.
        "The claim keeps weights and compiled kernels: one pod at a time, on whatever node it is.",
    ]
    if container.winner.replicas > 1:
        about[-1] = "The claim keeps weights and compiled kernels, for pods of one node (ReadWriteMany: of any)."
        about.append("The Service chooses pods at random; the load client chose the one with the fewest requests.")
    if not container.model_is_local:
        about.append("The weights are fetched before the server starts, so that its start is the one that was seen.")
    keys = [_TOKEN, *(name for name in container.secrets if name != _TOKEN)]
    literals = " ".join(f'--from-literal={key}="${key}"' for key in keys)
    needed = "needed for" if container.secrets else "only where the model needs"
    about.append(f"{needed} a token or key: kubectl create secret generic {container.name} {literals}")
    return about


def _labels(container: Container) -> dict[str, str]:
    return {"app.kubernetes.io/name": container.name}


def _manifest(kind: str, container: Container, ending: str = "") -> dict[str, Any]:
    version = "apps/v1" if kind == "Deployment" else "v1"
    metadata = {"name": f"{container.name}{ending}", "labels": _labels(container)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _key(number: int, name: str) -> str:
    """Return a ConfigMap's key for a file of any name."""
    plain = re.fullmatch(r"[-._A-Za-z0-9]{1,200}", name) and not name.startswith("..") and name != "."
    return name if plain else f"file-{number}"


def _deployment(container: Container) -> dict[str, Any]:
    winner, deployment = container.winner, _manifest("Deployment", container)
    deployment["metadata"]["annotations"] = {
        "autotune/study": winner.recommendation.study,
        "autotune/configuration": winner.choice.fingerprint,
        "autotune/evidence": winner.recommendation.label.lower(),
    }
    # Kubernetes sets NAME_PORT and the like for every service, and engines read variables of such names.
    pod: dict[str, Any] = {"enableServiceLinks": False}
    if not container.model_is_local:
        pod["initContainers"] = [_fetch(container)]
    pod |= {"containers": [_server(container)], "volumes": _volumes(container)}
    deployment["spec"] = {
        "replicas": container.winner.replicas,
        "progressDeadlineSeconds": _FETCH_S + container.start_limit_s,
        # The GPUs and the claim are one pod's: a new one starts when the old one has gone.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": _labels(container)},
        "template": {"metadata": {"labels": _labels(container)}, "spec": pod},
    }
    return deployment


def _fetch(container: Container) -> dict[str, Any]:
    """Return the container that fetches the weights; the server may be told to be offline, it is not."""
    wanted = [container.model, *([container.revision] if container.revision else [])]
    environment = [row for row in _environment(container) if row["name"].startswith("HF_")]
    return {
        "name": "fetch-weights",
        "image": container.image,
        "command": ["python3", "-c", _FETCH, *map(doubled, wanted)],
        "env": [row for row in environment if row["name"] != "HF_HUB_OFFLINE"],
        "volumeMounts": _cache_mounts(container),
    }


def _server(container: Container) -> dict[str, Any]:
    server: dict[str, Any] = {"name": "server", "image": container.image}
    # As the image's arguments they go through its own entry point; as the command they replace it.
    server["args" if container.own_entrypoint else "command"] = [_value(word) for word in container.argv]
    if container.files:
        server["workingDir"] = FILES_FOLDER
    server["env"] = _environment(container)
    server["ports"] = [{"name": "http", "containerPort": PORT}]
    if container.vendor in _GPUS:
        server["resources"] = {"limits": {_GPUS[container.vendor]: container.winner.gpus}}
    server |= _security(container.vendor)
    # A server under full load may answer late: it is taken off, and killed, only after minutes of silence.
    probe = {"httpGet": {"path": container.health, "port": "http"}, "timeoutSeconds": 30}
    starts = math.ceil(container.start_limit_s / _PERIOD_S)
    server |= {
        "startupProbe": {**probe, "periodSeconds": _PERIOD_S, "failureThreshold": starts},
        "readinessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 3},
        "livenessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 10},
    }
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}, *_cache_mounts(container)]
    mounts += [{"name": f"host-{i}", "mountPath": path, "readOnly": True} for i, path in enumerate(container.mounts)]
    if container.files:
        mounts.append({"name": "files", "mountPath": FILES_FOLDER, "readOnly": True})
    return server | {"volumeMounts": mounts}


def _security(vendor: str) -> dict[str, Any]:
    """Return the security context that equals ``docker run`` on this hardware, beside the device plugin's devices."""
    options = docker_card().devices[vendor]
    added = [option[1] for option in options if option[0] == "--cap-add"]
    context: dict[str, Any] = {"capabilities": {"add": added}} if added else {}
    if ["--security-opt", "seccomp=unconfined"] in options:
        context["seccompProfile"] = {"type": "Unconfined"}
    return {"securityContext": context} if context else {}


def _environment(container: Container) -> list[dict[str, Any]]:
    """Return the variables; those to which arguments and other variables refer come first."""
    given = {name: reference_in(value) for name, value in container.env.items()}
    rows: list[dict[str, Any]] = [{"name": "HF_HOME", "value": docker_card().models}]
    behind = dict.fromkeys((_TOKEN, *container.secrets))
    rows += [_secret(container, name, name) for name in behind if name not in given]
    for name, (prefix, variable) in given.items():
        value = {"name": name, "value": _value(container.env[name])}
        rows.append(_secret(container, name, variable) if variable and not prefix else value)
    return rows


def _secret(container: Container, name: str, key: str) -> dict[str, Any]:
    source = {"name": container.name, "key": key, **({"optional": True} if key == _TOKEN else {})}
    return {"name": name, "valueFrom": {"secretKeyRef": source}}


def _cache_mounts(container: Container) -> list[dict[str, Any]]:
    sub_paths = {folder: folder.rpartition("/")[2].lstrip(".") for folder in container.caches}
    return [{"name": "cache", "mountPath": folder, "subPath": path} for folder, path in sub_paths.items()]


def _volumes(container: Container) -> list[dict[str, Any]]:
    shared = {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}
    volumes: list[dict[str, Any]] = [
        {"name": "shared-memory", "emptyDir": shared},
        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{container.name}-cache"}},
    ]
    volumes += [{"name": f"host-{i}", "hostPath": {"path": path}} for i, path in enumerate(container.mounts)]
    if container.files:
        items = [{"key": _key(i, name), "path": name} for i, name in enumerate(container.files)]
        volumes.append({"name": "files", "configMap": {"name": f"{container.name}-files", "items": items}})
    return volumes


def _value(word: str) -> str:
    return written(word, doubled, "$({})".format)
