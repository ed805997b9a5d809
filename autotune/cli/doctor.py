"""Print what ``autotune doctor`` found. It reports, and so it succeeds whatever it finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.cli.shared import print_json
from autotune.doctor import TARGETS, Finding, Host, Status, examine, ready
from autotune.errors import BadInput
from autotune.machine import cpu, local_node, memory_bytes

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "red"}
_WIDTH = 160
"""Width of a table in a file or a pipe, which have no width of their own."""


def doctor(home: Path, as_json: bool) -> None:
    """``autotune doctor``; raises `BadInput` when the home folder is none."""
    if home.exists() and not home.is_dir():
        raise BadInput(f"--home {home}: not a folder")
    host = Host(home)
    findings = list(examine(host))
    if as_json:
        try:
            hardware = local_node(host.library, host.root).model_dump(mode="json")
        except BadInput:
            hardware = None
        checks = [finding.to_json() for finding in findings]
        print_json({"ready": dict(ready(findings)), "hardware": hardware, "checks": checks})
        return
    processor, memory_gb = cpu(host.root), memory_bytes(host.root) / 1e9
    gpus = f"{len(host.gpus)} x {host.gpus[0].name}" if host.gpus else "no GPU"
    click.echo(f"this machine: {gpus}; {processor.model}, {processor.cores} cores, {memory_gb:.0f} GB of memory")
    for target in TARGETS:
        _print(target, findings)


def _print(target: str, findings: Sequence[Finding]) -> None:
    concerned = [finding for finding in findings if target in finding.targets]
    count = sum(finding.status is Status.MISSING for finding in concerned)
    verdict = (
        "nothing is missing"
        if count == 0
        else f"not ready, {count} {'thing is' if count == 1 else 'things are'} missing"
    )
    click.echo(f"\n--on {target}: {verdict}")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in concerned:
        colour = _COLOURS[finding.status]
        what = finding.message + (f"\n→ {finding.to_do}" if finding.to_do else "")
        table.add_row(Text(finding.status.value, colour), finding.name, Text(what))
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=_WIDTH)).print(table, highlight=False)
