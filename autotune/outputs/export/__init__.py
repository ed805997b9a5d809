"""Export the recommended configuration in the usual deployment formats.

A format is one function in one file of this package and one line in `FORMATS`: `(winner) -> str`,
where the winner is the recommended configuration with what the study knows of it. No output holds a
secret: where the study used one, the output asks for it or leaves it out and says so.
`write_artefacts` writes all forms, with the reports, at a study's end.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.base import BadInput, StringDict, UnknownName, frozen, write_atomically
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch

from ..report import StudyRecord
from ..report.render import DRAWN, PICTURES, files_of
from . import config_files, containers, shell
from .winner import Winner, render_capacity, render_json, winner_of

__all__ = ["FORMATS", "Format", "Winner", "all_of", "export", "winner_of"]


@frozen
class Format:
    """An export format: its text, the usual file name, and the file's permissions.

    One `engine` alone may read it. `without_command`: it can say something of a replayed row
    without a known command. `searched`: it tells what a load search found.
    """

    render: Callable[[Winner], str]
    filename: str
    engine: str | None = None
    mode: int = 0o644
    without_command: bool = False
    container: bool = False
    searched: bool = False

    def fits(self, winner: Winner) -> bool:
        """Return whether the format fits a winner of this engine with the known parts of its
        command."""
        return (
            self.engine in (None, winner.choice.engine)
            and (self.without_command or not winner.choice.stand_in)
            and (not self.searched or bool(winner.capacities))
        )


FORMATS: dict[str, Format] = {
    "shell": Format(shell.render, "serve.sh", mode=0o755, without_command=True),
    "docker": Format(shell.render_docker, "docker-run.sh", mode=0o755, container=True),
    "compose": Format(containers.compose, "compose.yaml", container=True),
    "k8s": Format(containers.kubernetes, "kubernetes.yaml", container=True),
    "dstack": Format(containers.dstack_service, "service.dstack.yml", container=True),
    "dstack-task": Format(containers.dstack_task, "task.dstack.yml", container=True),
    "gpustack": Format(containers.gpustack, "gpustack.yaml", container=True),
    "vllm-config": Format(config_files.render_config, "vllm.yaml", engine="vllm"),
    "sglang-config": Format(config_files.render_config, "sglang.yaml", engine="sglang"),
    "trtllm-config": Format(config_files.render_trtllm, "trtllm.yaml", engine="tensorrt_llm"),
    "capacity": Format(render_capacity, "capacity.json", without_command=True, searched=True),
    "json": Format(render_json, "recommendation.json", without_command=True),
}


def check_format(name: str) -> Format:
    """Return the format of that name; raises `UnknownName` with the existing names."""
    if name not in FORMATS:
        raise UnknownName("export format", name, FORMATS)
    return FORMATS[name]


def export(winner: Winner, name: str) -> str:
    """Return the winner's text in a format of `FORMATS`.

    Raises `UnknownName` for no format, `BadInput` for one that this winner, its engine or its image
    does not have.
    """
    wanted = check_format(name)
    if winner.image is not None and not wanted.container:
        containers = ", ".join(known for known, form in FORMATS.items() if form.container)
        raise BadInput(
            f"--image is for the formats that run a container ({containers}), not for {name}"
        )
    if wanted.fits(winner):
        return wanted.render(winner)
    if wanted.searched:
        raise BadInput(
            f"the load of study {winner.spec.study!r} was not searched for: tune with --find-load "
            "and --slo"
        )
    engine = winner.choice.engine
    problem = f"format {name!r} is for {wanted.engine}, but the study"
    problem += f" recommends {engine}"
    if winner.choice.stand_in:
        problem = f"the replayed table has no command of {engine} to write as {name}"
    fitting = ", ".join(known for known, form in FORMATS.items() if form.fits(winner))
    raise BadInput(f"{problem}; choose from: {fitting}")


def all_of(winner: Winner) -> tuple[StringDict, dict[str, list[str]]]:
    """Return file name to text in every format that fits this winner, and reason to the file names
    that do not."""
    texts = {}
    denied: dict[str, list[str]] = {}
    for name, form in FORMATS.items():
        if form.fits(winner):
            try:
                texts[form.filename] = export(winner, name)
            except BadInput as error:
                denied.setdefault(str(error), []).append(form.filename)
    return texts, denied


EXPORTS = "exports"
"""Folder of a study that holds its winner in every format, except ``serve.sh`` and its JSON."""


def write_artefacts(
    folder: Path, spec: StudySpec, launches: Sequence[Launch], recommendation: Recommendation
) -> list[str]:
    """Write every file of a finished study (repeatable); return why formats of its winner are
    missing.

    ``serve.sh`` lies beside the report, every other form that the winner has in ``exports/``.
    """
    record = StudyRecord(spec, tuple(launches), recommendation, folder)
    files = files_of(record)
    (folder / PICTURES).mkdir(exist_ok=True)
    for path in (folder / PICTURES).glob("*.svg"):
        # Remove the pictures of an earlier writing; one of the user's own stays.
        drawn = DRAWN in path.read_text(encoding="utf-8", errors="replace")
        if drawn and f"{PICTURES}/{path.name}" not in files:
            path.unlink()
    for name, content in files.items():
        write_atomically(folder / name, content)
    texts: StringDict = {}
    denied: dict[str, list[str]] = {}
    if recommendation.recommended and not recommendation.recommended.external:
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
    return [f"not exported: {', '.join(names)} ({reason})" for reason, names in denied.items()]
