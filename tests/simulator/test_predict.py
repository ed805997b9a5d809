"""The package's own entrance, and the knobs that the simulator does not read."""

from __future__ import annotations

import json

import pytest

from autotune.errors import RefusedCommand
from autotune.simulator import predict
from tests.product.cli import autotune

R1 = "--model-path deepseek-ai/DeepSeek-R1 --tp-size 8"
LOAD = "random:64:8:8"


def simulated(options: str = "", **more: object) -> dict:
    return predict(f"python3 -m sglang.launch_server {R1} {options}", LOAD, hardware="h200", **more)


def unread(predicted: dict) -> list[str]:
    return [name for name in predicted["unseen"] if name.startswith("knob ")]


def test_a_command_is_simulated_in_one_call():
    found = simulated(version="0.5.6")
    assert found["failure"] is None
    assert (found["engine"], found["engine_version"], found["workload"]) == ("sglang", "0.5.6.post2", LOAD)
    assert found["interval90"][0] < found["total_token_throughput"] < found["interval90"][1]
    with pytest.raises(RefusedCommand, match="no-such-option"):
        simulated("--no-such-option")


def test_a_knob_that_the_simulator_does_not_read_is_named_and_widens_nothing():
    plain, compiled = simulated(), simulated("--enable-torch-compile")
    assert unread(plain) == []
    assert unread(compiled) == ["knob torch_compile"]
    same = {name: value for name, value in plain.items() if name not in ("unseen", "config")}
    assert same == {name: compiled[name] for name in same}
    assert compiled["unseen"] == [*plain["unseen"], "knob torch_compile"]


def test_a_knob_that_is_read_or_is_the_default_is_not_named():
    assert unread(simulated("--schedule-conservativeness 0.3 --max-running-requests 64 --moe-a2a-backend none")) == []


def test_of_what_does_not_run_no_knob_is_said():
    assert unread(simulated("--enable-torch-compile --mem-fraction-static 0.3")) == []


def test_the_command_line_tells_them_apart_from_what_was_never_measured(tmp_path):
    command = ["simulate", "--hw", "b200", "--workload", LOAD]
    engine = "python3 -m sglang.launch_server --model meta-llama/Llama-3.3-70B-Instruct --tp 8 --enable-torch-compile"
    told = autotune(*command, "--", *engine.split(), home=tmp_path)
    assert told.code == 0, told.err
    assert "wider because nothing like it was measured: gpu, model, workload\n" in told.out
    assert "not simulated, so without effect here: knob torch_compile\n" in told.out
    assert (
        "knob torch_compile"
        in json.loads(autotune(*command, "--json", "--", *engine.split(), home=tmp_path).out)["unseen"]
    )
