"""``autotune doctor``: what this machine still lacks for ``--on process`` and ``--on docker``.

A check is one small function from a `Host` to its answers; `CHECKS` lists them all. What keeps every launch from
working is *missing*; what makes launches slower or less sure, or only some of them impossible, is a *warning*.

Engines and Python packages are checked here.

    finding     `Check`, `Finding`, `Host`
    gpus        GPUs, drivers, who uses them, what AMD advises for its nodes
    limits      shared memory, limits of a process, disk
    docker      the Docker command, its daemon, its access to GPUs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from autotune.doctor import docker, gpus, limits
from autotune.doctor.finding import PROCESS, TARGETS, Check, Finding, Host, Status, missing, ok, warning
from autotune.engines import engine, names
from autotune.engines.detect import find
from autotune.errors import BadInput
from autotune.space.library import Library

__all__ = ["CHECKS", "TARGETS", "Check", "Finding", "Host", "Status", "examine", "ready"]


def installed(name: str, library: Library) -> tuple[str, str | None]:
    """Describe an installed engine, and why it cannot be started; None = it can."""
    try:
        kind = engine(name, library)
        found = find(kind.card)
    except BadInput as error:
        return "", str(error)
    return f"{kind.card.title} {found.version} is there ({' '.join(found.program)})", None


def _engines(host: Host) -> Iterator[Finding]:
    """One that can be started is enough: those that are not there are not searched."""
    found = {name: installed(name, host.library) for name in names()}
    if all(reason is not None for _, reason in found.values()):
        to_do = "install one in a virtual environment of its own, and put that environment's bin folder on the PATH"
        yield missing(f"none of {', '.join(found)} can be started", to_do)
    for name, (description, reason) in found.items():
        yield ok(description, name) if reason is None else warning(reason, "install it if it is to be searched", name)


def _packages(host: Host) -> Iterator[Finding]:
    """The packages that autotune says it needs, in the versions that it needs."""
    del host
    try:
        needed = [Requirement(line) for line in requires("autotune") or []]
    except PackageNotFoundError:
        yield warning("autotune runs from a folder, so what it needs is not known", "install it: pip install .")
        return
    lacking = [
        str(need)
        for need in needed
        if (need.marker is None or need.marker.evaluate({"extra": ""})) and not _satisfied(need)
    ]
    if lacking:
        yield missing(f"not there, or in another version: {', '.join(lacking)}", "pip install --upgrade autotune")
    else:
        yield ok("everything that autotune needs is installed")


def _satisfied(need: Requirement) -> bool:
    try:
        return need.specifier.contains(version(need.name), prereleases=True)
    except PackageNotFoundError:
        return False


CHECKS: tuple[Check, ...] = (
    Check("Python packages", TARGETS, _packages, "pyproject.toml"),
    Check("engine", (PROCESS,), _engines, "search_spaces/*/engine.yaml"),
    *gpus.CHECKS,
    *limits.CHECKS,
    *docker.CHECKS,
)


def examine(host: Host, checks: Sequence[Check] = CHECKS) -> Iterator[Finding]:
    """Run the checks in order; one that does not concern the host yields nothing."""
    for check in checks:
        yield from check.findings(host)


def ready(findings: Sequence[Finding]) -> Mapping[str, bool]:
    """Whether nothing is missing, by target."""
    missing = {target for finding in findings if finding.status is Status.MISSING for target in finding.targets}
    return {target: target not in missing for target in TARGETS}
