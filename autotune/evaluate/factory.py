"""`evaluator_for`: the evaluator that a study names."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import UnknownName
from autotune.evaluate import Evaluator
from autotune.evaluate.offline import Recorded, Replayed, Simulated
from autotune.notify import Watch, silent
from autotune.replay.bundle import bundle_of
from autotune.space.library import Library
from autotune.study.spec import StudySpec


def evaluator_for(spec: StudySpec, library: Library, folder: Path, notify: Watch = silent) -> Evaluator:
    """Make the evaluator that a study names; raises `UnknownName`.

    Args:
        folder: the study's, for what launches leave behind.
        notify: called when a launch is tried again, and with its stages.
    """
    if spec.on == "simulator":
        return Simulated(spec, library)
    if spec.on.startswith("replay:"):
        recorded = bundle_of(spec.on, spec.table_sha256) is not None
        return Recorded(spec, library) if recorded else Replayed(spec, library)
    if spec.on in ("process", "docker", "emulator") or spec.on.startswith("external:"):
        # Imported when asked for: HTTP clients and event loops take time that a simulated study need not spend.
        from autotune.evaluate.launched import Launched

        return Launched(spec, library, folder, notify=notify)
    known = ["simulator", "emulator", "process", "docker", "external:URL", "replay:FILE"]
    raise UnknownName("way to run trials", spec.on, known)
