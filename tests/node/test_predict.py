"""The package's own entrance, and the knobs that the simulator does not read."""

from __future__ import annotations

import json

import pytest

from autotune.base.errors import RefusedCommand
from autotune.engines.registry import engine
from autotune.node import predict
from autotune.node.resolve_command import changed_defaults
from tests.product.cli import autotune

V32 = "deepseek-ai/DeepSeek-V3.2"

R1 = "--model-path deepseek-ai/DeepSeek-R1 --tp-size 8"
LOAD = "random:64:8:8"


def simulated(options: str = "", **more: object) -> dict:
    return predict(f"python3 -m sglang.launch_server {R1} {options}", LOAD, hardware="h200", **more)


def unread(predicted: dict) -> list[str]:
    return [name for name in predicted["unseen"] if name.startswith("knob ")]


def test_a_command_is_simulated_in_one_call():
    found = simulated(version="0.5.6")
    assert found["failure"] is None
    assert (found["engine"], found["engine_version"], found["workload"]) == (
        "sglang",
        "0.5.6.post2",
        LOAD,
    )
    assert found["interval90"][0] < found["total_token_throughput"] < found["interval90"][1]
    with pytest.raises(RefusedCommand, match="no-such-option"):
        simulated("--no-such-option")


def test_a_knob_that_the_simulator_does_not_read_is_named_and_widens_nothing():
    plain, compiled = simulated(), simulated("--enable-torch-compile")
    assert unread(plain) == []
    assert unread(compiled) == ["knob torch_compile"]
    same = {
        name: value
        for name, value in plain.items()
        if name not in ("unseen", "not_simulated", "config")
    }
    assert same == {name: compiled[name] for name in same}
    assert compiled["unseen"] == [*plain["unseen"], "knob torch_compile"]
    assert (plain["not_simulated"], compiled["not_simulated"]) == ([], ["--enable-torch-compile"])


def test_a_knob_that_is_read_or_is_the_default_is_not_named():
    assert (
        unread(
            simulated(
                "--schedule-conservativeness 0.3 --max-running-requests 64 --moe-a2a-backend none"
            )
        )
        == []
    )


def test_of_what_does_not_run_no_knob_is_said():
    assert unread(simulated("--enable-torch-compile --mem-fraction-static 0.3")) == []


def test_the_command_line_tells_them_apart_from_what_was_never_measured(tmp_path):
    command = ["simulate", "--hw", "h20", "--workload", LOAD]
    engine = "python3 -m sglang.launch_server --model google/gemma-3-27b-it --tp 8 --enable-torch-compile"
    told = autotune(*command, "--", *engine.split(), home=tmp_path)
    assert told.code == 0, told.err
    assert "interval widened, never measured: gpu, model, workload\n" in told.out
    assert "not simulated: --enable-torch-compile\n" in told.out
    assert (
        "knob torch_compile"
        in json.loads(autotune(*command, "--json", "--", *engine.split(), home=tmp_path).out)[
            "unseen"
        ]
    )


def test_versions_are_compared_with_the_defaults_that_changed(tmp_path):
    command = [
        "simulate",
        "--hw",
        "h200",
        "--engine-version",
        "0.33.0",
        "--versus",
        "0.13",
        "--json",
    ]
    told = json.loads(autotune(*command, "--", f"vllm serve {V32} -tp 8", home=tmp_path).out)
    changed = {
        one.get("knob") or one["flag"]: (one["from"], one["to"]) for one in told["changed_defaults"]
    }
    assert changed["async_scheduling"] == (False, True)
    assert changed["memory_fraction"] == (0.9, 0.92)
    assert {one["only"] for one in told["simulated_changes"]} == {"0.33.0"}
    low, high = told["gain_interval90"]
    assert told["versus"] == "vLLM 0.13.0"
    assert low < told["gain_percent"] < high


def test_a_renamed_option_is_said_and_other_defaults_are_of_both_tables(tmp_path):
    typed = f"python3 -m sglang.launch_server --model-path {V32} --tp 8 --cuda-graph-max-bs 256"
    done = autotune(
        "simulate",
        "--hw",
        "h200",
        "--engine-version",
        "0.5.23",
        "--versus",
        "0.5.6",
        "--",
        typed,
        home=tmp_path,
    )
    assert (
        "translated --cuda-graph-max-bs to --cuda-graph-max-bs-decode for SGLang 0.5.23" in done.err
    )
    assert "--hicache-mem-layout: layer_first with SGLang 0.5.6.post2, page_first here" in done.out


def test_an_older_version_gets_the_command_in_its_own_options(tmp_path):
    typed = f"python3 -m sglang.launch_server --model-path {V32} --tp-size 8 --attn-dp-size 8"
    done = autotune("simulate", "--hw", "h200", "--versus", "0.5.3", "--", typed, home=tmp_path)
    assert done.code == 0, done.err
    assert (
        "wrote --tp-size 8 --attn-dp-size 8 as --tp-size 8 --dp-size 8 --enable-dp-attention for SGLang 0.5.3"
        in done.err
    )
    assert "SGLang 0.5.3" in done.out


def test_another_command_line_is_compared_without_a_list_of_defaults(tmp_path):
    other = f"sglang serve --model-path {V32} --tp 8"
    command = [
        "simulate",
        "--hw",
        "h200",
        "--versus",
        other,
        "--json",
        "--",
        f"vllm serve {V32} -tp 8",
    ]
    told = json.loads(autotune(*command, home=tmp_path).out)
    assert told["versus"] == "SGLang 0.5.23"
    assert "changed_defaults" not in told


def test_words_for_the_newest_version_are_read_as_it_and_said(tmp_path):
    command = [
        "simulate",
        "--hw",
        "b300",
        "--engine-version",
        "nightly",
        "--workload",
        LOAD,
        "--json",
    ]
    done = autotune(*command, "--", f"vllm serve {V32} -tp 8", home=tmp_path)
    assert done.err == "nightly is read as the newest known version\n"
    assert json.loads(done.out)["engine_version"] == "0.33.0"


def test_a_default_counts_unless_the_option_is_given_or_a_version_leaves_it_to_the_engine():
    # vllm: --seed is 0 in 0.33 and None in 0.11, --gpu-memory-utilization 0.92 and 0.9.
    versions = [(engine("vllm"), version) for version in ("0.33.0", "0.11.0")]

    def flags(given=(), unstated=False):
        return {one["flag"] for one in changed_defaults(versions, {}, {}, given, unstated=unstated)}

    assert flags() == {"--gpu-memory-utilization"}
    assert {"--seed", "--gpu-memory-utilization"} < flags(unstated=True)
    assert flags(unstated=True) - flags({"seed"}, unstated=True) == {"--seed"}
