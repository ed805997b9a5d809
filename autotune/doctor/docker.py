"""The Docker command, the daemon behind it, and whether containers get the GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autotune.doctor.finding import DOCKER, Answer, Check, Host, missing, ok

_INSTALL = "install Docker Engine (https://docs.docker.com/engine/install)"
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


class _Said(NamedTuple):
    code: int
    out: str
    err: str


def command(host: Host) -> Iterator[Answer]:
    """Without the command nothing else of Docker can be asked."""
    path = _program(host, "docker")
    yield ok(f"the command is {path}") if path else missing("no docker command on the PATH", _INSTALL)


def daemon(host: Host) -> Iterator[Answer]:
    """It is the daemon that runs containers; the command alone only asks it."""
    path = _program(host, "docker")
    if path is None:
        return
    said = _ask([path, "version", "--format", "{{json .}}"], host)
    if said is None:
        yield missing(f"docker version did not answer within {host.timeout_s:g} s", "look at: systemctl status docker")
        return
    version = _server_version(said.out)
    if said.code == 0 and version:
        yield ok(f"the daemon answers, version {version}")
    else:
        why = next((line.strip() for line in said.err.splitlines() if line.strip()), "it names no server")
        to_do = "start it: sudo systemctl start docker; or join the group docker, if permission is denied"
        yield missing(f"the daemon does not answer: {why}", to_do)


def _server_version(out: str) -> str:
    try:
        server = json.loads(out).get("Server")
    except (ValueError, AttributeError):
        return ""
    return str(server.get("Version", "")) if isinstance(server, dict) else ""


def nvidia_toolkit(host: Host) -> Iterator[Answer]:
    """``--gpus`` works through NVIDIA's container toolkit, or through CDI files that it wrote."""
    if not host.gpus_of("nvidia"):
        return
    path = _program(host, "nvidia-ctk") or _program(host, "nvidia-container-runtime")
    described = [file for folder in ("etc/cdi", "var/run/cdi") for file in (host.root / folder).glob("nvidia*")]
    if path or described:
        yield ok(f"NVIDIA's container toolkit is there ({path or described[0]})")
    else:
        yield missing("NVIDIA's container toolkit is not there: containers get no GPU", f"install it: {_TOOLKIT}")


def amd_devices(host: Host) -> Iterator[Answer]:
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


def _ask(command: Sequence[str], host: Host) -> _Said | None:
    """Run a command; None when it did not end in time.

    Its output goes to files: a child of its own that kept a pipe open would keep us waiting beyond the time.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(host.environment),
                start_new_session=True,
            )
        except OSError as error:
            return _Said(126, "", str(error))
        with process:
            try:
                code = process.wait(timeout=host.timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None
        out.seek(0)
        err.seek(0)
        return _Said(code, out.read(), err.read())


CHECKS = (
    Check("Docker command", (DOCKER,), command, "https://docs.docker.com/engine"),
    Check("Docker daemon", (DOCKER,), daemon, "https://docs.docker.com/reference/cli/docker/version"),
    Check("NVIDIA container toolkit", (DOCKER,), nvidia_toolkit, _TOOLKIT),
    Check("AMD devices", (DOCKER,), amd_devices, "ROCm documentation, Running ROCm Docker containers"),
)
