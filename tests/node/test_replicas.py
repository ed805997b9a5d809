"""Several servers of a node, and the front ends of one, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.load.metrics.records import RequestRecords
from autotune.load.workloads import load_workload
from autotune.node.simulate import simulate
from autotune.node.steady import SteadyNode
from tests.node.nodes import LIBRARY, setup

QWEN = "Qwen/Qwen3-8B"


def metrics(workload: str, **knobs):
    outcome = simulate(
        setup("vllm", model=QWEN, version="0.33.0", **knobs), load_workload(workload), 0
    )
    assert outcome.failure is None, outcome.failure
    return outcome.metrics


def test_n_servers_carry_n_times_the_load_of_one_in_the_same_time():
    one, eight = (metrics(f"random:200:100:{n * 64}", tp=1, replicas=n) for n in (1, 8))
    assert eight["duration"] == pytest.approx(one["duration"], rel=1e-6)
    assert eight["total_token_throughput"] == pytest.approx(
        8 * one["total_token_throughput"], rel=1e-6
    )
    assert eight["mean_ttft_ms"] == pytest.approx(one["mean_ttft_ms"], rel=1e-6)
    assert (one["completed"], eight["completed"]) == (64, 512)


def test_a_light_load_leaves_servers_idle():
    """3 in flight meet three servers, each alone; no request is lost."""
    few = metrics("sharegpt-c4", tp=1, replicas=8)
    alone = metrics("sharegpt-c4", tp=1, replicas=1)
    assert few["completed"] == alone["completed"]
    assert few["mean_tpot_ms"] < alone["mean_tpot_ms"]


def test_the_parts_of_a_load_are_all_of_it_and_sessions_stay_whole(tmp_path):
    requests = load_workload("shared-prefix").draw(0, 1)
    parts = [requests.part(i, 3) for i in range(3)]
    assert sum(map(len, parts)) == len(requests)
    assert sum(part.concurrency for part in parts) == requests.concurrency
    assert sorted(np.concatenate([part.group for part in parts])) == sorted(requests.group)
    path = tmp_path / "sessions.jsonl"
    turns = '{"input_tokens": 5, "output_tokens": 4}, {"input_tokens": 6, "output_tokens": 3}'
    path.write_text(f'{{"turns": [{turns}]}}\n' * 5)
    sessions = load_workload(f"sessions:{path}").draw(0, 1)
    for part in (sessions.part(i, 2) for i in range(2)):
        assert part.turns is not None
        assert part.turns.after.tolist() == [-1 if i % 2 == 0 else i - 1 for i in range(len(part))]
        assert len(part) % 2 == 0


def test_vllm_s_front_ends_are_as_many_as_its_data_parallel_ranks():
    """From vLLM 0.15 on (pull request 32525); one before, and as many as are asked for."""
    knobs = {"tp": 1, "dp": 8}
    load = "random:100:100:2000"
    default, asked = metrics(load, **knobs), metrics(load, **knobs, api_server_count=8)
    single = metrics(load, **knobs, api_server_count=1)
    assert default["total_token_throughput"] == asked["total_token_throughput"]
    assert default["total_token_throughput"] > 1.2 * single["total_token_throughput"]
    older = [
        simulate(
            setup("vllm", model=QWEN, version="0.13.0", **knobs, **given), load_workload(load), 0
        ).metrics
        for given in ({}, {"api_server_count": 1})
    ]
    assert older[0] == older[1]


@pytest.mark.parametrize("workload", ["sharegpt:4000", "random:200:100:512"])
def test_the_fast_prediction_has_the_level_of_the_simulation(workload):
    for knobs in ({"replicas": 8, "tensor_parallel": 1}, {"replicas": 4, "tensor_parallel": 2}):
        node = SteadyNode(LIBRARY.model(QWEN), LIBRARY.node("h200"), 8, load_workload(workload))
        fast = node.predict("vllm", "0.33.0", knobs).metrics["total_token_throughput"]
        layout = {"replicas": knobs["replicas"], "tp": knobs["tensor_parallel"]}
        assert fast == pytest.approx(
            metrics(workload, **layout)["total_token_throughput"], rel=0.25
        )


def test_joined_runs_are_in_the_order_of_sending():
    one, other = (
        RequestRecords(*(np.array(column, dtype=float) for column in columns))
        for columns in (
            ([0.0, 2.0], [0.5, 2.5], [1.0, 3.0], [7, 8], [1, 2], [1, 1], [], [0.5, 2.5], [1, 1]),
            ([1.0], [1.2], [1.5], [9], [3], [1], [4.0], [1.2], [3]),
        )
    )
    joined = RequestRecords.side_by_side([one, other])
    assert joined.input_tokens.tolist() == [7, 9, 8]
    assert (joined.token_s.tolist(), joined.token_n.tolist()) == ([0.5, 1.2, 2.5], [1, 3, 1])
    assert RequestRecords.side_by_side([one]) is one
