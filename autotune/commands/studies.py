"""``autotune report``, ``autotune export`` and ``autotune list``: what reads a study that was made."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from autotune.commands.output import MESSAGES, print_json
from autotune.errors import BadInput, MalformedFile
from autotune.home import Home, write_atomically
from autotune.recommendation import Recommendation, Verdict
from autotune.spec import StudySpec


def finished(home: Home, study: str) -> Recommendation | None:
    path = home.study_folder(study) / "recommendation.json"
    if not path.is_file():
        return None
    try:
        return Recommendation.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        problem = "not a recommendation; remove it, and `autotune resume` writes it again from the launches"
        raise MalformedFile(path, problem) from error


def report(study: str, format_: str, home: Path, as_json: bool) -> None:
    """``autotune report``."""
    folder = Home(home)
    folder.spec(study)
    path = folder.study_folder(study) / f"report.{format_}"
    if not path.is_file():
        raise BadInput(f"study {study!r} is not finished, so it has no report; go on with `autotune resume {study}`")
    text = path.read_text(encoding="utf-8")
    if as_json:
        print_json({"study": study, "format": format_, "report": text})
    else:
        click.echo(text)


def export(study: str, format_: str, output: Path | None, image: str | None, home: Path, as_json: bool) -> None:
    """``autotune export``."""
    from autotune.export import check_format, winner_of
    from autotune.export import export as render

    folder = Home(home)
    spec = folder.spec(study)
    form = check_format(format_)
    recommendation = finished(folder, study)
    if recommendation is None:
        raise BadInput(f"study {study!r} is not finished; go on with `autotune resume {study}`")
    text = render(winner_of(recommendation, spec, folder.launches(study), image), format_)
    if output is not None:
        try:
            write_atomically(output, text, mode=form.mode)
        except OSError as error:
            raise BadInput(f"-o {output}: cannot be written ({error.strerror})") from error
        MESSAGES.print(f"wrote {output}", highlight=False)
    elif as_json:
        print_json({"study": study, "format": format_, "text": text})
    else:
        click.echo(text)


def list_studies(home: Path, as_json: bool) -> None:
    """``autotune list``."""
    folder = Home(home)
    if home.exists() and not home.is_dir():
        raise BadInput(f"--home {home}: not a folder")
    rows = [_study_row(folder, name) for name in folder.names()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"no studies in {folder.studies}")
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), no_wrap=True)
    for row in rows:
        table.add_row(*("–" if value is None else str(value) for value in row.values()))
    # A file or a pipe has no width: nothing is cut there.
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=250)).print(table, highlight=False)


def _study_row(home: Home, name: str) -> dict[str, Any]:
    try:
        return _readable_row(home, name, home.spec(name), finished(home, name))
    except MalformedFile as error:
        MESSAGES.print(f"autotune: {error}", highlight=False)
        columns = ("model", "hardware", "evidence", "verdict", "gain", "launches", "age_hours")
        return {"study": name, **dict.fromkeys(columns), "verdict": "unreadable"}


def _readable_row(home: Home, name: str, spec: StudySpec, done: Recommendation | None) -> dict[str, Any]:
    path = home.study_folder(name)
    rows = path / "results.jsonl"
    launches = rows.read_bytes().count(b"\n") if rows.is_file() else 0
    age_h = (datetime.now(UTC).timestamp() - (path / "study.yaml").stat().st_mtime) / 3600
    gain = done.gain_percent if done and done.verdict in (Verdict.BETTER, Verdict.INDISTINGUISHABLE) else None
    if done and done.recommended and done.baseline and done.recommended.fingerprint == done.baseline.fingerprint:
        gain = None
    return {
        "study": name,
        "model": spec.model.id,
        "hardware": f"{spec.gpus}x{spec.hardware.name}",
        "evidence": done.evidence.value if done else None,
        "verdict": done.verdict.value if done else "unfinished",
        "gain": None if gain is None else f"{gain:+.1f} %",
        "launches": launches,
        "age_hours": round(age_h, 1),
    }
