"""A trial whose load cannot win any more: on the simulated node, and on a launched server."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.evaluate.launched import Launched
from autotune.evaluate.simulated import Simulated
from autotune.loadgen.request_file import read_requests
from autotune.trial import Launch, Role, State
from tests.evaluate.test_launched import LIBRARY, SPEC, trial

METRIC = "total_token_throughput"
SIMULATED = Simulated(LIBRARY, SPEC.model, SPEC.hardware, 8, 0.03, 0)


def searching(workload, **knobs):
    return replace(trial("sglang", **knobs), role=Role.SEARCH, workloads=(workload,))


@pytest.mark.parametrize("workload", ["long", "sharegpt-c4"])
def test_a_simulated_load_is_cut_where_it_is_hopeless_and_only_there(workload):
    asked = searching(workload)
    whole = SIMULATED(asked)
    value = whole.metrics[workload][METRIC]
    promising = SIMULATED(replace(asked, hopeless_below=value / 1.1))
    assert replace(promising, started_at="") == replace(whole, started_at="")
    hopeless = replace(asked, hopeless_below=value * 2.0)
    cut = SIMULATED(hopeless)
    assert (cut.state, cut.shortened.keys()) == (State.COMPLETE, {workload})
    assert abs(math.log(cut.metrics[workload][METRIC] / value)) < 2 * cut.shortened[workload]
    assert cut.times_s["load"] < 0.7 * whole.times_s["load"]
    assert cut.times_s["ready"] == whole.times_s["ready"]
    assert cut.metrics[workload]["completed"] < whole.metrics[workload]["completed"]
    assert cut.metrics[workload]["saved_s"] > 0
    assert SIMULATED(hopeless).metrics == cut.metrics
    assert Launch.from_json(json.loads(json.dumps(Launch(hopeless, cut).to_json()))).result == cut


def test_only_the_first_workload_and_a_throughput_are_raced():
    both = replace(trial("sglang"), workloads=("short", "long"), hopeless_below=1e9)
    assert "long" not in SIMULATED(both).shortened
    latency = replace(SIMULATED, objective="mean_tpot_ms")
    assert not latency(replace(searching("long"), hopeless_below=1e9)).shortened


def test_several_load_points_are_cut_as_one():
    asked = replace(searching("sweep"), hopeless_below=1e5)
    cut = SIMULATED(asked)
    whole = SIMULATED(replace(asked, hopeless_below=None))
    assert cut.times_s["load"] < whole.times_s["load"] / 3
    error = math.log(cut.metrics["sweep"][METRIC] / whole.metrics["sweep"][METRIC])
    assert abs(error) < 2 * cut.shortened["sweep"]


def test_a_launched_load_is_cut_and_every_phase_is_told(tmp_path: Path) -> None:
    """The least time that is raced is ten seconds: so long this load runs, of more than a minute."""
    said: list[str] = []
    asked = replace(searching("sharegpt-c4"), hopeless_below=3000.0)
    evaluate = Launched(SPEC, LIBRARY, tmp_path)
    result = replace(evaluate, back_off=replace(evaluate.back_off, tell=said.append))(asked)
    assert result.state is State.COMPLETE
    assert result.shortened["sharegpt-c4"] > 0
    assert result.metrics["sharegpt-c4"][METRIC] < 3000
    assert set(result.times_s) == {"launch", "ready", "warmup", "load", "stop"}
    assert result.times_s["load"] < result.metrics["sharegpt-c4"]["saved_s"]
    assert "is forecast" in said[0]
    kept = json.loads((tmp_path / "trials" / "0000" / "sharegpt-c4.json").read_text())
    assert kept["shortened"]["sd"] == result.shortened["sharegpt-c4"]
    requests = read_requests(tmp_path / "trials" / "0000" / kept["requests_file"])
    assert "stopped early" in requests.metadata["stopped"]
