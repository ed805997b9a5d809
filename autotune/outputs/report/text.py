"""Pieces of Markdown, and numbers as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.metrics.table import title_of
from autotune.trial import Scalar

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is to be seen first: names and values, as Markdown text."""

    rows: Mapping[str, str]


def printable(text: str) -> str:
    """Text that a file in UTF-8, HTML and XML can hold: control characters and halves of pairs are replaced."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: str = "") -> str:
    """A table; `numbers` holds one letter per column, ``r`` = right-aligned. "" when there are no rows."""
    body = [_row(row) for row in rows]
    if not body:
        return ""
    marks = ["--:" if numbers[i : i + 1] == "r" else "---" for i in range(len(headings))]
    return "\n".join([_row(headings), _row(marks), *body])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("\\|", "|").replace("|", "\\|") for cell in cells) + " |"


def code(text: str) -> str:
    """Inline code; backticks and line breaks inside are no danger."""
    flat = " ".join(text.split()) or " "
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{ticks}{pad}{flat}{pad}{ticks}"


def block(text: str, language: str = "") -> str:
    """A fenced block that nothing inside can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def plain(text: str) -> str:
    """Prose that came from elsewhere: Markdown's signs in it are shown, not obeyed."""
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def number(value: object) -> str:
    """A figure with three or four telling digits; an en dash where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    if isinstance(value, int) or abs(value) >= 100_000:
        return f"{value:,.0f}"
    digits = 4 if 0 < abs(value) < 0.1 else 2 if abs(value) < 10_000 else 1
    return f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A signed percentage, e.g. ``+51.7 %``."""
    return "–" if value is None else f"{value:+.1f} %"


def count(number: int, one: str, several: str) -> str:
    """A count with its noun, e.g. ``1 launch`` or ``2 launches``."""
    return f"{number} {one if number == 1 else several}"


def percents(bounds: tuple[float, float] | None) -> str:
    """An interval of percentages, e.g. ``-1.5 % to +2.3 %``."""
    return "–" if bounds is None else f"{percent(bounds[0])} to {percent(bounds[1])}"


def interval(bounds: tuple[float, float] | None) -> str:
    """An interval of a figure, e.g. ``6,000 to 7,000``; ``–`` where there is none."""
    return "–" if bounds is None else " to ".join(map(number, bounds))


def change(before: object, after: object) -> str:
    """By how many percent a metric changed."""
    if not isinstance(before, int | float) or not isinstance(after, int | float) or not before:
        return "–"
    return percent((after / before - 1) * 100)


def title(metric: str) -> str:
    """A metric's name as people say it, with its unit: ``p99_ttft_ms`` becomes ``P99 TTFT (ms)``."""
    name, unit = title_of(metric)
    return f"{name} ({unit})" if unit else name


def measure(metric: str, value: float) -> str:
    """A figure in a sentence: ``total TPS of 9,100.00 tok/s``."""
    name, unit = title_of(metric)
    name = name if name[1:2].isupper() or name[1:2].isdigit() else name[:1].lower() + name[1:]
    return f"{name} of {number(value)} {unit}".strip()


def scalar(value: Scalar) -> str:
    """A knob's value; None is the engine's own choice."""
    return "engine decides" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def knobs(values: Mapping[str, Scalar]) -> str:
    """``name=value`` of each, as code."""
    return ", ".join(code(f"{name}={scalar(value)}") for name, value in values.items())


def seconds(value: float) -> str:
    """A duration in the largest unit that keeps it readable."""
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def time_left(seconds_left: float) -> str:
    """The time until the budget is spent, in words."""
    return f"at most about {seconds(seconds_left)} left"
