"""Writes what a study leaves behind beside its rows: recommendation.json, reports, serve.sh."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from autotune.export import export
from autotune.home import write_atomically
from autotune.recommendation import Recommendation
from autotune.report import StudyRecord, render
from autotune.spec import StudySpec
from autotune.trial import Launch


def write_artefacts(folder: Path, spec: StudySpec, launches: Sequence[Launch], recommendation: Recommendation) -> None:
    """Write every file of a finished study; repeating it writes the same files again."""
    record = StudyRecord(spec, tuple(launches), recommendation, folder)
    text = json.dumps(recommendation.to_json(), indent=2, allow_nan=False)
    write_atomically(folder / "recommendation.json", text + "\n")
    for format_ in ("md", "html"):
        write_atomically(folder / f"report.{format_}", render(record, format_))
    script = folder / "serve.sh"
    if recommendation.recommended is None or recommendation.recommended.external:
        script.unlink(missing_ok=True)
    else:
        write_atomically(script, export(recommendation, "shell"), mode=0o755)
