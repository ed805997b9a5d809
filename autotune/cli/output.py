"""Where commands print: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console

MESSAGES = Console(stderr=True, soft_wrap=True)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """The answer of a command with ``--json``."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def answer(as_json: bool, value: Mapping[str, Any] | Sequence[Any], lines: Iterable[str]) -> None:
    """Print what a command found: one JSON object, or lines for people."""
    if as_json:
        print_json(value)
    else:
        click.echo("\n".join(lines))


def say(text: str) -> None:
    """A message, word for word."""
    MESSAGES.print(text, highlight=False, markup=False)
