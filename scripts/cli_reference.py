"""Write the options of every command into docs/cli.md, below its mark.

    python scripts/cli_reference.py

The options, their groups, defaults and help are those of the command line itself.
`tests/documents/test_pages.py` fails where the page is another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from autotune.cli.main import cli
from autotune.tuner.study.options import RunOptions, declared_options

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
MARK = "<!-- Below: written by scripts/cli_reference.py. -->\n"
SHARED = ("home", "as_json")
"""Parameters that every command takes; the page says so once."""


def page() -> str:
    """Return the whole page, as it should be."""
    return (
        PAGE.read_text(encoding="utf-8").partition(MARK)[0]
        + MARK
        + "\n".join(reference(cli, "autotune"))
        + "\n"
    )


def reference(command: click.Command, name: str) -> Iterator[str]:
    """Yield the lines on a command, or on the commands below it."""
    if isinstance(command, click.Group):
        for below, one in command.commands.items():
            yield from reference(one, f"{name} {below}")
        return
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    options = [
        p
        for p in command.params
        if isinstance(p, click.Option) and p.name not in SHARED and not p.is_eager
    ]
    words = " ".join(_argument(one) for one in arguments)
    yield from (
        "",
        f"## {name}",
        "",
        " ".join([*([f"`{words}`:"] if words else []), _sentence(command.help or "")]),
    )
    groups = _groups() if name == "autotune run" else {}
    by_group: dict[str, list[click.Option]] = {}
    for one in options:
        by_group.setdefault(groups.get(one.name or "", ""), []).append(one)
    for group, ones in by_group.items():
        yield from ("", *([f"**{group}**", ""] if group else []))
        yield from (f"- {_flag(one)}: {_help(one)}" for one in ones)


def _groups() -> dict[str, str]:
    kinds = {one.name: declared.group for one, declared in declared_options(RunOptions)}
    return kinds | {"dry_run": "The study"}


def _argument(one: click.Argument) -> str:
    name = "-- COMMAND" if one.name == "engine_command" else (one.name or "").upper()
    return name if one.required else f"[{name}]"


def _flag(one: click.Option) -> str:
    spelled = f"`{one.opts[-1]}`"
    if one.is_flag:
        return spelled
    if isinstance(one.type, click.Choice):
        return f"{spelled} {', '.join(f'`{choice}`' for choice in one.type.choices)}"
    return f"{spelled} {one.type.name.partition(' ')[0].upper()}"


def _help(one: click.Option) -> str:
    shown = (
        one.show_default
        if isinstance(one.show_default, str)
        else one.default
        if one.show_default
        else None
    )
    default = "" if shown is None or one.is_flag else f" Default: {shown}."
    return ((one.help or "").replace("<", "&lt;") + default).strip() + (
        " Required." if one.required else ""
    )


def _sentence(text: str) -> str:
    return " ".join(text.replace("\b", "").split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
