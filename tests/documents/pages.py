"""Finds the command lines in the documents: what a reader may copy, as it stands on the page.

A command line stands in a fenced block (``bash``: all of it is one script; ``text``: lines after
``$ ``, with an exit code as ``[exit code 2]``), in an indented block, or as code within a sentence
or a table. An HTML comment in front of the block, or behind the code, says what a test machine
lacks: ``<!-- needs: GPUs -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from autotune.cli.shared import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md" and ".venv" not in path.parts
)
NEEDS = ("GPUs", "Docker", "a cluster", "a network", "an engine", "hours")
"""What a command may need that a test machine lacks; ``hours``: of this machine."""

_MARK = re.compile(r"<!-- needs: (.*?) -->")
_EXIT_CODE = re.compile(r"^\[exit code (\d+)\]$")
_PROGRAM = re.compile(r"^(autotune|(\.venv/bin/)?python3?|ray|pip) \S")


@dataclass(frozen=True)
class Example:
    """A command line, or a script of several, on a page.

    Attributes:
        page: relative to the repository.
        line: of the block or paragraph, from 1.
        text: as it stands there.
        needs: what the page says that it needs, one of `NEEDS`; None: nothing.
        exit_code: that the page shows.
        inline: it stands within a sentence.
    """

    page: str
    line: int
    text: str
    needs: str | None = None
    exit_code: int = 0
    inline: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {' '.join(self.text.split())[:60]}"


def examples(path: Path) -> list[Example]:
    """Return the command lines of a page, in its order."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    return list(_found(tokens, str(path.relative_to(ROOT))))


@cache
def all_examples() -> tuple[Example, ...]:
    """Return the command lines of all pages, and those of ``autotune run --help``."""
    shown = [line.strip() for line in EXAMPLES.splitlines() if line.strip().startswith("autotune ")]
    # A help text has no place for a mark; one example is about the machine's own GPUs.
    of_help = [
        Example("--help", 0, text, needs="an engine" if "--hw local" in text else None)
        for text in shown
    ]
    return (*(example for path in PAGES for example in examples(path)), *of_help)


def spans(path: Path) -> list[tuple[int, str]]:
    """Return the code within sentences and tables of a page, with its line."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    return [
        (line, child.content)
        for line, children in _inline(tokens)
        for child in children
        if _is_code(child)
    ]


def _found(tokens: list[Token], page: str) -> Iterator[Example]:
    mark: str | None = None
    blocks = {
        id(token): children
        for token, children in zip(_inline_tokens(tokens), _inline(tokens), strict=True)
    }
    for token in tokens:
        match token.type:
            case "html_block":
                mark = found[1] if (found := _MARK.search(token.content)) else mark
                continue
            case "fence" | "code_block":
                for example in _in_block(token, page):
                    yield replace(example, needs=mark)
            case "inline":
                yield from _in_sentence(blocks[id(token)], page)
        if token.type != "paragraph_open":
            mark = None


def _in_block(token: Token, page: str) -> Iterator[Example]:
    assert token.map is not None
    language, line = token.info.strip(), token.map[0] + 1
    if language == "bash":
        yield Example(page, line, token.content)
    elif language == "text":
        lines = token.content.splitlines()
        codes = [int(found[1]) for text in lines if (found := _EXIT_CODE.match(text))]
        shown = [text.removeprefix("$ ") for text in lines if text.startswith("$ ")]
        if shown:
            yield Example(page, line, "\n".join(shown), exit_code=codes[-1] if codes else 0)
    elif _PROGRAM.match(token.content):
        assert token.type == "code_block", f"{page}:{line}: a block of commands is ```bash"
        yield Example(page, line, token.content)


def _in_sentence(sentence: tuple[int, list[Token]], page: str) -> Iterator[Example]:
    line, children = sentence
    for i, child in enumerate(children):
        if _is_code(child) and _PROGRAM.match(child.content):
            behind = next(
                (c.content for c in children[i + 1 : i + 3] if c.type == "html_inline"), ""
            )
            found = _MARK.search(behind)
            yield Example(page, line, child.content, needs=found[1] if found else None, inline=True)


def _is_code(token: Token) -> bool:
    return token.type == "code_inline"


def _inline_tokens(tokens: list[Token]) -> list[Token]:
    return [token for token in tokens if token.type == "inline"]


def _inline(tokens: list[Token]) -> list[tuple[int, list[Token]]]:
    """Return the content of every sentence and cell, with the line at which its block begins."""
    line, rows = 1, []
    for token in tokens:
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            rows.append((line, token.children or []))
    return rows
