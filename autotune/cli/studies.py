"""``autotune report`` and ``autotune export``: what reads a study that was made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from autotune.cli.output import MESSAGES, print_json
from autotune.errors import BadInput, MalformedFile
from autotune.study.home import Home, write_atomically
from autotune.study.recommendation import Recommendation
from autotune.study.spec import StudySpec


def finished(home: Home, study: str) -> Recommendation | None:
    path = home.study_folder(study) / "recommendation.json"
    if not path.is_file():
        return None
    try:
        found = Recommendation.from_json(json.loads(path.read_text(encoding="utf-8")))
        return found.model_copy(update={"study": study})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = "not a recommendation; remove it, and `autotune resume` writes it again from the launches"
        raise MalformedFile(path, problem) from error


def report(study: str, format_: str, home: Path, as_json: bool) -> None:
    """``autotune report``: of an unfinished study a message that says how far it is."""
    folder = Home(home)
    spec = folder.spec(study)
    path = folder.study_folder(study) / f"report.{format_}"
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif (done := finished(folder, study)) is not None:
        from autotune.outputs.report import StudyRecord, render

        text = render(StudyRecord(spec, folder.launches(study), done, path.parent), format_)
    else:
        raise BadInput(_so_far(folder, spec, "report"))
    if as_json:
        print_json({"study": study, "format": format_, "report": text})
    else:
        click.echo(text)


def _so_far(home: Home, spec: StudySpec, lacking: str) -> str:
    """What an unfinished study has found until now, and what to do for what it lacks."""
    from autotune.search.objective import achieved, maximises
    from autotune.study.results import is_held

    launches = home.launches(spec.study)
    values = [(value, launch) for launch in launches if (value := achieved(spec, launch)) is not None]
    found = f"{len(launches)} of at most {spec.launches} launches are done"
    if values:
        value, best = (max if maximises(spec.objective) else min)(values, key=lambda pair: pair[0])
        found += (
            f", the best so far is launch {best.trial.number} ({best.trial.configuration.engine}, "
            f"{best.result.evidence.value}) with a {spec.objective} of {value:,.1f}"
        )
    if is_held(home.study_folder(spec.study)):
        return f"study {spec.study!r} is still running, so it has no {lacking}: {found}"
    how = f"go on with `autotune resume {spec.study}`"
    return f"study {spec.study!r} is not finished, so it has no {lacking}: {found}; {how}"


def export(study: str, format_: str, output: Path | None, image: str | None, home: Path, as_json: bool) -> None:
    """``autotune export``."""
    from autotune.outputs.export import check_format, winner_of
    from autotune.outputs.export import export as render

    folder = Home(home)
    spec = folder.spec(study)
    form = check_format(format_)
    recommendation = finished(folder, study)
    if recommendation is None:
        raise BadInput(_so_far(folder, spec, "winner"))
    text = render(winner_of(recommendation, spec, folder.launches(study), image), format_)
    said = {"study": study, "format": format_}
    if output == Path("-"):
        output = None
    if output is not None:
        _write(output, text, form.mode)
        MESSAGES.print(f"wrote {output}", highlight=False)
        said["file"] = str(output)
    if as_json:
        print_json({**said, "text": text})
    elif output is None:
        click.echo(text, nl=False)


def _write(output: Path, text: str, mode: int) -> None:
    """Write a file where a file is or nothing yet, behind a link too; to a pipe or device as to any stream."""
    try:
        if output.exists() and not output.is_file():
            output.write_text(text, encoding="utf-8")
        else:
            write_atomically(Path(os.path.realpath(output)), text, mode=mode)
    except OSError as error:
        raise BadInput(f"-o {output}: cannot be written ({error.strerror})") from error
