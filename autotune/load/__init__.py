"""The load that is sent to a server over HTTP, and the figures counted from it.

Usable without the tuner:

    from autotune.load import load_workload, measure

    workload = load_workload("random:4000:200:500").with_concurrency(64)
    print(measure("http://127.0.0.1:8000", "my-model", workload,
    seed=0).metrics["total_token_throughput"])

    measure        one workload on one warm server -> `Measurement`
    load_workload  a workload by its name or form -> `Workload`

    workloads      requests and their times: lengths, arrivals, files
    requests       the requests of one load in numbers; prompts, tokenizers: their texts
    load           a workload, the place of its results, and the search for its load if there is one
    measuring      `measure`: warm-up and loads; `send`: a load or its search; options and results
    capacity       the search for the highest load within the limits
    client         the worker processes that send a load together
    prefix_cache   emptied before a load, its hits counted during it
    server_client  single calls to a server; request_file: one row per request, in a columnar file
    metrics        names, directions and formulas of the figures
    bench          ``autotune bench``; ``autotune compare`` of its results or ``vllm bench serve``'s

Names are imported when they are asked for: a worker process must start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .measuring import LoadOptions, LoadResult, Measurement, measure
    from .workloads import load_workload

__all__ = ["LoadOptions", "LoadResult", "Measurement", "load_workload", "measure"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "workloads" if name == "load_workload" else "measuring"
    return getattr(import_module(f"{__name__}.{module}"), name)
