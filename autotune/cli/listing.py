"""``autotune list``: a line per study of the home folder, the newest last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.cli.output import MESSAGES, print_json
from autotune.errors import BadInput
from autotune.study.home import Home
from autotune.study.recommendation import Recommendation, Verdict
from autotune.study.results import is_held
from autotune.study.spec import StudySpec

_KEYS = (
    *("study", "model", "hardware", "evidence", "verdict", "gain", "launches", "age_hours"),
    *("state", "budget", "nodes", "engine", "gain_percent", "gain_ci95"),
)

_FOLDED = ("study", "model")
_NO_WIDTH = 10_000
_NARROW = 78
"""Columns of a terminal that leave no room for names beside the figures."""


def list_studies(home: Path, as_json: bool) -> None:
    """``autotune list``; with ``--json`` an object per study with `_KEYS`, null where something is not known."""
    folder = Home(home)
    if home.exists() and not home.is_dir():
        raise BadInput(f"--home {home}: not a folder")
    rows = [_row(folder, name) for name in folder.names()]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(f"no studies in {folder.studies}")
    else:
        _print(rows)


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    terminal, unlimited = Console(), Console(width=_NO_WIDTH)
    table = _table(rows, interval=True)
    if terminal.is_terminal and unlimited.measure(table).maximum > terminal.width:
        table = _table(rows, interval=False)
    # A file or a pipe has no width: every study is one line there. A very narrow terminal breaks the lines itself.
    folds = terminal.is_terminal and terminal.width >= _NARROW
    (terminal if folds else unlimited).print(table, highlight=False)


def _table(rows: Sequence[Mapping[str, Any]], interval: bool) -> Table:
    """The table; where room is short, long names go on in the next line, and nothing is cut off."""
    several = any(len(row["nodes"] or ()) > 1 for row in rows)
    table = Table(box=None, pad_edge=False)
    for row in rows:
        cells = _cells(row, several, interval)
        if not table.columns:
            for column in cells:
                table.add_column(column, no_wrap=column not in _FOLDED, overflow="fold")
        table.add_row(*map(Text, cells.values()))
    return table


def _cells(row: Mapping[str, Any], several: bool, interval: bool) -> dict[str, str]:
    """A row as people read it; an unfinished study says how far it is instead of a verdict.

    Args:
        several: whether any of the studies ran on more than one node.
        interval: whether the gain's interval stands behind it.
    """
    unfinished = row["state"] in ("running", "interrupted")
    verdict = row["state"] if unfinished else row["verdict"]
    gain = row["gain"]
    if interval and gain is not None and row["gain_ci95"] is not None:
        low, high = row["gain_ci95"]
        gain += f" ({low:+.1f} to {high:+.1f})"
    launches = f"{row['launches']} of {row['budget']}" if unfinished else row["launches"]
    cells = {name: row[name] for name in ("study", "model", "hardware", "evidence")}
    cells |= {"verdict": verdict, "gain": gain, "launches": launches}
    if several:
        cells["nodes"] = len(row["nodes"]) if row["nodes"] else None
    cells["age"] = None if row["age_hours"] is None else _age(row["age_hours"])
    return {name: "–" if value is None else str(value) for name, value in cells.items()}


def _age(hours: float) -> str:
    if hours < 1:
        return f"{60 * max(hours, 0):.0f} min"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"


def _row(home: Home, name: str) -> dict[str, Any]:
    try:
        return _readable(home, name, home.spec(name), home.recommendation(name))
    except (BadInput, OSError) as error:
        MESSAGES.print(f"autotune: {error}", highlight=False, markup=False)
        return {**dict.fromkeys(_KEYS), "study": name, "verdict": "unreadable", "state": "unreadable"}


def _readable(home: Home, name: str, spec: StudySpec, done: Recommendation | None) -> dict[str, Any]:
    path = home.study_folder(name)
    results = [launch.result for launch in home.launches(name)]
    nodes = list(dict.fromkeys(result.node for result in results if result.node))
    age_h = (datetime.now(UTC).timestamp() - (path / "study.yaml").stat().st_mtime) / 3600
    gained = done if done is not None and _has_gain(done) else None
    state = "finished" if done else "running" if is_held(path) else "interrupted"
    values = (
        *(name, spec.model.id, f"{spec.gpus}x{spec.hardware.name}"),
        done.evidence.value if done else results[0].evidence.value if results else None,
        done.verdict.value if done else "unfinished",
        f"{gained.gain_percent:+.1f} %" if gained else None,
        *(len(results), round(age_h, 1), state, spec.launches, nodes),
        done.recommended.engine if done and done.recommended else None,
        gained.gain_percent if gained else None,
        gained.gain_ci95 if gained else None,
    )
    return dict(zip(_KEYS, values, strict=True))


def _has_gain(done: Recommendation) -> bool:
    """Whether a study compared something with its baseline: the baseline gains nothing over itself."""
    if done.verdict not in (Verdict.BETTER, Verdict.INDISTINGUISHABLE) or done.gain_percent is None:
        return False
    same = done.recommended and done.baseline and done.recommended.fingerprint == done.baseline.fingerprint
    return not same
