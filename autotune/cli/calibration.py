"""``autotune calibrate``: fit the simulator's coefficients to measurements."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import BadInput
from autotune.base.files import write_atomically
from autotune.load.metrics.table import HEADLINE
from autotune.node.calibration import packaged_calibration, read_calibration
from autotune.node.fit.calibrate import Predicted, fitted_calibration, predicted_by
from autotune.node.fit.reading import MeasuredPoint, Reading, points_of, shape
from autotune.node.fit.report import error_lines, errors, ranking_lines, rankings, table
from autotune.tuner.study.home import Home, calibration_of_home
from autotune.tuner.study.measured import read
from autotune.tuner.study.options import CalibrateOptions

from .shared import answer, say

_SEEN = "the shipped figures have seen published rows: only --from physics leaves such a row out of all figures"
_HEADING = "# Written by `autotune calibrate`; the next calibration overwrites it.\n"
_MARK = 32  # Characters of the heading that name its writer


def calibrate(asked: CalibrateOptions, home: Path, as_json: bool) -> None:
    """``autotune calibrate``."""
    if asked.compare and (asked.output is not None or asked.cross_validate):
        raise BadInput("--compare neither fits nor writes: remove -o and --cross-validate")
    path = None if asked.compare else _output(asked, home)
    reading = read(asked.files, asked.studies, Home(home), allow_unmeasured=asked.allow_unmeasured)
    points = points_of(reading.rows)
    for line in (
        *_told(reading, points),
        *([_SEEN] if asked.cross_validate and asked.start == "shipped" else ()),
    ):
        say(line)
    if path is None:
        own = calibration_of_home(None, home)
        predictions = predicted_by(
            points, packaged_calibration() if own is None else read_calibration(own)
        )
    else:
        calibration, predictions = fitted_calibration(
            points, start=asked.start, cross_validate=asked.cross_validate, progress=say
        )
        text = yaml.safe_dump(calibration.model_dump(mode="json"), sort_keys=False, width=120)
        _write(path, f"{_HEADING}{text}")
    summary, order = errors(points, predictions), rankings(points, predictions)
    wrote = {"wrote": None if path is None else str(path), "read": _read_json(reading, points)}
    predicted = _predictions_json(points, predictions)
    lines = ["", table(points, predictions), ""]
    lines += [f"- {line}" for line in (*error_lines(summary), *ranking_lines(order))]
    lines += [] if path is None else ["", f"wrote {path}"]
    answer(as_json, {**wrote, "errors": summary, **order, "predictions": predicted}, lines)


def _output(asked: CalibrateOptions, home: Path) -> Path:
    """Return the output file, checked before the fit."""
    path = asked.output or Home(home).calibration
    if asked.output is not None and not path.parent.is_dir():
        raise BadInput(f"-o {path}: folder {path.parent} does not exist")
    if (
        asked.output is None
        and path.is_file()
        and not path.read_bytes().startswith(_HEADING[:_MARK].encode())
    ):
        raise BadInput(
            f"{path} was not written by `autotune calibrate`: move it away, or choose another file with -o"
        )
    folder = next(folder for folder in path.parents if folder.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BadInput(f"{path}: not writable; choose another file with -o")
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise BadInput(
            f"{path}: not writable ({error.strerror}); choose another file with -o"
        ) from error


def _told(reading: Reading, points: Sequence[MeasuredPoint]) -> list[str]:
    """Summarise the read measurements in words."""
    rows = reading.rows
    lines = [
        f"{len(rows)} rows, {sum(row.failure is not None for row in rows)} of them failures: {len(points)} points"
    ]
    for what, counts in _counts(points).items():
        lines.append(
            f"  by {what}: " + ", ".join(f"{name} {count}" for name, count in counts.items())
        )
    several = [point for point in points if len(point.members) > 1]
    lines += [
        f"  {p.label} are one configuration, measured {math.expm1(p.spread):.0%} apart"
        for p in several
    ]
    for row in rows:
        if row.deductions:
            lines.append(
                f"  {row.label} ({row.source}) has the weight {row.weight:.2f}: {'; '.join(row.deductions)}"
            )
    return [
        *lines,
        *(f"  left out {one.label} ({one.source}): {one.reason}" for one in reading.left_out),
    ]


def _counts(points: Sequence[MeasuredPoint]) -> dict[str, Counter[str]]:
    return {
        "engine": Counter(point.engine for point in points),
        "GPU": Counter(point.gpu for point in points),
        "workload": Counter(shape(point.workload) for point in points),
    }


def _read_json(reading: Reading, points: Sequence[MeasuredPoint]) -> Mapping[str, Any]:
    rows, several = reading.rows, [point for point in points if len(point.members) > 1]
    return {
        "rows": len(rows),
        "points": len(points),
        **{what.lower(): dict(counts) for what, counts in _counts(points).items()},
        "twins": [{"label": point.label, "spread": math.expm1(point.spread)} for point in several],
        "weights": [
            {"label": r.label, "weight": r.weight, "notes": list(r.deductions)}
            for r in rows
            if r.deductions
        ],
        "cold": [
            {"label": row.label, "silent_s": row.cold_start_s} for row in rows if row.cold_start_s
        ],
        "left_out": [asdict(one) for one in reading.left_out],
    }


def _predictions_json(
    points: Sequence[MeasuredPoint], predictions: Sequence[Predicted]
) -> list[Mapping[str, Any]]:
    return [
        {
            "label": point.label,
            "measured": point.metrics.get(HEADLINE),
            "predicted": predicted.throughput if predicted.failure is None else None,
            "interval90": [_finite(predicted.low), _finite(predicted.high)]
            if predicted.failure is None
            else None,
            "failure": {"measured": point.failure, "predicted": predicted.failure},
            "left_out": dict(predicted.left_out),
        }
        for point, predicted in zip(points, predictions, strict=True)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
