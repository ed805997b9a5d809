"""The pictures of a report: what each shows, as values.

    launches, outcome   functions of a study that make a `Picture`, or None where there is nothing to see
    draw                draws one with matplotlib, and makes it readable: titles, keyboard, values, colours that follow
                        the page; imported when a report is written, as matplotlib takes a second

The marks carry the figures as they stand in ``results.jsonl``, so that a program can read them back from the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.outputs.report.text import Facts

PIXELS = 560
"""Width of every picture, CSS pixels at its natural size."""


Values = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something in a picture that can be pointed at, or reached with the keyboard.

    Attributes:
        name: unique within its picture.
        told: what is said of it then; lines are kept.
        data: its values, unrounded, for programs.
        look: its colour, a key of `colours.LIGHT`.
    """

    name: str
    told: str
    data: Values
    look: str


@dataclass(frozen=True, slots=True)
class Point(Mark):
    """A point, with the ends of an interval where it has one.

    Attributes:
        shape: matplotlib's letter of a marker.
        across: the interval is one of x, not of y.
    """

    x: float
    y: float
    shape: str = "o"
    interval: tuple[float, float] | None = None
    across: bool = False


@dataclass(frozen=True, slots=True)
class Bar(Mark):
    """A rectangle; one with the look ``clear`` is there to be pointed at only."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, or steps that keep a value until the next one.

    With one y and no x, or one x and no y, it goes through the whole picture.
    """

    xs: Sequence[float]
    ys: Sequence[float]
    look: str
    stepped: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Many rectangles of one look that are nothing by themselves; each is x, y, width, height."""

    rectangles: Sequence[tuple[float, float, float, float]]
    look: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        ticks: names of the places 0, 1, 2 … on the axis ``x`` or ``y``.
        logarithmic: which axes are: ``x``, ``y``, ``xy``.
        whole: the axis that counts, whose numbers are whole.
        zero: whether y begins at 0.
    """

    x_label: str
    y_label: str
    title: str = ""
    marks: Sequence[Point | Bar] = ()
    lines: Sequence[Line] = ()
    blocks: Sequence[Block] = ()
    x_ticks: Sequence[str] = ()
    y_ticks: Sequence[str] = ()
    logarithmic: str = ""
    whole: str = ""
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that answers one question.

    Attributes:
        name: of its file, without ``.svg``.
        question: that it answers.
        told: the answer, in a sentence or two (Markdown).
        panels: from left to right, two in a row.
        keys: what the looks stand for, look and shape to words: the legend.
        height: of a row, CSS pixels.
    """

    name: str
    question: str
    told: str
    panels: Sequence[Panel]
    keys: Mapping[tuple[str, str], str] = field(default_factory=dict)
    height: int = 320


Part = str | Facts | Picture
"""Of a report's section: a paragraph, list, table or block in Markdown; figures to be seen first; a picture."""


def figure(value: object) -> float | None:
    """A metric as a finite number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


LIGHT = {
    "page": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#6a737d",
    "line": "#d0d7de",
    "band": "#eef1f4",
    "baseline": "#59636f",
    "chosen": "#0a5bb5",
    "bad": "#b3261e",
    "first": "#0072b3",
    "second": "#c14f00",
    "third": "#007a5a",
    "fourth": "#a8487f",
    "fifth": "#8a6d00",
}
"""The colours of page and pictures, by what they are for; a drawn picture has them as marks."""
DARK = {
    "page": "#101418",
    "ink": "#e4e8ec",
    "soft": "#98a2ad",
    "line": "#313a44",
    "band": "#1c2229",
    "baseline": "#a9b4c0",
    "chosen": "#6cb0ff",
    "bad": "#ff8a80",
    "first": "#56b4e9",
    "second": "#ff9e57",
    "third": "#3ccf9f",
    "fourth": "#e795c0",
    "fifth": "#e0c04a",
}
