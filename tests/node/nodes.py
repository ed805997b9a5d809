"""Servers and workloads for the simulator's tests."""

from functools import lru_cache

from autotune.engines.library import Library
from autotune.load.metrics.table import Metrics
from autotune.load.workloads import load_workload
from autotune.node.calibration import ServerSetup
from autotune.node.simulate import SimulatedOutcome, simulate

R1 = "deepseek-ai/DeepSeek-R1-0528"
V32 = "deepseek-ai/DeepSeek-V3.2"
MEASURED = {"vllm": "0.13.0", "sglang": "0.5.6", "tensorrt_llm": "1.2.0rc5"}
LIBRARY = Library()


def setup(
    engine, tp=8, dp=1, ep=1, *, model=V32, hw="h200", version=None, hardware=None, **knobs
) -> ServerSetup:
    """A server on all 8 GPUs; knobs that are not given are the engine's own choice."""
    layout = {"tensor_parallel": tp, "data_parallel": dp, "expert_parallel": ep}
    node = hardware or LIBRARY.node(hw)
    return ServerSetup(
        engine, version or MEASURED[engine], {**layout, **knobs}, LIBRARY.model(model), node, 8
    )


def run(engine, *layout, workload="sharegpt", seed=0, **knobs) -> SimulatedOutcome:
    """Simulate a named workload."""
    return simulate(setup(engine, *layout, **knobs), load_workload(workload), seed)


def run_points(engine, *layout, workload, **knobs) -> list[Metrics]:
    """Simulate each load point of a named workload by itself; the metrics of each."""
    whole = load_workload(workload)
    loads = [whole.model_copy(update={"points": [point]}) for point in whole.points]
    return [simulate(setup(engine, *layout, **knobs), load, 0).metrics for load in loads]


@lru_cache(maxsize=256)
def tokens_per_s(engine, *layout, workload="sharegpt", **knobs) -> float:
    """Total token throughput; fails the test when the server does not run."""
    outcome = run(engine, *layout, workload=workload, **knobs)
    assert outcome.failure is None, outcome.failure
    return outcome.metrics["total_token_throughput"]
