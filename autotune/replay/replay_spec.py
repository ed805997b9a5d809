"""The fields of a `StudySpec` that a table of recorded launches decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.errors import BadInput, UnknownName
from autotune.replay import REPLAY, digest, table_of
from autotune.replay.candidates import setting
from autotune.replay.reader import engine_name
from autotune.replay.table import PLAIN, Table
from autotune.space.library import Library
from autotune.study.options import RunOptions
from autotune.study.spec import EngineChoice

_SHOWN = 12


def normalised(path: str) -> str:
    """``replay:`` and the file's absolute path, so that the study can be resumed from any folder."""
    return f"{REPLAY}{Path(path).expanduser().absolute()}"


def replay_fields(options: RunOptions, on: str, library: Library) -> dict[str, Any]:
    """Make the fields; raises `BadInput`.

    Args:
        on: as `normalised` gives it.
    """
    _refuse_unused(options)
    sha256 = digest(Path(on.removeprefix(REPLAY)))
    table = table_of(on, sha256, library)
    engines = [engine_name(text, library) for text in options.engines] or list(table.engines)
    for name in engines:
        if name not in table.engines:
            raise UnknownName("engine", name, table.engines, f"They are those of {table.path}.")
    pins = dict(setting(table, text, "--set", library) for text in options.pins)
    workloads = tuple(dict.fromkeys(options.workloads)) or (table.workload or "sharegpt",)
    return {
        "on": on,
        "table_sha256": sha256,
        "engines": tuple(EngineChoice(name=n, version=table.version_of(n)) for n in dict.fromkeys(engines)),
        "workloads": workloads,
        "pins": pins,
        "baseline": options.baseline,
        "notes": (*_read_notes(table), *_workload_notes(table, workloads[0]), *_unused_notes(options, table)),
    }


def _refuse_unused(options: RunOptions) -> None:
    """Raise `BadInput` for options of servers: nothing is launched."""
    refused = {
        "--engine-arg": options.engine_args,
        "--engine-bin": options.engine_bins,
        "--image": options.images,
        "--hf-token-file": options.hf_token_file,
    }
    asked = [option for option, value in refused.items() if value]
    if asked:
        raise BadInput(f"{' and '.join(asked)}: nothing is launched where a file answers; leave it out")


def _read_notes(table: Table) -> list[str]:
    """Say how the file was read, so that a misspelt metric is seen to be taken for a knob."""
    failed = sum(row.failure is not None for row in table.rows)
    counted = f"{len(table.rows)} rows of {len(table.repeats)} configurations, {failed} of them failed"
    metrics = dict.fromkeys(name for names in table.metrics.values() for name in names)
    return [
        f"{table.path}: {counted}; knobs: {_some(table.columns)}; metrics: {_some(tuple(metrics))}",
        *(f"{table.path}: {note}" for note in table.notes),
    ]


def _some(names: tuple[str, ...]) -> str:
    more = f" … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}" if names else "none"


def _workload_notes(table: Table, workload: str) -> list[str]:
    if table.workload is None or table.key_of_workload(workload, objective=True) != PLAIN:
        return []
    return [f"the figures of {workload} are those that {table.path} has of {table.workload}"]


def _unused_notes(options: RunOptions, table: Table) -> list[str]:
    notes = []
    if options.space is not None:
        notes.append(f"--space tells what models, nodes and engines are; only rows of {table.path} are tried")
    if options.hours is not None and not any(row.times_s for row in table.rows):
        notes.append(f"--hours is not used: {table.path} does not say how long launches took")
    return notes
