"""``autotune report`` and ``autotune export``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from autotune.cli.output import MESSAGES, print_json
from autotune.errors import BadInput
from autotune.study.home import Home, write_atomically
from autotune.study.spec import StudySpec


def report(study: str, format_: str, home: Path, as_json: bool) -> None:
    """``autotune report``; raises `BadInput` that says how far an unfinished study is."""
    folder = Home(home)
    spec = folder.spec(study)
    path = folder.study_folder(study) / f"report.{format_}"
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif (done := folder.recommendation(study)) is not None:
        from autotune.outputs.report import StudyRecord
        from autotune.outputs.report.render import render

        text = render(StudyRecord(spec, folder.launches(study), done, path.parent), format_)
    else:
        raise BadInput(_so_far(folder, spec, "report"))
    if as_json:
        print_json({"study": study, "format": format_, "report": text})
    else:
        click.echo(text)


def _so_far(home: Home, spec: StudySpec, lacking: str) -> str:
    """Say what an unfinished study has found until now, and how to go on."""
    from autotune.search.objective import achieved, maximises
    from autotune.study.results import is_held

    launches = home.launches(spec.study)
    values = [(value, launch) for launch in launches if (value := achieved(spec, launch)) is not None]
    progress = f"{len(launches)} of at most {spec.launches} launches are done"
    if values:
        value, best = (max if maximises(spec.objective) else min)(values, key=lambda pair: pair[0])
        progress += (
            f", the best so far is launch {best.trial.number} ({best.trial.configuration.engine}, "
            f"{best.result.evidence.value}) with a {spec.objective} of {value:,.1f}"
        )
    if is_held(home.study_folder(spec.study)):
        return f"study {spec.study!r} is still running, so it has no {lacking}: {progress}"
    how = f"go on with `autotune resume {spec.study}`"
    return f"study {spec.study!r} is not finished, so it has no {lacking}: {progress}; {how}"


def export(study: str, format_: str, output: Path | None, image: str | None, home: Path, as_json: bool) -> None:
    """``autotune export``."""
    from autotune.outputs.export import check_format, winner_of
    from autotune.outputs.export import export as render

    folder = Home(home)
    spec = folder.spec(study)
    form = check_format(format_)
    recommendation = folder.recommendation(study)
    if recommendation is None:
        raise BadInput(_so_far(folder, spec, "winner"))
    text = render(winner_of(recommendation, spec, folder.launches(study), image), format_)
    answer = {"study": study, "format": format_}
    if output == Path("-"):
        output = None
    if output is not None:
        _write(output, text, form.mode)
        MESSAGES.print(f"wrote {output}", highlight=False)
        answer["file"] = str(output)
    if as_json:
        print_json({**answer, "text": text})
    elif output is None:
        click.echo(text, nl=False)


def _write(output: Path, text: str, mode: int) -> None:
    """Write a regular file atomically, behind a link too; write to a pipe or device as to a stream."""
    try:
        if output.exists() and not output.is_file():
            output.write_text(text, encoding="utf-8")
        else:
            write_atomically(Path(os.path.realpath(output)), text, mode=mode)
    except OSError as error:
        raise BadInput(f"-o {output}: cannot be written ({error.strerror})") from error
