"""Check this machine for missing prerequisites of ``--on process`` and ``--on docker``.

A prerequisite without which no launch works is *missing*. One without which launches are slower or
less sure, or only some of them impossible, is a *warning*. A check is one small function from a
`Host` to its findings; `CHECKS` lists them all.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from pkgutil import resolve_name

from autotune.base import BadInput, StringMap, beside, frozen
from autotune.engines import Library, engine, machine, names
from autotune.engines.entry import parse_yaml
from autotune.engines.installed import find

from .docker_run import NOT_ROOTLESS, ROOTLESS, is_rootless, models_folder, server_version
from .preflight import why_busy

TARGETS = ("process", "docker")
"""Examined targets: the values of ``--on``."""
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_ACCELERATORS = ("0x0302", "0x1200")
"""PCI classes "3D controller" and "processing accelerator", reported by server GPUs."""
_SHARED_MEMORY_BYTES = 2**30
_OPEN_FILES = 65535
_HOME_NEEDS = 10**9
"""Least free bytes for a study: results, requests and at most 64 MiB of log per launch."""
_HOME_WANTS = 10 * 10**9
_CACHES_WANT = 20 * 10**9
"""Bytes for compiled kernels; a model's weights come on top."""
_INSTALL = "install Docker Engine (https://docs.docker.com/engine/install)"
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


class Status(StrEnum):
    """Result of a check; ``missing`` makes a target unusable."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class Host:
    """The examined machine, by default this one; its folders are below `root`, studies in
    `home`."""

    home: Path
    root: Path = Path("/")
    environment: StringMap = field(default_factory=lambda: dict(os.environ))
    library: Library = field(default_factory=Library)
    open_files: int | None = field(default_factory=machine.open_file_limit)
    timeout_s: float = 10.0
    engine_bins: Mapping[str, Path] = field(default_factory=dict)
    """Programs given by ``--engine-bin``, by engine; those of other engines are looked up on the
    PATH."""

    @cached_property
    def gpus(self) -> tuple[machine.Gpu, ...]:
        """Read the machine's GPUs, once: drivers answer slowly."""
        return machine.gpus(self.root)

    def gpus_of(self, vendor: str) -> list[machine.Gpu]:
        return [gpu for gpu in self.gpus if gpu.vendor == vendor]


@frozen
class Finding:
    """A sentence about the subject of a check (with a name if there are several), and the remedy if
    it is not ok."""

    name: str
    targets: Sequence[str]
    status: Status
    message: str
    to_do: str
    source: str = ""


Findings = Iterator[Finding]


@frozen
class Check:
    """Check of a host, the values of ``--on`` it concerns, and its source; it may have no
    finding."""

    name: str
    targets: Sequence[str]
    look: Callable[[Host], Findings]
    source: str


def found(status: Status, message: str, to_do: str = "", about: str = "") -> Finding:
    """Make a finding; `examine` adds the name, the targets and the source of its check."""
    return Finding(about, (), status, message, to_do)


ok = partial(found, Status.OK)
warning = partial(found, Status.WARNING)
missing = partial(found, Status.MISSING)


def ok_if(good: bool, if_good: str, if_not: str, to_do: str) -> Finding:
    return ok(if_good) if good else warning(if_not, to_do)


def installed(name: str, host: Host) -> tuple[str, str | None]:
    """Describe an installed engine, and why it cannot start; None = it can."""
    try:
        kind = engine(name, host.library)
        program = find(kind.card, host.engine_bins.get(name))
    except BadInput as error:
        return "", str(error)
    return f"{kind.card.title} {program.version} found ({' '.join(program.program)})", None


def _engines(host: Host) -> Findings:
    """Look for an engine that can start: missing ones are not searched."""
    engines = {name: installed(name, host) for name in names()}
    if all(reason is not None for _, reason in engines.values()):
        to_do = (
            "install one in a virtual environment, and put that environment's bin folder on the PATH, or name it by "
            "--engine-bin NAME=FOLDER"
        )
        yield missing(f"none of {', '.join(engines)} can start", to_do)
    for name, (description, reason) in engines.items():
        if reason is None:
            yield ok(description, about=name)
        elif name in host.engine_bins:
            # Report it as missing, because a study with this option would not begin.
            yield missing(reason, "name another program, or leave the option out")
        else:
            yield warning(reason, "install it to search it", name)


def present(host: Host) -> Findings:
    """List the GPUs, by kind, with the driver."""
    for (name, vendor, total), count in Counter(
        (g.name, g.vendor, g.memory_total_bytes) for g in host.gpus
    ).items():
        driver = machine.driver_version(vendor, host.root)
        with_driver = f", driver {driver}" if driver else ""
        if total:
            yield ok(f"{count} x {name}, {total / 1e9:.0f} GB each{with_driver}")
        else:
            lost = "its memory and processes are not readable, so a trial cannot prove that it released them"
            to_do = "install the driver's library (libnvidia-ml.so.1) and pip install nvidia-ml-py"
            yield warning(f"{count} x {name}{with_driver}; {lost}", to_do)
    if host.gpus:
        return
    accelerators = [
        machine.text(device / "vendor")
        for device in (host.root / "sys/bus/pci/devices").glob("*")
        if machine.text(device / "class").startswith(_ACCELERATORS)
    ]
    maker = next((name for vendor_id, name in _VENDORS.items() if vendor_id in accelerators), None)
    if maker is None:
        to_do = "to tune a node with GPUs, run there, or predict it with --on simulator"
        yield warning("no GPU: only engines built for a CPU run here (--hw local)", to_do)
    else:
        problem = f"an {maker} GPU is on the PCI bus, but no driver shows it"
        yield missing(problem, f"install and load {maker}'s driver")


def idle(host: Host) -> Findings:
    """Check that no process uses a GPU or its memory, which would change all measurements on it."""
    known = [gpu for gpu in host.gpus if gpu.memory_total_bytes or gpu.busy_pids]
    in_use = list(filter(why_busy, known))
    for gpu in in_use:
        held = gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else 0.0
        pids = f", processes {', '.join(map(str, gpu.busy_pids))}" if gpu.busy_pids else ""
        problem = f"GPU {gpu.index} is not idle: {held:.0%} of its memory is held{pids}"
        to_do = "end the processes that use it before you start a study"
        yield warning(problem, to_do, str(gpu.index))
    if known and not in_use:
        yield ok("no process uses them")


def amd_access(host: Host) -> Findings:
    """Check access to ``/dev/kfd`` and the cards' render nodes under ``/dev/dri``, which engines
    open (https://github.com/vllm-project/vllm-rocm/issues/13)."""
    if not host.gpus_of("amd"):
        return
    kfd = host.root / "dev/kfd"
    if not kfd.exists():
        yield missing(
            "/dev/kfd is missing: amdkfd is not loaded, or this container lacks the device",
            "load amdgpu",
        )
        return
    to_do = "join the groups: sudo usermod -aG render,video $USER, and log in again"
    devices = [kfd, *sorted((host.root / "dev/dri").glob("renderD*"))]
    closed = [device for device in devices if not os.access(device, os.R_OK | os.W_OK)]
    for device in closed:
        yield missing(f"this user may not open /{device.relative_to(host.root)}", to_do)
    if not closed:
        yield ok("/dev/kfd and the render nodes are accessible")


def numa_balancing(host: Host) -> Findings:
    """Check that the kernel does not migrate pages between sockets: GPUs wait for that."""
    value = machine.number(host.root / "proc/sys/kernel/numa_balancing")
    if host.gpus_of("amd") and value is not None:
        yield ok_if(
            value == 0,
            "automatic NUMA balancing is off",
            f"automatic NUMA balancing is on ({value}); it makes MI300X nodes slower",
            "sudo sysctl kernel.numa_balancing=0, and the same line in /etc/sysctl.d/ to make it permanent",
        )


def shared_memory(host: Host) -> Findings:
    """Check the memory shared by ranks of one server; a container's 64 MB are too small for large
    models."""
    size = machine.shared_memory_bytes(host.root)
    yield ok_if(
        size >= _SHARED_MEMORY_BYTES,
        f"/dev/shm has {size / 1e9:.1f} GB",
        f"/dev/shm has {size / 1e6:.0f} MB, less than 1 GiB: servers on several GPUs end at start",
        "sudo mount -o remount,size=16G /dev/shm; in a container start it with --ipc=host or --shm-size=16g",
    )


def open_files(host: Host) -> Findings:
    """Check the limit of open files, one per request in flight in tuner and server; the tuner
    raises the soft limit."""
    hard = host.open_files
    yield ok_if(
        hard is None or hard >= _OPEN_FILES,
        f"up to {hard or 'any number of'} open files",
        f"at most {hard} open files; vLLM wants {_OPEN_FILES}",
        f"raise the hard limit: a line '* hard nofile {_OPEN_FILES}' in /etc/security/limits.conf, or LimitNOFILE=",
    )


def home(host: Host) -> Findings:
    """Check the disk of studies, logs and the MLflow database."""
    free = machine.disk_free_bytes(host.home)
    space = f"{free / 1e9:.0f} GB free for {host.home}"
    if not os.access(machine.existing_folder(host.home), os.W_OK | os.X_OK):
        yield missing(f"{host.home} is not writable", "choose another folder with --home DIR")
    elif free < _HOME_NEEDS:
        yield missing(
            f"{space}, less than a study needs (1 GB)",
            "free some, or choose another folder with --home DIR",
        )
    elif free < _HOME_WANTS:
        yield warning(
            f"{space}; long studies with large logs need more (10 GB)",
            "free some, or use --home DIR",
        )
    else:
        yield ok(space)


def caches(host: Host) -> Findings:
    """Check the disk of downloaded weights and compiled kernels."""
    folder = Path(models_folder(host.environment))
    free = machine.disk_free_bytes(folder)
    space = f"{free / 1e9:.0f} GB free for models and compiled kernels in {folder}"
    to_do = "free some, or set HF_HOME to a folder on a larger disk (671 billion FP8 weights take 690 GB)"
    yield ok_if(free >= _CACHES_WANT, space, space, to_do)


def command(host: Host) -> Findings:
    """Look for the docker command, which all other checks of Docker need."""
    path = _program(host, "docker")
    yield (
        ok(f"the command is {path}") if path else missing("no docker command on the PATH", _INSTALL)
    )


def daemon(host: Host) -> Findings:
    """Ask the daemon that runs the containers."""
    path = _program(host, "docker")
    if path is None:
        return
    server, why = server_version(path, host.environment, host.timeout_s)
    if server and is_rootless(path, host.environment, host.timeout_s):
        yield missing(ROOTLESS, NOT_ROOTLESS)
    elif server:
        yield ok(f"the daemon answers, version {server}")
    else:
        to_do = "start it: sudo systemctl start docker; or join the group docker, if permission is denied"
        yield missing(f"the daemon does not answer: {why}", to_do)


def nvidia_toolkit(host: Host) -> Findings:
    """Look for NVIDIA's container toolkit, or its CDI files, which ``--gpus`` needs."""
    if not host.gpus_of("nvidia"):
        return
    path = _program(host, "nvidia-ctk") or _program(host, "nvidia-container-runtime")
    described = [
        file
        for folder in ("etc/cdi", "var/run/cdi")
        for file in (host.root / folder).glob("nvidia*")
    ]
    if path or described:
        yield ok(f"NVIDIA's container toolkit found ({path or described[0]})")
    else:
        yield missing(
            "NVIDIA's container toolkit is missing: containers get no GPU",
            f"install it: {_TOOLKIT}",
        )


def _program(host: Host, name: str) -> str | None:
    return shutil.which(name, path=host.environment.get("PATH"))


CHECKS = tuple(
    Check(**row | {"look": resolve_name(row["look"])})
    for row in parse_yaml(beside(__file__, "doctor.yaml"))
)


def examine(host: Host, checks: Sequence[Check] = CHECKS) -> Findings:
    """Yield the findings of the checks for the host, in order."""
    for check in checks:
        for finding in check.look(host):
            name = f"{check.name} {finding.name}".rstrip()
            yield replace(finding, name=name, targets=check.targets, source=check.source)


def missing_for(target: str, findings: Sequence[Finding]) -> int:
    """Count the missing prerequisites of a target."""
    return sum(one.status is Status.MISSING and target in one.targets for one in findings)


def ready(findings: Sequence[Finding]) -> dict[str, bool]:
    """Return by target whether nothing is missing."""
    return {target: not missing_for(target, findings) for target in TARGETS}
