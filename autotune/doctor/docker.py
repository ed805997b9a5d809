"""The Docker command, the daemon behind it, and whether containers get the GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from autotune.doctor.finding import DOCKER, Check, Finding, Host, missing, ok
from autotune.serving.docker_engine import server_version

_INSTALL = "install Docker Engine (https://docs.docker.com/engine/install)"
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


def command(host: Host) -> Iterator[Finding]:
    """Without the command nothing else of Docker can be asked."""
    path = _program(host, "docker")
    yield ok(f"the command is {path}") if path else missing("no docker command on the PATH", _INSTALL)


def daemon(host: Host) -> Iterator[Finding]:
    """It is the daemon that runs containers; the command alone only asks it."""
    path = _program(host, "docker")
    if path is None:
        return
    version, why = server_version(path, host.environment, host.timeout_s)
    if version:
        yield ok(f"the daemon answers, version {version}")
    else:
        to_do = "start it: sudo systemctl start docker; or join the group docker, if permission is denied"
        yield missing(f"the daemon does not answer: {why}", to_do)


def nvidia_toolkit(host: Host) -> Iterator[Finding]:
    """``--gpus`` works through NVIDIA's container toolkit, or through CDI files that it wrote."""
    if not host.gpus_of("nvidia"):
        return
    path = _program(host, "nvidia-ctk") or _program(host, "nvidia-container-runtime")
    described = [file for folder in ("etc/cdi", "var/run/cdi") for file in (host.root / folder).glob("nvidia*")]
    if path or described:
        yield ok(f"NVIDIA's container toolkit is there ({path or described[0]})")
    else:
        yield missing("NVIDIA's container toolkit is not there: containers get no GPU", f"install it: {_TOOLKIT}")


def amd_devices(host: Host) -> Iterator[Finding]:
    """Containers get AMD's GPUs as plain devices."""
    if not host.gpus_of("amd"):
        return
    lacking = [name for name in ("dev/kfd", "dev/dri") if not (host.root / name).exists()]
    if lacking:
        yield missing(
            f"not there to be passed on: {', '.join(f'/{name}' for name in lacking)}", "load amdgpu on the host"
        )
    else:
        yield ok("/dev/kfd and /dev/dri can be passed on")


def _program(host: Host, name: str) -> str | None:
    return shutil.which(name, path=host.environment.get("PATH"))


CHECKS = (
    Check("Docker command", (DOCKER,), command, "https://docs.docker.com/engine"),
    Check("Docker daemon", (DOCKER,), daemon, "https://docs.docker.com/reference/cli/docker/version"),
    Check("NVIDIA container toolkit", (DOCKER,), nvidia_toolkit, _TOOLKIT),
    Check("AMD devices", (DOCKER,), amd_devices, "ROCm documentation, Running ROCm Docker containers"),
)
