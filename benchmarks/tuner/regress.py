"""How often `autotune regress` decides rightly: ``python benchmarks/tuner/regress.py [--same 100]
[--slower 50] [--by 8]``.

One study of the simulated 8xh200 (24 launches, vLLM alone, 3 % noise between launches) is made
first. Its recommended command is then compared on the version that it was found on with

- ``same``: that very version; wanted: `regression` at most 3 of 100, `undecided` at most 30;
- ``slower``: that version on a node whose coefficients make the command slower by 8 %; wanted:
  found 45 of 50.

Each comparison has a seed, 100 apart as a launch's prompts have the seed of their number, and so
other prompts and other noise. Prints counts, how many intervals hold the true change, errors of the
estimate, and launches. The study stays with ``--home``, and is used again.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from autotune.base.notify import silent
from autotune.engines.library import Library
from autotune.node.calibration import calibration_of
from autotune.tuner.backends import evaluator_for
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import RegressOptions
from autotune.tuner.study.recommendation import Regression
from autotune.tuner.verify import Comparison

STUDY, VERSION = "regress", "0.33.0"


def slower(figures: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return the document of a calibration under which every time is longer, and every rate lower,
    by a factor."""
    slowed = {
        name: value * factor
        if name.endswith(("_us", "_ms"))
        else value / factor
        if name.endswith("_share")
        else value
        for name, value in figures["factors"]["all"]["all"].items()
    }
    return {**figures, "factors": {**figures["factors"], "all": {"all": slowed}}}


def compare(
    home: Home, seed: int, *, calibration: Path | None = None, noise: float | None = None
) -> Regression:
    """Compare the study's command under a seed, from the first launch on."""
    spec, done = home.spec(STUDY), home.recommendation(STUDY)
    assert done is not None
    spec = spec.model_copy(update={"seed": seed, "noise": spec.noise if noise is None else noise})
    shutil.rmtree(home.study_folder(STUDY) / "regress", ignore_errors=True)
    options = RegressOptions(STUDY, engines=[f"vllm=={VERSION}"], calibration=calibration)
    return Comparison(home, spec, done, options, silent).run(evaluator_for)


def slowed_by(home: Home, percent: float, folder: Path) -> tuple[Path, float]:
    """Write coefficients under which the command is so much slower; return the true change in
    percent too."""
    figures = calibration_of(Library()).model_dump(mode="json")
    path, factor, found = folder / "slower.yaml", 1.0, 0.0
    for _ in range(6):
        factor *= (1 + found / 100) / (1 - percent / 100)
        path.write_text(yaml.safe_dump(slower(figures, factor)))
        changes = [
            compare(home, seed, calibration=path, noise=0.0).commands[0].change_percent
            for seed in range(3)
        ]
        found = statistics.fmean(change for change in changes if change is not None)
        if abs(found + percent) < 0.1:
            break
    return path, found


def main() -> None:
    """Play all comparisons and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--same", type=int, default=100)
    parser.add_argument("--slower", type=int, default=50)
    parser.add_argument("--by", type=float, default=8.0, help="percent")
    parser.add_argument("--home", type=Path, help="where the study lies, or is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Home(options.home or Path(scratch, "home"))
        if STUDY not in home.names():
            asked = [
                "--model",
                "deepseek-ai/DeepSeek-V3.2",
                "--hw",
                "h200",
                "--engine",
                f"vllm=={VERSION}",
            ]
            command = [
                sys.executable,
                "-m",
                "autotune",
                "run",
                *asked,
                "--launches",
                "24",
                "--study",
                STUDY,
            ]
            subprocess.run([*command, "--home", str(home.path)], check=True, capture_output=True)
        path, change = slowed_by(home, options.by, Path(scratch))
        print(f"true change of the slower node: {change:+.2f} %", flush=True)
        for name, times, coefficients, truth in (
            ("same", options.same, None, 0.0),
            ("slower", options.slower, path, change),
        ):
            found = [
                compare(home, 1000 + 100 * seed, calibration=coefficients) for seed in range(times)
            ]
            verdicts = Counter(one.verdict for one in found)
            rows = [one.commands[0] for one in found]
            held = sum(
                row.change_ci95[0] <= truth <= row.change_ci95[1] for row in rows if row.change_ci95
            )
            errors = [row.change_percent - truth for row in rows if row.change_percent is not None]
            launches = sorted(one.launches for one in found)
            counts = ", ".join(
                f"{verdicts[verdict]} {verdict}" for verdict in ("pass", "undecided", "regression")
            )
            rms = math.sqrt(statistics.fmean(error * error for error in errors))
            print(
                f"{name}: {times} comparisons: {counts}; launches {statistics.median(launches):g} in the median "
                f"({launches[0]} to {launches[-1]}); the interval holds the true change in {held}; the estimate is off "
                f"by {statistics.fmean(errors):+.2f} % in the mean, {rms:.2f} % root mean square",
                flush=True,
            )


if __name__ == "__main__":
    main()
