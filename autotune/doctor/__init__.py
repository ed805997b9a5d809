"""``autotune doctor``: what this machine still lacks for ``--on process`` and ``--on docker``.

A check is one small function from a `Host` to its answers; `CHECKS` lists them all. What keeps every launch from
working is *missing*; what makes launches slower or less sure, or only some of them impossible, is a *warning*.

    finding     `Check`, `Finding`, `Host`
    engines     engines, Python packages
    gpus        GPUs, drivers, who uses them, what AMD advises for its nodes
    limits      shared memory, limits of a process, disk
    docker      the Docker command, its daemon, its access to GPUs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.doctor import docker, engines, gpus, limits
from autotune.doctor.finding import TARGETS, Check, Finding, Host, Status

__all__ = ["CHECKS", "TARGETS", "Check", "Finding", "Host", "Status", "examine", "ready"]

CHECKS: tuple[Check, ...] = (*engines.CHECKS, *gpus.CHECKS, *limits.CHECKS, *docker.CHECKS)


def examine(host: Host, checks: Sequence[Check] = CHECKS) -> Iterator[Finding]:
    """Run the checks in order; one that does not concern the host yields nothing."""
    for check in checks:
        yield from check.findings(host)


def ready(findings: Sequence[Finding]) -> Mapping[str, bool]:
    """Whether nothing is missing, by target."""
    missing = {target for finding in findings if finding.status is Status.MISSING for target in finding.targets}
    return {target: target not in missing for target in TARGETS}
