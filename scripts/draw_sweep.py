"""Draws the simulator's prediction over the measured concurrency sweep.

    python scripts/draw_sweep.py --data FILE [--out docs/concurrency-sweep.png]

--data is the table that ``scripts/calibration_table.py`` makes of dstackai/benchmarks' (Apache-2.0)
Deepseek-R1/raw_data/online_results.csv: DeepSeek-R1, 3200 tokens in and 800 out, total tokens per
second against requests in flight. Each panel is one engine on one kind of GPU, simulated as the
version that was measured, with the prediction's 90 % interval. Needs matplotlib, which comes with
MLflow.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autotune.engines.library import Library
from autotune.load.workloads import Workload
from autotune.node.calibration import ServerSetup
from autotune.node.fit.reading import MeasuredPoint, points_of, read_file
from autotune.node.prediction_intervals import intervals
from autotune.node.simulate import simulate

_SEED = 0
_MEASURED = (4, 8, 16, 32, 64, 128)
_CURVE = (4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128)
_COLOURS = {"vllm": "#0072b2", "sglang": "#d55e00", "tensorrt_llm": "#009e73"}
_PANELS = (
    ("h200", "vllm"),
    ("h200", "sglang"),
    ("h200", "tensorrt_llm"),
    ("mi300x", "vllm"),
    ("mi300x", "sglang"),
)
_SOURCE = (
    "Measured: dstackai/benchmarks (Apache-2.0), Deepseek-R1/raw_data/online_results.csv, engines of early 2025. "
    "The simulator's figures are fitted to these points, among others."
)


def _simulated(setup: ServerSetup, workload: Workload) -> tuple[float, float, float]:
    """Total tokens per second, and the ends of the 90 % interval."""
    outcome = simulate(setup, workload, _SEED)
    if outcome.failure is not None:
        raise SystemExit(f"{setup.engine} {setup.version}: {outcome.failure.message}")
    low, high = intervals(setup, workload, outcome.metrics)["interval90"]
    return float(outcome.metrics["total_token_throughput"]), low, high


def _panel(axes: Axes, points: list[MeasuredPoint], library: Library) -> None:
    """One engine on one kind of GPU."""
    setup, workload = points[0].resolved.setup, points[0].workload
    measured = {
        point.workload.points[0].arrival.concurrency or 0: point.measured for point in points
    }
    loads = sorted({*_CURVE, *measured})
    curve = {load: _simulated(setup, workload.with_concurrency(load)) for load in loads}
    predicted, low, high = zip(*curve.values(), strict=True)
    colour = _COLOURS[setup.engine]
    axes.fill_between(loads, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(loads, predicted, color=colour, linewidth=2)
    axes.plot(list(measured), list(measured.values()), "o", color="black", markersize=5, zorder=3)
    off = median(abs(curve[load][0] / value - 1) for load, value in measured.items())
    inside = sum(curve[load][1] <= value <= curve[load][2] for load, value in measured.items())
    name = f"{library.engine(setup.engine).title} {setup.version.partition('+')[0]}"
    axes.set_title(f"{name}, 8×{setup.hardware.name.upper()}", fontsize=9.5, loc="left")
    told = f"median error {off:.0%}\n{inside} of {len(measured)} within the interval"
    axes.text(0.04, 0.95, told, transform=axes.transAxes, va="top", fontsize=8)


def _axes(axes: Axes, top: float) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(_MEASURED, [str(concurrency) for concurrency in _MEASURED])
    axes.minorticks_off()
    axes.set_ylim(0, top)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)


def _key(axes: Axes) -> None:
    """The sixth field says what is drawn."""
    axes.axis("off")
    axes.plot([], [], color="#555555", linewidth=2, label="simulated")
    axes.fill_between(
        [], [], color="#555555", alpha=0.15, linewidth=0, label="simulated, 90 % interval"
    )
    axes.plot([], [], "o", color="black", markersize=5, label="measured")
    axes.legend(loc="upper left", frameon=False, fontsize=10)


def draw(points: list[MeasuredPoint]) -> Figure:
    """Five panels with one scale."""
    library = Library()
    figure = Figure(figsize=(10, 6.2))
    grid = figure.subplots(2, 3, sharey=True)
    fields = list(grid.flat)
    top = 1.45 * max(point.measured for point in points)
    for panel, axes in zip(_PANELS, fields, strict=False):
        _panel(axes, [point for point in points if (point.gpu, point.engine) == panel], library)
        _axes(axes, top)
    _key(fields[-1])
    for row in grid:
        row[0].set_ylabel("total tokens per second", fontsize=9)
    for axes in (*grid[1][:2], grid[0][2]):
        axes.set_xlabel("requests in flight", fontsize=9)
    figure.suptitle(
        "DeepSeek-R1, 3200 tokens in, 800 out: simulated curves over measured points", fontsize=12
    )
    figure.text(0.01, 0.01, _SOURCE, fontsize=7.5, color="#555555")
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    return figure


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="table of the measured sweep")
    parser.add_argument("--out", type=Path, default=Path("docs/concurrency-sweep.png"))
    asked = parser.parse_args()
    draw(points_of(read_file(asked.data).rows)).savefig(
        asked.out, dpi=110, metadata={"Software": "autotune, scripts/draw_sweep.py"}
    )
    print(f"wrote {asked.out}, {asked.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
