"""What a table of recorded launches decides of a study's specification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.errors import BadInput, UnknownName
from autotune.replay import PLAIN, REPLAY, Table, digest, table_of
from autotune.replay.candidates import setting, shortened
from autotune.replay.table import engine_name
from autotune.space.library import Library
from autotune.study.options import RunOptions
from autotune.study.spec import EngineChoice


def of_table(options: RunOptions, on: str, library: Library) -> dict[str, Any]:
    """The fields of a `StudySpec` that a table of recorded launches decides."""
    refused = {
        "--engine-arg": options.engine_args,
        "--engine-bin": options.engine_bins,
        "--image": options.images,
        "--hf-token-file": options.hf_token_file,
        "--min-context": options.min_context,
        "--goodput": options.goodput,
    }
    if given := [option for option, value in refused.items() if value]:
        raise BadInput(f"{' and '.join(given)}: nothing is launched where a file answers; leave it out")
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
        "notes": tuple(_notes_on_table(options, table, workloads[0])),
    }


def _notes_on_table(options: RunOptions, table: Table, workload: str) -> Iterator[str]:
    failed = sum(row.failure is not None for row in table.rows)
    counted = f"{len(table.rows)} rows of {len(table.repeats)} configurations, {failed} of them failed"
    metrics = tuple(dict.fromkeys(name for names in table.metrics.values() for name in names))
    # So that a misspelt metric is seen to be taken for a knob.
    columns = f"knobs: {shortened(table.columns) or 'none'}; metrics: {shortened(metrics) or 'none'}"
    yield f"{table.path}: {counted}; {columns}"
    for note in table.notes:
        yield f"{table.path}: {note}"
    if table.workload is not None and table.key_of_workload(workload, objective=True) == PLAIN:
        yield f"the figures of {workload} are those that {table.path} has of {table.workload}"
    if options.space is not None:
        yield f"--space tells what models, nodes and engines are; only rows of {table.path} are tried"
    if options.hours is not None and not any(row.times_s for row in table.rows):
        yield f"--hours is not used: {table.path} does not say how long launches took"
