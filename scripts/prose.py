"""Check the English of the pages and of the product, the pages' place in the site, and their words.

    python scripts/prose.py [--list]

Prints each phrase that a reader of plain technical English stumbles over, with the page, its line,
and what to write instead. ``--list`` prints the pages of the site with their words. Exit code 1
with a finding.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORDS = 20_000
"""Words of the pages that are not in Research, in all (as `wc -w` counts)."""
GENERATED = "<!-- Below: written by"
"""Begins what a script wrote into a page from texts of the product."""

PHRASES = {
    r"told|tell(?:s|ing)? (?:of|by|apart)": "reported, printed, recorded, distinguished",
    r"by lot|dealt out": "at random",
    r"g(?:ives?|iven|ave|iving)(?: (?:it|them|nothing|something|anything|this))? up": "reduces, loses, stops",
    r"so (?:many|much|large) (?:tokens|requests|GB|MB|seconds|percent|launches|of)": "the number",
    r"in the mean|anew|hardly|besides|as ever|in life|of one's own": "on average, again, unlikely, also, your own",
    r"will do|would do|laid to|lays|put to the test": "is enough, attributed to, compares, tested",
    r"mended|came of it|goes by|comes to|stands? beside": "fixed, results, uses, is, next to",
}
"""Phrase, anywhere, to what to write in its place."""
OPENINGS = {
    r"(?:Who|Whoever|Whatever|Those (?:that|who)|That which|All that|He who|What) (?!(?:is|are|do|does|did|if) )": (
        "a noun as the subject"
    ),
    r"(?:Told|Understood|Refused|Missing|Known|Kept|Meant) (?:are|is|was|were)\b": "the subject before the verb",
    r"(?:Of|By) (?:what|those that|all that|whatever)\b": "a noun",
}
"""How no sentence begins, to what to begin it with."""
COMMENT = re.compile(r"(?:What|Who|Whoever|Whatever|Whose|Of|Those|As)\b")
"""How no comment begins: a verb, a noun, or Because, Without, Only says more."""


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page and the rows of its tables with their lines, without code and
    links' targets."""
    text = path.read_text(encoding="utf-8").partition(GENERATED)[0]
    text = re.sub(
        r"^ *```.*?^ *```",
        lambda found: "\n" * found[0].count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"`[^`\n]*`", "`", re.sub(r"\]\([^)]*\)", "]", text))
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[-|#]|\d+\.) ))", text):
        if not block.isspace():
            body = re.sub(r"^\s*(?:[-#]+|\d+\.) ", "", block)
            for one in (
                [body] if body.startswith("|") else re.split(r"(?<=[.:;]) ", " ".join(body.split()))
            ):
                yield line, one.strip("* ")
        line += block.count("\n")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line of each docstring of a module, and each string of four words, with their
    lines."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.strip().count(" ") > 2
        ):
            text = (
                " ".join(node.value.strip().partition("\n\n")[0].split())
                if id(node) in docs
                else node.value
            )
            yield node.lineno, re.sub(r"`[^`]*`", "`", text)


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each comment of a module, all its lines as one, with its first line."""
    last = 0
    begun: list[tuple[int, str]] = []
    with path.open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            if token.type == tokenize.COMMENT:
                text = token.string.lstrip("#").strip()
                alone = token.line.lstrip().startswith("#")
                if alone and begun and token.start[0] == last + 1:
                    begun[-1] = (begun[-1][0], f"{begun[-1][1]} {text}")
                else:
                    begun.append((token.start[0], text))
                last = token.start[0] if alone else 0
    yield from begun


def findings(path: Path) -> Iterator[str]:
    """Yield what is wrong in a page or a module, a line for each."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    for line, sentence in texts(path) if path.suffix == ".py" else sentences(path):
        found = [
            (re.search(rf"\b(?:{p})\b", sentence, re.IGNORECASE), instead)
            for p, instead in PHRASES.items()
        ]
        found += [
            (re.match(p, sentence), instead)
            for p, instead in OPENINGS.items()
            if sentence.endswith((".", ";"))
        ]
        for match, instead in found:
            if match:
                yield f"{name}:{line}: {match[0][:60]!r}; write: {instead}"
    for line, comment in comments(path) if path.suffix == ".py" else ():
        if COMMENT.match(comment):
            yield f"{name}:{line}: # {comment[:50]!r}; begin with a verb, a noun, or Because, Without, Only"


def navigation() -> dict[str, str]:
    """Return the pages of the site, each with its section."""

    def pages(entry: Any, section: str) -> Iterator[tuple[str, str]]:
        for one in entry if isinstance(entry, list) else [entry]:
            if isinstance(one, str):
                yield one, section
            else:
                for title, below in one.items():
                    yield from pages(below, section or title)

    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return dict(pages(yaml.safe_load(text[text.index("\nnav:") :])["nav"], ""))


def main() -> int:
    """Print the findings, or the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--list", action="store_true", help="print the pages of the site with their words"
    )
    listed = navigation()
    words = {
        page: len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) for page in listed
    }
    total = sum(words[page] for page, section in listed.items() if section != "Research")
    if parser.parse_args().list:
        for page, section in listed.items():
            print(f"{words[page]:6,}  {section:28}  {page}")
        print(f"{total:6,}  outside of Research, at most {WORDS:,}")
        return 0
    pages = sorted((ROOT / "docs").rglob("*.md"))
    others = [
        *ROOT.glob("*.md"),
        *ROOT.glob("examples/*/README.md"),
        *(ROOT / "autotune").rglob("*.py"),
    ]
    wrong = [one for page in (*sorted(others), *pages) for one in findings(page)]
    names = [str(page.relative_to(ROOT / "docs")) for page in pages]
    wrong += [f"docs/{name}: not in mkdocs.yml" for name in names if name not in listed]
    wrong += [f"the pages outside of Research have {total:,} words, at most {WORDS:,}"] * (
        total > WORDS
    )
    print(
        "\n".join(
            [
                *wrong,
                f"{len(pages)} pages, {total:,} words outside of Research, {len(wrong)} findings",
            ]
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
