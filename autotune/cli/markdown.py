"""Markdown on a terminal."""

from __future__ import annotations

import re

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, TableElement
from rich.table import Table
from rich.text import Text


class _Block(CodeBlock):
    """A command, whose lines the terminal breaks, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip("\n"), no_wrap=True, overflow="ignore")


class _Table(TableElement):
    """A table that breaks names that are too long, and cuts none."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            for column in part.columns if isinstance(part, Table) else ():
                column.overflow = "fold"
            yield part


class _Rendered(Markdown):
    elements = {**Markdown.elements, "fence": _Block, "table_open": _Table}  # noqa: RUF012


def print_markdown(text: str) -> None:
    """Print Markdown on the terminal that stdout is; pictures are left out."""
    Console().print(_Rendered(re.sub(r"^!\[.*\)$\n*", "", text, flags=re.MULTILINE)), crop=False)
