"""The options that an engine's own ``--help`` shows, as an `OptionTable`.

Two layouts are read, `argparse`'s and `click`'s. What a help text does not tell (types, destinations, constants) comes
from a table of a near version.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from autotune.engines.options import Option, OptionTable

Layout = Literal["argparse", "click"]
LEAST_OPTIONS = 5
"""A text that shows fewer options is no engine's help."""

_HEADER = re.compile(r"  (-{1,2}[A-Za-z].*)")
_DEFAULT = {
    "argparse": re.compile(r"\(default: ([^()]*(?:\([^()]*\)[^()]*)*)\)$"),
    "click": re.compile(r"\[([^][]*)\]$"),
}
_CLICK_TYPES = {"INTEGER": "int", "FLOAT": "float", "BOOLEAN": "bool"}
_FITS: dict[str, tuple[type, ...]] = {"int": (int,), "human_int": (int,), "float": (int, float), "bool": (bool,)}
_HELP = {"-h", "--help"}


@dataclass(frozen=True, slots=True)
class Shown:
    """One entry of a help text.

    Attributes:
        flags: every spelling, ``--no-…`` ones included.
        metavar: what stands for the value; empty: the option takes none.
        text: the explanation, on one line.
    """

    flags: tuple[str, ...]
    metavar: str
    text: str


def parse_help(text: str, layout: Layout, near: OptionTable, version: str) -> OptionTable:
    """The table of the options that a help text shows; raises ``ValueError`` when it shows none to speak of.

    Args:
        near: the table of a near version, which says what the help text does not; its options that the text does not
            show are not taken.
    """
    known = {flag: option for option in near.options for flag in option.flags}
    options: list[Option] = []
    for shown in _entries(text):
        if not _HELP & set(shown.flags):
            before = next((known[flag] for flag in shown.flags if flag in known), None)
            options += _options(shown, layout, before)
    if len(options) < LEAST_OPTIONS:
        raise ValueError(f"a help text with {len(options)} options")
    # Another version may have other keys, and no help text lists them: none is refused.
    keys = near.config_keys if near.version == version else frozenset()
    return OptionTable(near.engine, version, "--help", tuple(options), keys)


def _entries(text: str) -> Iterator[Shown]:
    head, body = "", []
    for line in [*text.splitlines(), "  --end"]:
        header = _HEADER.fullmatch(line.rstrip())
        if header is None:
            body.append(line.strip())
            continue
        if head:
            yield _shown(head, body)
        head, *rest = re.split(r"\s{2,}", header[1], maxsplit=1)
        body = list(rest)


def _shown(head: str, body: Sequence[str]) -> Shown:
    flags: list[str] = []
    metavar = ""
    # `--on / --off` is click's; before Python 3.13 argparse repeats the metavar after each spelling.
    for part in re.split(r",\s+(?=-)|\s+/\s+(?=-)", head):
        flag, _, value = part.partition(" ")
        flags.append(flag)
        metavar = value.strip() or metavar
    # A heading of the next group may stand between; an explanation ends at the first empty line after it.
    words = " ".join(body).strip() if "" not in body[1:] else " ".join(body[: body.index("", 1)])
    return Shown(tuple(flags), metavar, words.strip())


def _options(shown: Shown, layout: Layout, before: Option | None) -> list[Option]:
    long = next((flag for flag in shown.flags if flag.startswith("--")), shown.flags[0])
    dest = before.dest if before else long.lstrip("-").replace("-", "_")
    if not shown.metavar:
        return _switches(shown, layout, dest, before)
    valued = _valued(shown, layout, before)
    return [replace(valued, dest=dest, default=_default(shown, layout, valued.type, before))]


def _switches(shown: Shown, layout: Layout, dest: str, before: Option | None) -> list[Option]:
    """Options without a value: ``--on``, and ``--on, --no-on``."""
    negated = {f"--no-{flag.removeprefix('--')}" for flag in shown.flags if flag.startswith("--")} & set(shown.flags)
    flags = tuple(flag for flag in shown.flags if flag not in negated)
    if negated:
        default = _default(shown, layout, "bool", before)
        return [Option(flags, dest, "boolean_optional", default=default)]
    if before is not None and before.action not in {"store", "append", "boolean_optional"}:
        return [replace(before, flags=flags)]
    return [Option(flags, dest, "store_true")]


def _valued(shown: Shown, layout: Layout, before: Option | None) -> Option:
    if layout == "click":
        kind, choices, nargs = _click_value(shown.metavar)
    else:
        kind, choices, nargs = _argparse_value(shown.metavar)
    if before is not None and before.action in {"store", "append"}:
        kind = before.type
        action, const = before.action, before.const if nargs == "?" else None
    else:
        action, const = "store", None
    typed = _typed(choices, kind)
    if typed is None:
        kind, typed = "str", tuple(choices)
    return Option(shown.flags, "", action, kind, nargs, typed, const)


def _click_value(metavar: str) -> tuple[str, list[str], None]:
    if metavar.startswith("["):
        return "str", metavar[1 : metavar.index("]")].split("|"), None
    return _CLICK_TYPES.get(metavar.split(" ")[0], "str"), [], None


def _argparse_value(metavar: str) -> tuple[str, list[str], str | int | None]:
    """Type, choices and ``nargs`` as `argparse` writes them: ``{a,b}``, ``X [X ...]``, ``[X]``, ``X X``."""
    if metavar.startswith("['"):
        # A list that was given as the metavar: suggestions, other values are taken too.
        return "str", [], None
    optional = metavar.startswith("[") and metavar.endswith("]")
    inner = metavar[1:-1] if optional else metavar
    braced = re.match(r"\{([^{}]*)\}", inner)
    one = braced[0] if braced else inner.split(" ")[0]
    rest = inner[len(one) :].strip()
    nargs = _nargs(rest, one, optional)
    # `{a,b} or a name that is registered`: suggestions again.
    choices = braced[1].split(",") if braced and (nargs is not None or not rest) else []
    kind = "int" if choices and all(re.fullmatch(r"-?\d+", choice) for choice in choices) else "str"
    return kind, choices, nargs


def _nargs(rest: str, one: str, optional: bool) -> str | int | None:
    if rest in ("...", f"[{one} ...]"):
        return "*" if optional else "+"
    if optional:
        return "?"
    words = rest.split()
    return len(words) + 1 if words and set(words) == {one} else None


def _typed(choices: Sequence[str], kind: str) -> tuple[Any, ...] | None:
    """Choices as values of a type; None when one is not of it."""
    convert = {"int": int, "float": float}.get(kind, str)
    try:
        return tuple(None if choice == "None" else convert(choice) for choice in choices)
    except ValueError:
        return None


def _default(shown: Shown, layout: Layout, kind: str, before: Option | None) -> Any:
    """The default that the text tells, else the near version's."""
    kept = before.default if before else None
    told = _told_default(shown.text, layout)
    if told in (None, str(kept), "set()"):
        return kept
    if kind == "str" and told != "None" and not told.startswith("["):
        return told
    try:
        value = ast.literal_eval(told)
    except (ValueError, SyntaxError):
        return kept
    fits = _FITS.get(kind, (str, list, dict))
    return value if value is None or (isinstance(value, fits) and value not in ([], {})) else kept


def _told_default(text: str, layout: Layout) -> str | None:
    match = _DEFAULT[layout].search(text)
    if match is None or layout == "argparse":
        return match[1] if match else None
    # click: "[env var: X; default: 8000; x>=1]"
    parts = [part.strip() for part in match[1].split(";")]
    return next((part.removeprefix("default: ") for part in parts if part.startswith("default: ")), None)
