"""``autotune doctor``: print the checks of this machine. It succeeds whatever they find."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from autotune.base import BadInput
from autotune.engines import Library, machine
from autotune.engines.installed import named_binaries
from autotune.servers.doctor import TARGETS, Host, examine, ready

from .screens import printed
from .shared import print_json


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
    text = printed(
        "doctor",
        host=host,
        processor=machine.cpu(host.root),
        memory_bytes=machine.memory_bytes(host.root),
        concerned={
            target: [one for one in findings if target in one.targets] for target in TARGETS
        },
        style=click.style,
    )
    click.echo(text)
