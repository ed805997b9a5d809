"""Draws a study: every launch in its order, the best so far, and the finals.

    python scripts/draw_study.py STUDY_FOLDER --out docs/main-job.svg

Reads ``recommendation.json`` and ``results.jsonl``. The evidence stands in the title.
Needs matplotlib, which comes with MLflow.
"""

from __future__ import annotations

import argparse
import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

_COLOURS = {"vllm": "#0072b2", "sglang": "#d55e00", "tensorrt_llm": "#009e73"}


def draw(folder: Path, out: Path) -> None:
    """Write the picture of the study in a folder."""
    outcome = json.loads((folder / "recommendation.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    rows.sort(key=lambda row: row["number"])
    metric, workload = outcome["objective"]["metric"], outcome["objective"]["workload"]
    # The same file whenever the study is the same.
    mpl.rcParams["svg.hashsalt"] = "autotune"
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    values = [row["metrics"].get(workload, {}).get(metric) for row in rows]
    for engine, colour in _COLOURS.items():
        for final, marker in ((False, "o"), (True, "D")):
            points = [
                (row["number"] + 1, value)
                for row, value in zip(rows, values, strict=True)
                if value and row["engine"] == engine and (row["role"] == "final") is final
            ]
            if points:
                label = f"{engine}, finals" if final else engine
                axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, s=28, label=label, zorder=3)
    failed = [row["number"] + 1 for row, value in zip(rows, values, strict=True) if not value]
    axes.scatter(failed, [0] * len(failed), color="#555555", marker="x", s=28, label="failed", zorder=3)
    searched = [0.0 if row["role"] == "final" else value or 0.0 for row, value in zip(rows, values, strict=True)]
    axes.step([row["number"] + 1 for row in rows], list(accumulate(searched, max)), where="post", color="#999999")
    axes.axhline(outcome["objective"]["value"], color="#333333", linestyle=":", linewidth=1)
    axes.set(xlabel="launch", ylabel=metric.replace("_", " ") + ", tok/s", ylim=(-300, None), title=_title(outcome))
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, metadata={"Date": None})


def _title(outcome: dict[str, Any]) -> str:
    node = f"{outcome['hardware']['gpus']}×{outcome['hardware']['name']}"
    gain = "" if outcome["gain_percent"] is None else f", {outcome['gain_percent']:+.1f} % over the baseline"
    return f"{outcome['evidence'].upper()}: {outcome['model']} on {node}{gain}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/main-job.svg"))
    arguments = parser.parse_args()
    draw(arguments.folder, arguments.out)
