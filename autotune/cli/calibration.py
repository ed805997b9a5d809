"""``autotune calibrate``: fit the simulator's coefficients to measurements."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from autotune.base import BadInput, Json, write_atomically
from autotune.load.metrics.table import HEADLINE
from autotune.node.calibration import packaged_calibration, read_calibration
from autotune.node.fit.calibrate import Predicted, fitted_calibration, predicted_by
from autotune.node.fit.reading import SERVER, MeasuredPoint, Reading, model_name, points_of, shape
from autotune.node.fit.report import errors, layout, rankings
from autotune.tuner.study.home import Home, calibration_of_home
from autotune.tuner.study.measured import read
from autotune.tuner.study.options import CalibrateOptions

from .screens import printed
from .shared import answer, say

_SEEN = "the shipped figures have seen published rows: only --from physics leaves such a row out of all figures"
_HEADING = "# Written by `autotune calibrate`; the next calibration overwrites it.\n"
_MARK = 32  # Characters of the heading that name its writer


def calibrate(asked: CalibrateOptions, home: Path, as_json: bool) -> None:
    """``autotune calibrate``."""
    if asked.compare and (asked.output is not None or asked.cross_validate):
        raise BadInput("--compare neither fits nor writes: remove -o and --cross-validate")
    path = None if asked.compare else _output(asked, home)
    server = {name: getattr(asked, name) for name in SERVER}
    reading = read(
        asked.files,
        asked.studies,
        Home(home),
        allow_unmeasured=asked.allow_unmeasured,
        server=server,
    )
    points = points_of(reading.rows)
    say(
        printed(
            "measurements",
            reading=reading,
            points=points,
            counts=_counts(points),
            repeated=_repeated(points),
            expm1=math.expm1,
        )
    )
    if asked.cross_validate and asked.start == "shipped":
        say(_SEEN)
    if path is None:
        own = calibration_of_home(None, home)
        calibration = packaged_calibration() if own is None else read_calibration(own)
        predictions = predicted_by(points, calibration)
    else:
        calibration, predictions = fitted_calibration(
            points, start=asked.start, cross_validate=asked.cross_validate, progress=say
        )
        text = yaml.safe_dump(calibration.model_dump(mode="json"), sort_keys=False, width=120)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, f"{_HEADING}{text}")
        except OSError as error:
            raise _unwritable(path, f" ({error.strerror})") from error
    summary = errors(predictions)
    order = rankings(predictions)
    known = {"path": path, "errors": summary, "order": order}
    lines = ["", predictions_table(predictions), "", printed("calibration", **known)]
    document = {
        "wrote": None if path is None else str(path),
        "read": _read_json(reading, points),
        "errors": summary,
        **order,
        "predictions": [_prediction(one) for one in predictions],
    }
    answer(as_json, document, lines)


def predictions_table(predictions: Sequence[Predicted]) -> str:
    """Write a Markdown table with a line per point."""
    known = {"headline": HEADLINE, "layout": layout, "model_name": model_name, "expm1": math.expm1}
    return printed("predictions", predictions=predictions, **known)


def _output(asked: CalibrateOptions, home: Path) -> Path:
    """Return the output file, checked before the fit."""
    path = asked.output or Home(home).calibration
    if asked.output is not None:
        if not path.parent.is_dir():
            raise BadInput(f"-o {path}: folder {path.parent} does not exist")
    elif path.is_file() and not path.read_bytes().startswith(_HEADING[:_MARK].encode()):
        raise BadInput(
            f"{path} was not written by `autotune calibrate`: move it away, or choose another file with -o"
        )
    folder = next(folder for folder in path.parents if folder.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise _unwritable(path)
    return path


def _unwritable(path: Path, reason: str = "") -> BadInput:
    return BadInput(f"{path}: not writable{reason}; choose another file with -o")


def _counts(points: Sequence[MeasuredPoint]) -> dict[str, Counter[str]]:
    return {
        "engine": Counter(point.engine for point in points),
        "GPU": Counter(point.gpu for point in points),
        "workload": Counter(shape(point.workload) for point in points),
    }


def _repeated(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """List the points that were measured more than once."""
    return [point for point in points if len(point.members) > 1]


def _read_json(reading: Reading, points: Sequence[MeasuredPoint]) -> Json:
    rows = reading.rows
    return {
        "rows": len(rows),
        "points": len(points),
        **{kind.lower(): counts for kind, counts in _counts(points).items()},
        "twins": [
            {"label": point.label, "spread": math.expm1(point.spread)}
            for point in _repeated(points)
        ],
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


def _prediction(predicted: Predicted) -> Json:
    point = predicted.point
    runs = predicted.failure is None
    interval = [end if math.isfinite(end) else None for end in (predicted.low, predicted.high)]
    return {
        "label": point.label,
        "measured": point.metrics.get(HEADLINE),
        "predicted": predicted.throughput if runs else None,
        "interval90": interval if runs else None,
        "failure": {"measured": point.failure, "predicted": predicted.failure},
        "left_out": {kind: one._asdict() for kind, one in predicted.left_out.items()},
    }
