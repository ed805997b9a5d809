"""The rooms of `autotune/`: their size, the imports between them, and the files that know each mode.

    python scripts/house.py             print the figures; exit status 1 where one is above its ceiling
    python scripts/house.py --picture   draw the rooms and the imports between them: docs/house.svg

A room is a module or a package directly under `autotune/`. A mode is a feature that several files
have to know; a file knows it that defines, imports or reads one of its names (`MODES`). Ceilings
stand in `pyproject.toml`, under `[tool.autotune.house]`, and only go down.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import re
import sys
import textwrap
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "house.svg"
FOLDERS = ("autotune", "tests", "scripts", "benchmarks", "examples")
WIDTH, HEIGHT, GAP, MARGIN = 820, 48, 34, 120
"""Pixels of the picture, of a room, between two floors, and beside the rooms."""
INNER = WIDTH - 2 * MARGIN
LONG = 100
"""Characters of a line, beyond which it counts as long."""

MODES: dict[str, tuple[str, ...]] = {
    "accuracy": (
        "accuracy",
        "Accuracy",
        "ACCURACY",
        "AccuracyComparison",
        "Gate",
        "NoAnswers",
        "answers_checked",
        "answers_right",
        "wants_answers",
    ),
    "ladder": (
        "ladder",
        "rung",
        "rung_of",
        "rungs",
        "rungs_of",
    ),
    "load search": (
        # Not `CURVE`: a ladder has rows as well, and their readers do not know which of the two.
        "FoundCapacity",
        "FoundLoad",
        "LoadGoal",
        "LoadSearch",
        "check_search",
        "find_load",
    ),
    "pareto": (
        "FrontPoint",
        "front",
        "pareto",
        "second_value",
        "suggest_front",
    ),
    "price": (
        "COSTS",
        "Rent",
        "gpu_hour_price",
        "price",
        "rent",
    ),
    "promises": (
        "Promised",
        "PromisedValue",
        "give_up",
        "gives_up",
        "promised",
        "promises_kept",
        "promises_of",
    ),
    "random weights": (
        "RANDOM_WEIGHTS",
        "Screen",
        "Screening",
        "by_fidelity",
        "may_screen",
        "node_hours_by_fidelity",
        "random_weights",
        "ranking",
        "ranks_only",
        "reads_weights",
        "screen",
        "screen_of",
        "screened",
        "screening",
        "with_random_weights",
        "without_ranks",
    ),
    # Without the attention replicas of one server (`Replica`, `joined_replicas`), another mode: data
    # parallelism, which one server has by itself.
    "several servers": (
        "BALANCING",
        "Fleet",
        "Replicas",
        "balancing",
        "fleet",
        "numbers_of",
        "port_of_gpus",
        "replicas",
        "replicas_of",
        "servers",
        "gpu_settings_of_servers",
    ),
    "unseen prompts": (
        "FACTS",
        "PROMPTS",
        "SEEDS_OF_FINALS",
        "SENT",
        "divided",
        "final_workload",
        "finals_send_others",
        "sent_finals_prompts",
    ),
}
"""The names of each mode: definitions, imports, attributes, parameters and keywords."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def names_in(text: str) -> set[str]:
    """Return the names that a module defines, imports, reads or passes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.alias(name=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found


def known_in(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """List the files that know each mode.

    Args:
        sources: the text of each file, by its path.
    """
    names = {path: names_in(text) for path, text in sources.items()}
    return {
        mode: [path for path, known in names.items() if known.intersection(of_mode)]
        for mode, of_mode in MODES.items()
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


def room_of(path: str) -> str:
    """Return the room of a file: ``load`` for ``autotune/load/client/stream.py``."""
    return path.split("/")[1].removesuffix(".py")


def arrows_of(sources: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Count the names that each room imports from each other one: ``{("run", "tuner"): 12, …}``.

    `autotune/__main__.py`, the entry point, is no room.
    """
    arrows: dict[tuple[str, str], int] = {}
    sources = {path: text for path, text in sources.items() if not room_of(path).startswith("__")}
    rooms = {room_of(path) for path in sources}
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or node.level:
                # A relative import stays in its folder.
                continue
            root, *below = (node.module or "").split(".")
            for alias in node.names if root == "autotune" else ():
                target = (below or [alias.name])[0]
                if target in rooms and target != room_of(path):
                    pair = (room_of(path), target)
                    arrows[pair] = arrows.get(pair, 0) + 1
    return arrows


def floors_of(rooms: list[str], arrows: Mapping[tuple[str, str], int]) -> list[list[str]]:
    """Sort rooms into floors, from the top: each imports only from floors below its own.

    Raises:
        ValueError: rooms import from each other in a circle.
    """
    floors: list[list[str]] = []
    left = list(rooms)
    while left:
        on_top = [room for room in left if not any((other, room) in arrows for other in left)]
        if not on_top:
            raise ValueError(f"a circle of imports among the rooms {', '.join(left)}")
        floors.append(on_top)
        left = [room for room in left if room not in on_top]
    return floors


def purpose_of(sources: Mapping[str, str], room: str) -> str:
    """Return the first sentence of a room's docstring."""
    folder = f"autotune/{room}"
    text = sources.get(f"{folder}/__init__.py") or sources[f"{folder}.py"]
    paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    return re.split(r"[.:;](?:\s|$)", " ".join(paragraph.split()))[0]


@dataclass(frozen=True)
class Box:
    """A room's place in the picture; in pixels, `floor` counted from the top."""

    room: str
    floor: int
    left: float
    width: float

    @property
    def top(self) -> int:
        return 20 + self.floor * (HEIGHT + GAP)

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def side(self) -> str:
        """Return ``left`` or ``right`` for a room with one outer edge; empty for a whole floor."""
        if self.width == INNER:
            return ""
        return "left" if self.left == MARGIN else "right"

    def drawn(self, purpose: str) -> str:
        """Draw the room with its name and purpose."""
        middle = self.left + self.width / 2
        lines = textwrap.wrap(purpose, int(self.width / 6.4), max_lines=2, placeholder=" …")
        texts = [
            f'<text x="{middle:.0f}" y="{self.top + 29 + 12 * number}" text-anchor="middle" '
            f'font-size="10.5" fill="#33475f">{escape(line)}</text>'
            for number, line in enumerate(lines)
        ]
        return (
            f'<rect x="{self.left:.0f}" y="{self.top}" width="{self.width:.0f}" '
            f'height="{HEIGHT}" rx="6" fill="#eef3f9" stroke="#38557a"/>'
            f'<text x="{middle:.0f}" y="{self.top + 15}" text-anchor="middle" font-size="13" '
            f'font-weight="bold" fill="#16283f">{escape(self.room)}</text>{"".join(texts)}'
        )


def _arrow(source: Box, target: Box, usual_side: str) -> str:
    """Draw an arrow: straight to the next floor, else beside the rooms."""
    depth = target.floor - source.floor
    if depth == 1:
        x = (max(source.left, target.left) + min(source.right, target.right)) / 2
        path = f"M{x:.0f},{source.top + HEIGHT} L{x:.0f},{target.top - 2}"
    else:
        side = target.side or source.side or usual_side
        ends = (source.left, target.left - 2)
        bend = MARGIN - 4 - 14 * depth
        if side == "right":
            ends = (source.right, target.right + 2)
            bend = WIDTH - bend
        begin, end = source.top + 16, target.top + 30
        path = f"M{ends[0]:.0f},{begin} C{bend},{begin} {bend},{end} {ends[1]:.0f},{end}"
    return (
        f'<path d="{path}" fill="none" stroke="#68788c" stroke-width="1.1" opacity="0.75" '
        f'marker-end="url(#head)"><title>{source.room} imports from {target.room}</title></path>'
    )


def picture_of(sources: Mapping[str, str]) -> str:
    """Draw rooms, floor above floor, and an arrow for each pair of which one imports from the
    other: SVG."""
    arrows = arrows_of(sources)
    rooms = sorted({room for pair in arrows for room in pair})
    floors = floors_of(rooms, arrows)
    boxes: dict[str, Box] = {}
    for floor, on_it in enumerate(floors):
        width = (INNER - 20 * (len(on_it) - 1)) / len(on_it)
        for place, room in enumerate(on_it):
            boxes[room] = Box(room, floor, MARGIN + place * (width + 20), width)
    height = len(floors) * (HEIGHT + GAP) + 10
    sides = itertools.cycle(("left", "right"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#68788c"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *(_arrow(boxes[a], boxes[b], next(sides)) for a, b in sorted(arrows)),
            *(box.drawn(purpose_of(sources, room)) for room, box in boxes.items()),
            "</svg>",
            "",
        ]
    )


def measure(sources: Mapping[str, str]) -> dict[str, Any]:
    """Count everything that has a ceiling.

    Args:
        sources: the text of each Python file of the repository, by its path.

    Returns:
        ``tokens`` and ``modes``, each a mapping; ``long_lines_percent`` of `autotune/`; the lines
        of the longest file anywhere.
    """
    package = {path: text for path, text in sources.items() if path.startswith("autotune/")}
    tokens = {"tests": 0, "autotune": 0}
    for path, text in sources.items():
        if path.startswith("tests/"):
            tokens["tests"] += tokens_of(text)
    for path, text in package.items():
        size = tokens_of(text)
        tokens["autotune"] += size
        if not room_of(path).startswith("__"):
            tokens[room_of(path)] = tokens.get(room_of(path), 0) + size
    lines = [line for text in package.values() for line in text.splitlines()]
    long = sum(len(line) > LONG for line in lines)
    return {
        "tokens": tokens,
        "modes": {mode: len(paths) for mode, paths in known_in(package).items()},
        "long_lines_percent": round(100 * long / max(1, len(lines)), 2),
        "lines_of_a_file": max(text.count("\n") for text in sources.values()),
    }


def above(figures: Mapping[str, Any], ceilings: Mapping[str, Any], where: str = "") -> list[str]:
    """Say which figure is above its ceiling; a figure without a ceiling, and a ceiling without a
    figure, are errors.

    Raises:
        ValueError: figures and ceilings have other names.
    """
    if figures.keys() != ceilings.keys():
        raise ValueError(
            f"[tool.autotune.house{where}] has {sorted(ceilings)}, and {sorted(figures)} are measured"
        )
    found: list[str] = []
    for name, figure in figures.items():
        if isinstance(figure, Mapping):
            found += above(figure, ceilings[name], f"{where}.{name}")
        elif figure > ceilings[name]:
            found.append(f"{where}.{name}: {figure} > {ceilings[name]}".lstrip("."))
    return found


def read_sources() -> dict[str, str]:
    """Read every Python file of the repository."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def main() -> int:
    """Print all figures, or draw the picture; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--picture", action="store_true", help=f"write {PICTURE.relative_to(ROOT)}")
    sources = read_sources()
    package = {path: text for path, text in sources.items() if path.startswith("autotune/")}
    if parser.parse_args().picture:
        PICTURE.write_text(picture_of(package))
        return 0
    with (ROOT / "pyproject.toml").open("rb") as file:
        ceilings: dict[str, Any] = tomllib.load(file)["tool"]["autotune"]["house"]
    figures = measure(sources)
    for mode, paths in known_in(package).items():
        print(f"{mode}: {len(paths)} of at most {ceilings['modes'].get(mode)} files")
        print("".join(f"  {path}\n" for path in paths), end="")
    arrows = arrows_of(package)
    rooms = sorted({room for pair in arrows for room in pair})
    floors = floors_of(rooms, arrows)
    print(f"{len(rooms)} rooms on {len(floors)} floors, {len(arrows)} arrows, none of them up:")
    for floor in floors:
        below = {target for source, target in arrows if source in floor}
        print(f"  {', '.join(floor)} -> {', '.join(sorted(below)) or '-'}")
    for room, tokens in figures["tokens"].items():
        print(f"{room}: {tokens:,} of at most {ceilings['tokens'].get(room, 0):,} tokens of code")
    print(f"lines over {LONG} characters: {figures['long_lines_percent']} % of autotune/")
    print(f"longest file: {figures['lines_of_a_file']} lines")
    found = above(figures, ceilings)
    for line in found:
        print(f"above its ceiling (pyproject.toml, [tool.autotune.house]): {line}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
