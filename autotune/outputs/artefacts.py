"""Writes what a study leaves behind beside its rows: recommendation.json, reports, serve.sh, exports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from autotune.outputs.export import FORMATS, all_of, winner_of
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import PICTURES, files_of
from autotune.study.home import write_atomically
from autotune.study.recommendation import Recommendation
from autotune.study.spec import StudySpec
from autotune.trial import Launch

EXPORTS = "exports"
"""The folder of a study in which its winner lies in every form that it has, but for ``serve.sh`` and its JSON."""


def write_artefacts(
    folder: Path, spec: StudySpec, launches: Sequence[Launch], recommendation: Recommendation
) -> list[str]:
    """Write every file of a finished study, the same ones each time; return why forms of its winner are missing.

    ``serve.sh`` lies beside the report, every other form that the winner has in ``exports/``.
    """
    record = StudyRecord(spec, tuple(launches), recommendation, folder)
    files = files_of(record)
    (folder / PICTURES).mkdir(exist_ok=True)
    for path in (folder / PICTURES).glob("*.svg"):
        if f"{PICTURES}/{path.name}" not in files:
            path.unlink()  # of an earlier writing
    for name, content in files.items():
        write_atomically(folder / name, content)
    texts: dict[str, str] = {}
    denied: dict[str, list[str]] = {}
    if recommendation.recommended is not None and not recommendation.recommended.external:
        texts, denied = all_of(winner_of(recommendation, spec, launches))
    (folder / EXPORTS).mkdir(exist_ok=True)
    for name, form in FORMATS.items():
        if name == "json":
            continue
        path = folder / form.filename if name == "shell" else folder / EXPORTS / form.filename
        if form.filename in texts:
            write_atomically(path, texts[form.filename], mode=form.mode)
        else:
            path.unlink(missing_ok=True)
    # Last: a study that has one is finished, and `resume` writes nothing more.
    text = json.dumps(recommendation.to_json(), indent=2, allow_nan=False)
    write_atomically(folder / "recommendation.json", text + "\n")
    return [f"not exported as {', '.join(names)}: {reason}" for reason, names in denied.items()]
