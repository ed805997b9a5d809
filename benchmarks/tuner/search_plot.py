"""Draws what `search.py` found: the best that was visited, by launches. Needs matplotlib, which
comes with MLflow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLUMNS = 4
_COLOURS = {
    "ours": "#0072b2",
    "ours-no-prior": "#56b4e9",
    "ours-bare": "#0072b2",
    "ours-bare-no-prior": "#56b4e9",
    "tpe": "#d55e00",
    "gp": "#cc79a7",
    "random": "#888888",
    "one-factor": "#009e73",
}


def _best_so_far(runs: Sequence[Mapping[str, Any]], launches: int) -> np.ndarray:
    """Shape ``(runs, launches)``: the quality of the best visited; a run that ended keeps its
    last."""
    table = []
    for run in runs:
        found = np.maximum.accumulate(np.array(run["qualities"][:launches]))
        table.append(np.pad(found, (0, launches - len(found)), mode="edge"))
    return np.array(table)


def _panel(axes: Axes, told: Mapping[str, Any], name: str, launches: int) -> None:
    at = np.arange(1, launches + 1)
    for sampler, colour in _COLOURS.items():
        runs = [
            run for run in told["runs"] if run["landscape"] == name and run["sampler"] == sampler
        ]
        if not runs:
            continue
        low, middle, high = np.quantile(_best_so_far(runs, launches), (0.25, 0.5, 0.75), axis=0)
        style = "--" if "bare" in sampler else "-"
        axes.fill_between(at, 100 * low, 100 * high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(at, 100 * middle, style, color=colour, linewidth=1.8, label=sampler)
    axes.axhline(98, color="#bbbbbb", linewidth=0.8, zorder=0)
    axes.set_title(name, fontsize=9.5, loc="left")
    axes.set_ylim(20, 101)
    axes.set_xlim(1, launches)
    axes.grid(color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)


def draw(told: Mapping[str, Any], path: Path) -> None:
    """One panel per landscape, with one scale."""
    names, launches = list(told["landscapes"]), max(told["budgets"])
    rows = math.ceil((len(names) + 1) / _COLUMNS)
    figure = Figure(figsize=(2.9 * _COLUMNS, 2.2 * rows + 0.6))
    fields = list(figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True).flat)
    for name, axes in zip(names, fields, strict=False):
        _panel(axes, told, name, launches)
    for axes in fields[len(names) :]:
        axes.axis("off")
    lines: dict[str, Any] = {}
    for axes in fields[: len(names)]:
        lines |= {
            label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
    fields[len(names)].legend(lines.values(), lines, loc="upper left", frameon=False, fontsize=9)
    figure.supxlabel("launches, the baseline included", fontsize=10)
    figure.supylabel("best visited, % of the best there is", fontsize=10)
    figure.suptitle("Median and quartiles over seeds; the grey line is 98 %", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": "autotune, benchmarks/tuner/search.py"})
    print(f"wrote {path}, {path.stat().st_size / 1000:.0f} kB")
