"""Seconds of computing per simulated run: ``python benchmarks/simulator.py``.

Targets: one ShareGPT run of 1000 prompts 0.3 s; 500 requests of 3200 in and 6400 out at concurrency 128, 3 s; the
crude roofline for 30,000 candidates 2 s.
"""

from __future__ import annotations

from itertools import islice, product
from time import perf_counter

from autotune.load.arrivals import Arrival
from autotune.load.datasets import FixedLengths
from autotune.load.workloads import LoadPoint, Workload, load_workload
from autotune.simulate import ServerSetup, simulate
from autotune.simulate.roofline import roofline
from autotune.space.library import Library
from autotune.trial import Configuration

_REPEATS = 3
LIBRARY = Library()
MODEL, NODE = LIBRARY.model("deepseek-ai/DeepSeek-V3.2"), LIBRARY.node("h200")


def _long_outputs() -> Workload:
    arrival = Arrival(kind="closed_loop", concurrency=128)
    point = LoadPoint(prompts=500, arrival=arrival, lengths=FixedLengths(input_tokens=3200, output_tokens=6400))
    return Workload(name="3200-6400", description="", origin="", points=[point])


def _simulated(engine: str, workload: Workload, **knobs: int) -> float:
    """The best of a few runs, in seconds."""
    version = LIBRARY.engine(engine).newest
    setup = ServerSetup(engine, version, knobs, MODEL, NODE, 8)
    seconds = []
    for seed in range(_REPEATS):
        begin = perf_counter()
        outcome = simulate(setup, workload, seed)
        seconds.append(perf_counter() - begin)
        if outcome.failure is not None:
            raise SystemExit(f"{engine} {knobs}: {outcome.failure.message}")
    return min(seconds)


def _roofline() -> float:
    grid = product(((8, 1), (4, 2), (2, 4), (1, 8)), (1, 8), (0, 1), (None, 48, 256, 512), ("auto", "fp8"), range(500))
    names = ("expert_parallel", "speculative_tokens", "max_running_requests", "kv_cache_dtype", "other")
    candidates = [
        Configuration("sglang", {"tensor_parallel": tp, "data_parallel": dp, **dict(zip(names, rest, strict=True))})
        for (tp, dp), *rest in islice(grid, 30_000)
    ]
    begin = perf_counter()
    roofline(candidates, MODEL, NODE, 8, load_workload("sharegpt"))
    return perf_counter() - begin


def main() -> None:
    """Print one line per case."""
    for engine in ("vllm", "sglang", "tensorrt_llm"):
        for name, workload in (("sharegpt", load_workload("sharegpt")), ("3200-6400 c128", _long_outputs())):
            print(f"{engine:13s} TP8  {name:15s} {_simulated(engine, workload, tensor_parallel=8):6.3f} s")
    replicas = {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8}
    print(f"{'sglang':13s} DP8  {'sharegpt':15s} {_simulated('sglang', load_workload('sharegpt'), **replicas):6.3f} s")
    print(f"{'roofline':13s}      {'30000 candidates':15s} {_roofline():6.3f} s")


if __name__ == "__main__":
    main()
