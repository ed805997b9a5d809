"""``autotune doctor``: print the checks of this machine. It succeeds whatever they find."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from autotune.base import BadInput
from autotune.engines import Library, machine
from autotune.engines.installed import named_binaries
from autotune.servers.doctor import TARGETS, Finding, Host, Status, examine, missing_for, ready

from .shared import print_json

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "red"}


def doctor(engine_bins: Sequence[str], home: Path, as_json: bool) -> None:
    """``autotune doctor``; raises `BadInput` if the home path is not a folder, or a named program
    is no file."""
    if home.exists() and not home.is_dir():
        raise BadInput(f"--home {home}: not a folder")
    host = Host(home, engine_bins=named_binaries(engine_bins, Library()))
    findings = list(examine(host))
    if as_json:
        try:
            hardware = machine.local_node(host.library, host.root).model_dump(mode="json")
        except BadInput:
            hardware = None
        checks = [asdict(finding) for finding in findings]
        print_json({"ready": ready(findings), "hardware": hardware, "checks": checks})
        return
    processor = machine.cpu(host.root)
    gpus = f"{len(host.gpus)} x {host.gpus[0].name}" if host.gpus else "no GPU"
    click.echo(
        f"this machine: {gpus}; {processor.model}, {processor.cores} cores, "
        f"{machine.memory_bytes(host.root) / 1e9:.0f} GB of memory"
    )
    for target in TARGETS:
        _print(target, findings)


def _print(target: str, findings: Sequence[Finding]) -> None:
    verdict = "nothing is missing"
    if count := missing_for(target, findings):
        verdict = (
            f"not ready, {count} {'prerequisite is' if count == 1 else 'prerequisites are'} missing"
        )
    click.echo(f"\n--on {target}: {verdict}")
    concerned = [finding for finding in findings if target in finding.targets]
    width = max(len(finding.name) for finding in concerned)
    for finding in concerned:
        status = click.style(f"{finding.status.value:<9}", _COLOURS[finding.status])
        to_do = f"\n{'→':>{width + 12}} {finding.to_do}" if finding.to_do else ""
        click.echo(f"{status}{finding.name:<{width}}  {finding.message}{to_do}")
