"""A plain table of one's own, as CSV or as one JSON object per line; the columns stand in ``docs/calibration.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.errors import UnknownName
from autotune.metrics.formulas import METRICS
from autotune.simulator.fit.dstack import command_of_cells
from autotune.simulator.fit.formats import Content
from autotune.simulator.fit.loads import Load
from autotune.simulator.fit.raw import Place, RawRow, checked, number, whole

_NEEDED = ("command", "engine_version", "hardware")
_LENGTHS = ("input_len", "output_len", "num_prompts")
_ABOUT = (*_NEEDED, *_LENGTHS, "label", "note", "gpus", "model", "env", "workload", "max_concurrency", "request_rate")
_COLUMNS = (*_ABOUT, "failure")


class OwnTable:
    """Rows are labelled by their ``label`` column, else by their line."""

    description = (
        f"a table of your own, CSV or a JSON object per line, with the columns {', '.join(_NEEDED)}, workload or "
        f"{', '.join(_LENGTHS)}, and metrics such as total_token_throughput, or failure"
    )

    def recognises(self, content: Content) -> bool:
        return set(_NEEDED) <= set(content.columns) or set(_NEEDED) <= set(content.first_object)

    def rows(self, content: Content) -> Iterator[RawRow]:
        rows = content.lines() if content.first_object else content.table()
        for place, cells in rows:
            yield _row(place, {name: value for name, value in cells.items() if value not in (None, "")})


def _row(place: Place, cells: Mapping[str, Any]) -> RawRow:
    """A row of cells that hold something."""
    for name in cells:
        if name not in METRICS and name not in _COLUMNS:
            raise place.wrong(str(UnknownName("column", name, (*_COLUMNS, *METRICS))))
    for name in _NEEDED:
        if name not in cells:
            raise place.wrong(f"no {name}")
    failure = cells.get("failure") or None
    given = {name: value for name, value in cells.items() if name in METRICS}
    metrics = {} if failure else checked(place, given, ("total_token_throughput",))
    return RawRow(
        label=str(cells.get("label", place.line)),
        place=place,
        command=command_of_cells(place, {name: str(cells[name]) for name in ("command", "env") if name in cells}),
        engine_version=str(cells["engine_version"]),
        hardware=str(cells["hardware"]),
        gpus=whole(place, "gpus", cells.get("gpus")),
        model=None if "model" not in cells else str(cells["model"]),
        load=_load(place, cells, metrics),
        metrics=metrics,
        failure=None if failure is None else str(failure),
    )


def _load(place: Place, cells: Mapping[str, Any], metrics: Mapping[str, float]) -> Load:
    lengths = [name for name in _LENGTHS if name in cells]
    if ("workload" in cells) == bool(lengths) or len(lengths) not in (0, len(_LENGTHS)):
        raise place.wrong(f"give either workload, or all of {', '.join(_LENGTHS)}")
    rate = number(place, "request_rate", cells.get("request_rate"))
    return Load(
        name=str(cells.get("workload", "")),
        input_tokens=whole(place, "input_len", cells.get("input_len")),
        output_tokens=whole(place, "output_len", cells.get("output_len")),
        prompts=whole(place, "num_prompts", cells.get("num_prompts")),
        completed=int(metrics["completed"]) if "completed" in metrics else None,
        concurrency=whole(place, "max_concurrency", cells.get("max_concurrency")),
        request_rate=rate or None,
    )
