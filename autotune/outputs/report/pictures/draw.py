"""Draws pictures with matplotlib, and says nothing of what they mean: each mark is a group with its name as id."""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Mapping
from io import StringIO
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from autotune.outputs.report.pictures import DARK, LIGHT, PIXELS, Bar, Line, Mark, Panel, Picture, Point
from autotune.outputs.report.text import printable

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "autotune",  # the same file whenever the study is the same
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.edgecolor": LIGHT["soft"],
    "axes.labelcolor": LIGHT["ink"],
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["ink"],
    "ytick.color": LIGHT["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
}
_Style = dict[str, Any]
_INCH = 96
_MANY = 100
_WATERMARK = "watermark"

# It tells of fonts and of folders for its cache, which is nothing to those who tune.
logging.getLogger("matplotlib").setLevel(logging.ERROR)


def svg_of(picture: Picture, watermark: str) -> str:
    """A picture as SVG, as matplotlib writes it.

    Args:
        watermark: stands across it; empty: none.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # whatever the user's own file says
        mpl.rcParams.update(_STYLE)
        # A name in a script that the built-in font lacks: the reader's own font shows it, only its width is a guess.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        columns = min(2, len(picture.panels))
        rows = math.ceil(len(picture.panels) / columns)
        figure = Figure(figsize=(PIXELS / _INCH, rows * picture.height / _INCH), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for axes, panel in zip(places, picture.panels, strict=False):
            _panel(axes, panel)
        for axes in places[len(picture.panels) :]:
            axes.remove()
        if picture.keys:
            _legend(figure, picture.keys)
        if watermark:
            size = 0.9 * 72 * PIXELS / _INCH / len(watermark)
            middle: _Style = {"ha": "center", "va": "center"}
            figure.text(0.53, 0.52, watermark, fontsize=size, alpha=0.1, weight="bold", gid=_WATERMARK, **middle)
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        return text.getvalue()


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_axisbelow(True)
    axes.grid(True, axis="both", color=LIGHT["line"], linewidth=0.6)
    for block in panel.blocks:
        paths = [Path([(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)]) for x, y, w, h in block.rectangles]
        compound = Path.make_compound_path(*paths)
        axes.add_patch(PathPatch(compound, facecolor=LIGHT[block.look], edgecolor="none"))
    for line in panel.lines:
        _line(axes, line)
    for mark in panel.marks:
        _bar(axes, mark) if isinstance(mark, Bar) else _point(axes, mark, 6.5 if len(panel.marks) <= _MANY else 4.0)
    axes.autoscale_view()
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, loc="left")
    _scale(axes, panel)


def _line(axes: Axes, line: Line) -> None:
    style: _Style = {
        "color": LIGHT[line.look],
        "linewidth": 1.2,
        "linestyle": "--" if line.dashed else "-",
        "zorder": 2,
    }
    if len(line.ys) == 1 and not line.xs:
        axes.axhline(line.ys[0], **style)
    elif len(line.xs) == 1 and not line.ys:
        axes.axvline(line.xs[0], **style)
    else:
        axes.plot(line.xs, line.ys, drawstyle="steps-post" if line.stepped else "default", **style)


def _point(axes: Axes, point: Point, size: float) -> None:
    colour = LIGHT[point.look]
    if point.interval is not None:
        across, low, high = point.across, *point.interval
        xs, ys = ((low, high), (point.y, point.y)) if across else ((point.x, point.x), (low, high))
        axes.plot(xs, ys, color=colour, linewidth=1.6, alpha=0.7, zorder=2.5, solid_capstyle="butt")
    thin = point.shape in "x+_|"
    axes.plot(
        [point.x],
        [point.y],
        marker=point.shape,
        color=colour,
        markersize=11.0 if point.shape == "*" else size,
        markeredgewidth=1.6 if thin else 0.0,
        linestyle="none",
        clip_on=False,
        zorder=3,
        gid=point.name,
    )


def _bar(axes: Axes, bar: Bar) -> None:
    clear = bar.look == "clear"
    colour = LIGHT["ink" if clear else bar.look]
    style: _Style = {"facecolor": colour, "alpha": 0.0 if clear else 1.0, "edgecolor": "none", "zorder": 2}
    axes.add_patch(Rectangle((bar.x, bar.y), bar.width, bar.height, gid=bar.name, **style))


def _scale(axes: Axes, panel: Panel) -> None:
    for name, axis, ticks in (("x", axes.xaxis, panel.x_ticks), ("y", axes.yaxis, panel.y_ticks)):
        if ticks:
            axis.set_major_locator(FixedLocator(list(range(len(ticks)))))
            axis.set_major_formatter(FuncFormatter(lambda place, _, ticks=ticks: ticks[round(place)]))
            axis.set_tick_params(length=0)
            axes.set(**{f"{name}lim": (-0.6, len(ticks) - 0.4)})
            continue
        if name in panel.logarithmic:
            (axes.set_xscale if name == "x" else axes.set_yscale)("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
            axis.set_minor_locator(NullLocator())
        else:
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=panel.whole == name))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if panel.y_ticks:
        axes.invert_yaxis()
    elif panel.zero:
        axes.set_ylim(bottom=0)


def _legend(figure: Figure, keys: Mapping[tuple[str, str], str]) -> None:
    handles = [_key(look, shape) for look, shape in keys]
    columns = 3 if max(map(len, keys.values())) > 14 else 5
    space = {"handletextpad": 0.4, "columnspacing": 1.2, "handlelength": 1.4}
    figure.legend(handles, list(keys.values()), loc="outside upper left", ncols=columns, frameon=False, **space)


def _key(look: str, shape: str) -> Line2D:
    style: _Style = {"marker": "none", "linestyle": shape} if shape in ("-", "--") else {"marker": shape}
    return Line2D([], [], **{"color": LIGHT[look], "linestyle": "none", "markersize": 6, "linewidth": 1.4, **style})


_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"#([\w.-]+)")
_FONT = re.compile(r"font: *((?:bold |700 )?)([\d.]+)px [^;]*")


def drawn(picture: Picture, watermark: str) -> Element:
    """A picture as an SVG element for a page: it takes colours and font of the page that it stands in."""
    root = ElementTree.fromstring(printable(svg_of(picture, watermark)))
    _drop(root, "metadata", "style")
    marks = {mark.name: mark for panel in picture.panels for mark in panel.marks}
    _rename(root, picture.name, set(marks))
    speaking = [_speak(element, marks[element.get("id", "")]) for element in root.iter() if element.get("id") in marks]
    for order, element in enumerate(speaking):
        # One stop of the Tab key for a picture; the arrow keys go on from there.
        element.set("tabindex", "-1" if order else "0")
        element.set("id", f"{picture.name}-{element.get('id')}")
    _hush(root)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"role": "group", "aria-label": printable(picture.question), "class": "drawn"})
    return root


def _drop(root: Element, *names: str) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in names and child.get("type") != "none":
                parent.remove(child)


def _rename(root: Element, prefix: str, marks: set[str]) -> None:
    """Give what is referred to names of this picture alone, and what is not none; a mark keeps its name."""
    for element in root.iter():
        style = element.attrib.get("style")
        if style:
            element.set("style", _style(style))
        for name, value in list(element.attrib.items()):
            if name == _HREF:
                del element.attrib[name]
                element.set("href", _REFERENCE.sub(rf"#{prefix}-\1", value))
            elif value.startswith("url("):
                element.set(name, _REFERENCE.sub(rf"#{prefix}-\1", value))
    text = ElementTree.tostring(root, encoding="unicode")
    referred = {match.removeprefix(f"{prefix}-") for match in re.findall(r'(?:href="|url\()#([\w.-]+)', text)}
    for element in root.iter():
        name = element.get("id", "")
        if name in marks:
            continue
        element.attrib.pop("id", None)
        if name in referred:
            element.set("id", f"{prefix}-{name}")
        elif name == "watermark":
            element.set("class", name)


def _style(style: str) -> str:
    """A style whose colours are variables, and whose font is the page's."""
    for look, colour in LIGHT.items():
        style = style.replace(colour, f"var(--{look},{colour})")
    return _FONT.sub(r"font-size: \2px", style)


def _speak(element: Element, mark: Mark) -> Element:
    """Let an element say what it is to pointer, keyboard, screen reader and program."""
    title = Element(f"{{{_SVG}}}title")
    title.text = printable(mark.told)
    element.insert(0, title)
    element.attrib.update({"class": "mark", "role": "img"})
    for name, value in mark.data.items():
        element.set(f"data-{name}", printable(value) if isinstance(value, str) else repr(value))
    return element


def _hush(root: Element) -> None:
    """Keep numbers along the axes from being read out one by one: the picture's own words say what it shows."""
    for element in root.iter(f"{{{_SVG}}}text"):
        element.set("aria-hidden", "true")


def inline(root: Element) -> str:
    """An SVG element within a page."""
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode")


def alone(root: Element) -> str:
    """The same as a file: with a ground of its own, light or dark as the reader's screen is."""
    whole = ElementTree.fromstring(inline(root))
    style = Element(f"{{{_SVG}}}style")
    variables = "".join(f"--{look}:{colour};" for look, colour in DARK.items())
    style.text = (
        "svg{background:#fff;font-family:system-ui,sans-serif}"
        f"@media (prefers-color-scheme:dark){{svg{{background:{DARK['page']};{variables}}}}}"
    )
    whole.insert(0, style)
    whole.set("width", str(PIXELS))
    return ElementTree.tostring(whole, encoding="unicode", xml_declaration=False) + "\n"
