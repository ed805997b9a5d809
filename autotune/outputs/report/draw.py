"""Draw pictures with matplotlib, as SVG that takes colours and font from its page."""

import logging
import math
import re
import warnings
from io import StringIO
from string import Template
from xml.sax.saxutils import escape, quoteattr

import matplotlib as mpl
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from autotune.base import Json, beside

from .pictures import DARK, LIGHT, PIXELS, Panel, Picture, Point
from .text import printable

_STYLE = yaml.safe_load(Template(beside(__file__, "draw.yaml")).substitute(LIGHT))
_INCH = 96
_MANY = 100
_WATERMARK = "watermark"
_POINT = "point-"
_SVG = "http://www.w3.org/2000/svg"
_GROUP = re.compile(r'<g id="([^"]*)">')
_UNWANTED = (
    (re.compile(r'<style type="text/css">[^<]*</style>'), ""),  # it would hold for the whole page
    (re.compile(r"font: *(?:\w+ )*([\d.]+)px [^;\"]*"), r"font-size: \1px"),
    (re.compile(r"font-family: [^;\"]*;? ?"), ""),
    (re.compile("xlink:href"), "href"),
)
"""Patterns of matplotlib's output and their substitutes: the page's font, and links as in SVG 2."""

# It tells of fonts and of folders for its cache, which is nothing to those who tune.
logging.getLogger("matplotlib").setLevel(logging.ERROR)


def draw_svg(picture: Picture, watermark: str) -> str:
    """Return a picture as an inline SVG element, with a watermark across it unless the text is
    empty."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # whatever the user's own file says
        # The same file whenever the study is the same; ids that no other picture of the page has.
        mpl.rcParams.update(_STYLE["settings"] | {"svg.hashsalt": picture.name})
        # A name in a script that the built-in font lacks: the reader's own font shows it, only its
        # width is a guess.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        columns = min(2, len(picture.panels))
        rows = math.ceil(len(picture.panels) / columns)
        figure = Figure(
            figsize=(PIXELS / _INCH, rows * picture.height / _INCH), layout="constrained"
        )
        places = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        first = 0
        for axes, panel in zip(places, picture.panels, strict=False):
            _panel(axes, panel, first)
            first += len(panel.points)
        for axes in places[len(picture.panels) :]:
            axes.remove()
        if picture.keys:
            _legend(figure, picture)
        if watermark:
            size = 0.9 * 72 * PIXELS / _INCH / len(watermark)
            figure.text(s=watermark, fontsize=size, gid=_WATERMARK, **_STYLE["watermark"])
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    _, _, body = printable(text.getvalue()).partition("</metadata>")
    for pattern, by in _UNWANTED:
        body = pattern.sub(by, body)
    for look, colour in LIGHT.items():
        body = body.replace(colour, f"var(--{look},{colour})")
    # A point has its title and the watermark its class; other names of matplotlib's are no use.
    titles = (
        escape(printable(point.tooltip)) for panel in picture.panels for point in panel.points
    )
    opened = {
        f"{_POINT}{i}": f'<g class="mark"><title>{title}</title>' for i, title in enumerate(titles)
    }
    opened[_WATERMARK] = f'<g class="{_WATERMARK}">'
    body = _GROUP.sub(lambda group: opened.get(group[1], "<g>"), body)
    view_box = f"{72 * PIXELS / _INCH:g} {72 * rows * picture.height / _INCH:g}"
    label = quoteattr(printable(picture.question))
    return f'<svg xmlns="{_SVG}" viewBox="0 0 {view_box}" class="drawn" role="img" aria-label={label}>{body}'


def _legend(figure: Figure, picture: Picture) -> None:
    handles = []
    for look, shape in picture.keys:
        line, marker = (shape, "") if shape in ("-", "--") else ("none", shape)
        own = {"color": LIGHT[look], "linestyle": line, "marker": marker}
        handles.append(Line2D([], [], **own, **_STYLE["key"]))
    names = list(picture.keys.values())
    columns = 3 if max(map(len, names)) > 14 else 5
    figure.legend(handles, names, loc="outside upper left", ncols=columns)


def _panel(axes: Axes, panel: Panel, first: int) -> None:
    for place in panel.bands:
        axes.axvspan(place - 0.5, place + 0.5, color=LIGHT["band"], linewidth=0)
    for line in panel.lines:
        style: Json = {"color": LIGHT[line.look], "linewidth": 1.2, "zorder": 2}
        style["linestyle"] = "--" if line.dashed else "-"
        if len(line.ys) == 1 and not line.xs:
            axes.axhline(line.ys[0], **style)
        elif len(line.xs) == 1 and not line.ys:
            axes.axvline(line.xs[0], **style)
        else:
            drawstyle = "steps-post" if line.stepped else "default"
            axes.plot(line.xs, line.ys, drawstyle=drawstyle, **style)
    for number, point in enumerate(panel.points, first):
        _point(axes, point, f"{_POINT}{number}", 6.5 if len(panel.points) <= _MANY else 4.0)
    axes.autoscale_view()
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title)
    _scale(axes, panel)


def _point(axes: Axes, point: Point, name: str, size: float) -> None:
    colour = LIGHT[point.look]
    if point.interval:
        across, low, high = point.across, *point.interval
        xs, ys = ((low, high), (point.y, point.y)) if across else ((point.x, point.x), (low, high))
        axes.plot(xs, ys, color=colour, **_STYLE["interval"])
    thin = point.shape in "x+_|"
    axes.plot(
        [point.x],
        [point.y],
        marker=point.shape,
        color=colour,
        markersize=11.0 if point.shape == "*" else size,
        markeredgewidth=1.6 if thin else 0.0,
        gid=name,
        **_STYLE["point"],
    )


def _scale(axes: Axes, panel: Panel) -> None:
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name in panel.logarithmic:
            (axes.set_xscale if name == "x" else axes.set_yscale)("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
            axis.set_minor_locator(NullLocator())
        else:
            axis.set_major_locator(
                MaxNLocator(6, steps=[1, 2, 5, 10], integer=panel.whole and name == "x")
            )
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if ticks := panel.y_ticks:
        axes.yaxis.set_major_locator(FixedLocator(list(range(len(ticks)))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda place, _: ticks[round(place)]))
        axes.yaxis.set_tick_params(length=0)
        axes.set_ylim(len(ticks) - 0.4, -0.6)
    elif panel.zero:
        axes.set_ylim(bottom=0)


def standalone(drawing: str) -> str:
    """Return the picture as a standalone file with its own background, light or dark as the
    reader's screen."""
    variables = "".join(f"--{look}:{colour};" for look, colour in DARK.items())
    style = (
        "svg{background:#fff;font-family:system-ui,sans-serif}"
        f"@media (prefers-color-scheme:dark){{svg{{background:{DARK['page']};{variables}}}}}"
    )
    tag, _, body = drawing.partition(">")
    return f'{tag} width="{PIXELS}"><style>{style}</style>{body}\n'
