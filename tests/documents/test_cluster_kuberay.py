"""examples/cluster/kuberay.yaml: its fields, its pods, and that its GPUs are those of the study in
it."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents.cluster_files import EXAMPLES, PAGE, asked, calls, checked, on_path, stand_in

STUDY = "deepseek-v3.2-h200"
# The fields of KubeRay's v1 API, as far as a study has a use for them; no package on PyPI ships its
# schema. Source: https://ray-project.github.io/kuberay/reference/api/
FIELDS = {
    "RayJobSpec": """activeDeadlineSeconds backoffLimit clusterSelector deletionStrategy entrypoint entrypointNumCpus
        entrypointNumGpus entrypointResources jobId managedBy metadata rayClusterSpec runtimeEnvYAML
        shutdownAfterJobFinishes submissionMode submitterConfig submitterPodTemplate suspend ttlSecondsAfterFinished""",
    "RayClusterSpec": """authOptions autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions headGroupSpec
        headServiceAnnotations managedBy rayVersion suspend workerGroupSpecs""",
    "HeadGroupSpec": "enableIngress headService rayStartParams serviceType template",
    "WorkerGroupSpec": """groupName idleTimeoutSeconds maxReplicas minReplicas numOfHosts rayStartParams replicas
        scaleStrategy suspend template""",
}

DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((EXAMPLES / "kuberay.yaml").read_text()))
CONFIG_MAP, HOME, MODELS, JOB = DOCUMENTS
CLUSTER: dict[str, Any] = JOB["spec"]["rayClusterSpec"]
HEAD: dict[str, Any] = CLUSTER["headGroupSpec"]
(WORKERS,) = CLUSTER["workerGroupSpecs"]


def pod(group: dict[str, Any]) -> dict[str, Any]:
    return dict(group["template"]["spec"])


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod(group)["containers"]
    return dict(only)


def mounts(group: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Path to the volume that is mounted there."""
    volumes = {volume["name"]: volume for volume in pod(group)["volumes"]}
    return {
        mount["mountPath"]: volumes[mount["name"]] for mount in container(group)["volumeMounts"]
    }


def study(folder: Path, home: Path) -> list[str]:
    """The words with which the entry point starts autotune."""
    script = CONFIG_MAP["data"]["study.sh"]
    checked(script)
    folder.mkdir()
    stand_in(folder, "autotune", "exit 0")
    subprocess.run(["bash", "-c", script], env=on_path(folder, AUTOTUNE_HOME=str(home)), check=True)
    (words,) = calls(folder, "autotune")
    return words


def test_kinds_and_fields_are_those_of_kuberay_s_v1() -> None:
    assert [(d["apiVersion"], d["kind"]) for d in DOCUMENTS] == [
        ("v1", "ConfigMap"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "PersistentVolumeClaim"),
        ("ray.io/v1", "RayJob"),
    ]
    parts = {
        "RayJobSpec": JOB["spec"],
        "RayClusterSpec": CLUSTER,
        "HeadGroupSpec": HEAD,
        "WorkerGroupSpec": WORKERS,
    }
    for name, part in parts.items():
        assert set(part) <= set(FIELDS[name].split()), name
    assert {"groupName", "minReplicas", "maxReplicas", "template"} <= set(WORKERS)
    # KubeRay takes a map of strings.
    for group in (HEAD, WORKERS):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("place", [0, 1, 2, "head", "workers"])
def test_kubernetes_own_objects_fit_its_schema(place: int | str) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    group = HEAD if place == "head" else WORKERS
    as_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": pod(group)}
    document = DOCUMENTS[place] if isinstance(place, int) else as_pod
    validator.validate(document, validator.latest_version(), strict=True)


def test_the_pods_have_the_gpus_that_the_study_asks_for(tmp_path: Path) -> None:
    spec = asked(study(tmp_path / "bin", tmp_path))
    assert (spec.executor, spec.study) == ("ray", STUDY)
    resources, parameters = container(WORKERS)["resources"], WORKERS["rayStartParams"]
    assert resources["limits"] == resources["requests"]
    assert resources["limits"]["nvidia.com/gpu"] == parameters["num-gpus"] == str(spec.gpus)
    # KubeRay writes the value into a shell command as it is.
    (declared,) = shlex.split(parameters["resources"])
    assert json.loads(declared) == {spec.hardware.name: 1}
    assert spec.launches >= 4 * WORKERS["replicas"]
    assert "nvidia.com/gpu" not in container(HEAD)["resources"]["limits"]
    assert HEAD["rayStartParams"]["num-gpus"] == "0"
    assert mounts(WORKERS)["/dev/shm"]["emptyDir"]["medium"] == "Memory"


def test_a_study_that_is_there_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "studies" / STUDY
    folder.mkdir(parents=True)
    (folder / "study.yaml").touch()
    assert study(tmp_path / "bin", tmp_path / "home") == ["resume", STUDY]


def test_the_parts_refer_to_each_other() -> None:
    environment = {entry["name"]: entry for entry in container(HEAD)["env"]}
    home = mounts(HEAD)[environment["AUTOTUNE_HOME"]["value"]]
    assert home["persistentVolumeClaim"]["claimName"] == HOME["metadata"]["name"]
    script = Path(JOB["spec"]["entrypoint"].split()[-1])
    assert mounts(HEAD)[str(script.parent)]["configMap"]["name"] == CONFIG_MAP["metadata"]["name"]
    assert script.name in CONFIG_MAP["data"]
    for group in (HEAD, WORKERS):
        variables = {entry["name"]: entry for entry in container(group)["env"]}
        cache = Path(variables["HF_HOME"]["value"])
        assert (
            mounts(group)[str(cache.parent)]["persistentVolumeClaim"]["claimName"]
            == MODELS["metadata"]["name"]
        )
        assert container(group)["image"] == container(HEAD)["image"]
        assert variables["RAY_USAGE_STATS_ENABLED"]["value"] == "0"
    (token,) = [entry for entry in container(WORKERS)["env"] if entry["name"] == "HF_TOKEN"]
    secret = token["valueFrom"]["secretKeyRef"]
    page = PAGE.read_text()
    assert f"kubectl create secret generic {secret['name']} --from-file={secret['key']}=" in page
    assert f"--tag {container(HEAD)['image']} " in page
    assert f"'ray[default]=={CLUSTER['rayVersion']}'" in page
