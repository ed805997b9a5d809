"""Draws what `endurance.py` measured: what a tuner takes, against its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_PANELS = {
    "memory_mb": "tuner's memory, MB",
    "descriptors": "tuner's descriptors",
    "threads": "tuner's threads",
    "processes": "other processes",
    "disk_mb": "disk of the home folder, MB",
    "cpu_s": "tuner's CPU, s",
}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_POINTS = 150
"""Of a series, about."""


@dataclass(frozen=True)
class Series:
    """One study.

    Attributes:
        load: of the machine over the last quarter of an hour when it ended, processes.
        samples: by the names of `endurance.Sample`.
    """

    title: str
    load: float
    samples: Sequence[Mapping[str, float]]


def _panel(axes: Axes, every: Sequence[Series], name: str) -> None:
    for series, colour in zip(every, _COLOURS, strict=False):
        thinned = [*series.samples[:: max(1, len(series.samples) // _POINTS)], series.samples[-1]]
        at, values = [one["launches"] for one in thinned], [one[name] for one in thinned]
        axes.plot(at, values, color=colour, linewidth=1.3, label=series.title)
    axes.set_title(_PANELS[name], fontsize=9.5, loc="left")
    axes.set_ylim(0, 1.15 * max(one[name] for series in every for one in series.samples))
    axes.set_xlim(0)
    axes.grid(color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)


def draw(every: Sequence[Series], path: Path) -> None:
    """One panel per figure, all from zero."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "autotune"}):
        figure = Figure(figsize=(9.5, 5.4), layout="constrained")
        fields = list(figure.subplots(2, 3).flat)
        for name, axes in zip(_PANELS, fields, strict=True):
            _panel(axes, every, name)
        figure.supxlabel("launches", fontsize=10)
        lines, labels = fields[0].get_legend_handles_labels()
        figure.legend(
            lines, labels, loc="outside upper left", frameon=False, fontsize=9, ncols=len(every)
        )
        figure.savefig(path, format="svg", metadata={"Date": None})
    print(f"wrote {path}, {path.stat().st_size / 1000:.0f} kB")
