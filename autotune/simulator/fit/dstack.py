"""The online results of dstackai/benchmarks as CSV: a closed-loop load per row, environment settings in a column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.engines import split_command
from autotune.errors import BadInput
from autotune.simulator.fit.formats import Content
from autotune.simulator.fit.loads import Load
from autotune.simulator.fit.raw import Place, RawRow, checked, whole
from autotune.trial import Command

_RENAMED = {
    "duration_s": "duration",
    "output_tok_s": "output_throughput",
    "total_tok_s": "total_token_throughput",
    "mean_e2e_ms": "mean_e2el_ms",
}
_KEPT = (
    "completed",
    "request_throughput",
    *(f"{s}_{kind}_ms" for kind in ("ttft", "tpot") for s in ("mean", "median", "p99")),
)
_NEEDED = ("total_token_throughput", "duration", "mean_ttft_ms", "mean_tpot_ms")
_ABOUT = ("model", "engine", "engine_version", "gpu_type", "gpu_count", "command", "input_len", "output_len")
_COLUMNS = (*_ABOUT, "num_prompts", "max_concurrency", "total_tok_s", "mean_ttft_ms", "mean_tpot_ms")


class DstackResults:
    """Rows are labelled by GPU, engine and concurrency: ``MI300X vllm c64``."""

    description = f"the online results of dstackai/benchmarks as CSV, with the columns {', '.join(_COLUMNS)}"

    def recognises(self, content: Content) -> bool:
        return {"gpu_type", "total_tok_s", "engine_version"} <= set(content.columns)

    def rows(self, content: Content) -> Iterator[RawRow]:
        missing = [name for name in _COLUMNS if name not in content.columns]
        if missing:
            raise Place(content.path, 1).wrong(f"no column {missing[0]}; needed: {', '.join(_COLUMNS)}")
        for place, cells in content.table():
            yield _row(place, cells)


def _row(place: Place, cells: Mapping[str, str]) -> RawRow:
    given = {name: cells.get(name) for name in _KEPT}
    given.update({ours: cells.get(theirs) for theirs, ours in _RENAMED.items()})
    metrics = checked(place, given, _NEEDED)
    concurrency = whole(place, "max_concurrency", cells["max_concurrency"])
    at_a_time = "all at once" if concurrency is None else f"c{concurrency}"
    return RawRow(
        label=f"{cells['gpu_type']} {cells['engine']} {at_a_time}",
        place=place,
        command=command_of_cells(place, cells),
        engine_version=cells["engine_version"],
        hardware=cells["gpu_type"],
        gpus=whole(place, "gpu_count", cells["gpu_count"]),
        model=cells["model"] or None,
        load=Load(
            input_tokens=whole(place, "input_len", cells["input_len"]),
            output_tokens=whole(place, "output_len", cells["output_len"]),
            prompts=whole(place, "num_prompts", cells["num_prompts"]),
            completed=int(metrics["completed"]) if "completed" in metrics else None,
            concurrency=concurrency,
        ),
        metrics=metrics,
    )


def command_of_cells(place: Place, cells: Mapping[str, str]) -> Command:
    """The command with the settings of the ``env`` column in front of it, where there is one."""
    try:
        return split_command(f"{cells.get('env') or ''} {cells['command']}")
    except BadInput as error:
        raise place.wrong(str(error)) from error
