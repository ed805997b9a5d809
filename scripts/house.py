"""The size of `autotune/` and the files that know each mode, against ceilings that only go down.

    python scripts/house.py

A mode is a feature that several files have to know. Ceilings stand in `pyproject.toml`, under
`[tool.autotune.house]`. Prints every figure, and ends with exit status 1 where one is above its
ceiling.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODES = {
    "accuracy": r"accuracy",
    "ladder": r"ladder",
    "load_search": r"find_load",
    "pareto": r"pareto",
    "price": r"price",
    "backends": r"\b(?:spec|options)\.on\b",
}
"""The pattern of the source line by which a file knows a mode."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
FOLDERS = ("autotune", "tests", "scripts", "benchmarks", "examples")


def known_in(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """List the files that know each mode.

    Args:
        sources: the text of each file, by its path.
    """
    return {
        mode: [path for path, text in sources.items() if re.search(MODES[mode], text)]
        for mode in MODES
    }


def tokens_of(text: str) -> int:
    """Count the tokens of a file's code: no comments, docstrings, newlines or indents, so that air
    costs nothing."""
    return sum(len(statement) for statement in _statements(text) if not _is_a_docstring(statement))


def _statements(text: str) -> Iterator[list[tokenize.TokenInfo]]:
    """List the tokens of each logical line."""
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            statement.append(token)
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER) and statement:
            yield statement
            statement = []


def _is_a_docstring(statement: list[tokenize.TokenInfo]) -> bool:
    """Return whether a logical line is nothing but strings: that of a module, class, function or
    constant."""
    return all(token.type == tokenize.STRING for token in statement)


def measure(sources: Mapping[str, str], longest_anywhere: int) -> dict[str, int]:
    """Count what has a ceiling: tokens of the package, files of each mode, lines of the longest
    file."""
    known = {mode: len(paths) for mode, paths in known_in(sources).items()}
    return {
        "tokens": sum(map(tokens_of, sources.values())),
        **known,
        "lines_of_a_file": longest_anywhere,
    }


def above(figures: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """Say which figure is above its ceiling; a figure without a ceiling, and a ceiling without a
    figure, are errors.

    Raises:
        ValueError: figures and ceilings have other names.
    """
    if figures.keys() != ceilings.keys():
        raise ValueError(
            f"[tool.autotune.house] has {sorted(ceilings)}, and {sorted(figures)} are measured"
        )
    return [
        f"{name}: {figures[name]} > {ceilings[name]}"
        for name in figures
        if figures[name] > ceilings[name]
    ]


def main() -> int:
    """Print all figures; return the exit status."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        ceilings: dict[str, int] = tomllib.load(file)["tool"]["autotune"]["house"]
    read = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    longest = max(read, key=lambda path: read[path].count("\n"))
    sources = {path: text for path, text in read.items() if path.startswith("autotune/")}
    figures = measure(sources, read[longest].count("\n"))
    for mode, paths in known_in(sources).items():
        print(f"{mode} ({MODES[mode]}): {figures[mode]} of at most {ceilings.get(mode)} files")
        print("".join(f"  {path}\n" for path in paths), end="")
    print(
        f"autotune/: {figures['tokens']} of at most {ceilings.get('tokens')} tokens of code, in {len(sources)} files"
    )
    print(
        f"longest file: {longest}, {figures['lines_of_a_file']} of at most {ceilings.get('lines_of_a_file')} lines"
    )
    found = above(figures, ceilings)
    for line in found:
        print(f"above its ceiling (pyproject.toml, [tool.autotune.house]): {line}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
