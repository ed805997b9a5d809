"""Several servers as a layout: which candidates have it, how it is written, and that it is read
back."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import NothingFeasible
from autotune.cli.prediction import simulate
from autotune.engines.command import (
    Command,
    Configuration,
    Scalar,
    gpu_settings_of_servers,
    gpus_of,
)
from autotune.engines.context import Context
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.library import Library
from autotune.engines.registry import engine, split_command
from autotune.node.resolve_command import resolve_for
from autotune.tuner.study.options import SimulateOptions

LIBRARY = Library()
ENGINES = ("vllm", "sglang", "tensorrt_llm")


def context_of(model: str, hardware: str, engine_name: str, gpus: int = 8) -> Context:
    return Context(
        LIBRARY.model(model), LIBRARY.node(hardware), gpus, LIBRARY.engine(engine_name).newest
    )


def layouts(
    model: str, hardware: str, engine_name: str, **pins: Scalar
) -> set[tuple[int, int, int, int]]:
    context = context_of(model, hardware, engine_name)
    found = enumerate_engine(LIBRARY.engine(engine_name), context, pins).configurations
    assert all(gpus_of(one, 99) == 8 for one in found)
    names = ("replicas", "tensor_parallel", "data_parallel", "expert_parallel")
    return {tuple(int(one.knobs.get(name) or 1) for name in names) for one in found}  # type: ignore[misc]


@pytest.mark.parametrize("name", ENGINES)
def test_a_small_model_is_served_by_the_smallest_servers_that_hold_it_and_by_those_twice_as_large(
    name: str,
) -> None:
    assert layouts("Qwen/Qwen3-8B", "h200", name) == {(1, 8, 1, 1), (4, 2, 1, 1), (8, 1, 1, 1)}
    # 141 GB of weights do not fit one GPU of 80 GB.
    assert layouts("meta-llama/Llama-3.3-70B-Instruct", "h100", name) == {
        (1, 8, 1, 1),
        (2, 4, 1, 1),
        (4, 2, 1, 1),
    }


@pytest.mark.parametrize("name", ENGINES)
def test_a_model_with_experts_has_plain_servers_beside_its_layouts_of_one(name: str) -> None:
    found = layouts("openai/gpt-oss-120b", "h200", name)
    assert {one for one in found if one[0] > 1} == {(4, 2, 1, 1), (8, 1, 1, 1)}
    assert (1, 8, 1, 1) in found
    assert {one[0] for one in layouts("deepseek-ai/DeepSeek-V3.2", "h200", name)} == {1}


def test_what_is_not_searched_can_be_pinned() -> None:
    assert layouts("Qwen/Qwen3-8B", "h200", "vllm", data_parallel=8) == {(1, 1, 8, 1)}
    assert layouts("Qwen/Qwen3-8B", "h200", "vllm", replicas=2) == {(2, 4, 1, 1)}
    assert layouts("Qwen/Qwen3-8B", "h200", "vllm", replicas=2, data_parallel=4) == {(2, 1, 4, 1)}


@pytest.mark.parametrize(
    ("name", "hardware", "variable"),
    [
        *((name, "h200", "CUDA_VISIBLE_DEVICES") for name in ENGINES),
        ("sglang", "mi300x", "HIP_VISIBLE_DEVICES"),
    ],
)
def test_a_command_of_several_servers_is_read_back(name: str, hardware: str, variable: str) -> None:
    kind, context = engine(name), context_of("Qwen/Qwen3-8B", hardware, name)
    configuration = Configuration(name, kind.default_knobs(context, {"replicas": 4}))
    assert configuration.knobs["tensor_parallel"] == 2
    command = kind.command(configuration, context)
    assert command.servers == (
        {variable: "0,1"},
        {variable: "2,3"},
        {variable: "4,5"},
        {variable: "6,7"},
    )
    assert kind.knobs(kind.parse(command, context.version), context) == configuration
    typed = replace(command, files={}).shell()
    assert split_command(typed) == replace(command, files={}), "the block may be pasted"
    assert split_command(typed.replace(" --port", " \\\n    --port")).servers == command.servers
    read = resolve_for(kind, command, context)
    assert (read.failure, read.effective.knobs["replicas"]) == (None, 4)
    # As one server the same words take 2 of the 8 GPUs.
    alone = kind.knobs(kind.parse(replace(command, servers=()), context.version), context)
    assert (alone.knobs["replicas"], gpus_of(alone, 8)) == (1, 2)


def test_the_shell_s_form_starts_each_on_its_gpus_and_a_port_of_its_own() -> None:
    """The command printed is run by a shell, with a program that says how it was started."""
    report = 'echo "$CUDA_VISIBLE_DEVICES $*"'
    servers = gpu_settings_of_servers({"replicas": 2, "tensor_parallel": 2}, "nvidia")
    command = Command(("bash", "-c", report, "serve", "a b"), {"X": "$y"}, servers=servers)
    done = subprocess.run(["sh", "-c", command.shell()], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["0,1 a b --port 8000", "2,3 a b --port 8002"]
    assert command.shell().startswith("# 2 servers")
    assert shlex.quote(report) in command.shell()


def test_a_single_server_keeps_the_fingerprint_that_it_had_before_there_were_several() -> None:
    before = Configuration("vllm", {"tensor_parallel": 8})
    now = before.with_knobs(replicas=1, api_server_count=None)
    assert now == before
    assert now.with_knobs(replicas=2) != before
    assert now.with_knobs(api_server_count=2) != before


def test_a_new_knob_changes_no_fingerprint_of_a_recorded_launch() -> None:
    """These were recorded before the cards had `stream_interval` and eighteen others
    (search_spaces/added_knobs.yaml): a study of then resumes."""
    for name, version, recorded in (
        ("vllm", "0.33.0", "7f9527b6592e"),
        ("sglang", "0.5.23", "91edf22efd1a"),
        ("tensorrt_llm", "1.2.0", "ebc794405d4f"),
    ):
        kind, library = engine(name), Library()
        context = Context(
            library.model("deepseek-ai/DeepSeek-V3.2"), library.hardware["h200"], 8, version
        )
        assert Configuration(name, kind.default_knobs(context)).fingerprint == recorded


def test_simulate_takes_copies_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = SimulateOptions(
        "h200", ["vllm", "serve", "Qwen/Qwen3-8B"], workload="random:64:16:64", replicas=8
    )
    simulate(options, Path("nowhere"), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["config"]["replicas"], told["failure"], told["completed"]) == (8, None, 64)
    with pytest.raises(NothingFeasible, match="bad_argument"):
        simulate(replace(options, replicas=9), Path("nowhere"), as_json=True)


def test_a_rule_on_the_load_is_judged_by_what_simulate_sends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """InferenceX 843c6254f, minimaxm2.5_fp8_mi325x.sh: blocks of 32 lie shuffled up to 16 requests
    on two GPUs."""
    typed = (
        "VLLM_ROCM_USE_AITER=1 VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT=1 vllm serve "
        "MiniMaxAI/MiniMax-M2.5 -tp 2 --block-size 32 --attention-backend ROCM_AITER_FA"
    )
    options = SimulateOptions("mi325x", typed.split(), gpus=2, workload="random:64:16:64")
    simulate(replace(options, concurrency=16), Path("nowhere"), as_json=True)
    assert json.loads(capsys.readouterr().out)["failure"] is None
    with pytest.raises(NothingFeasible, match="crashed"):
        simulate(replace(options, concurrency=17), Path("nowhere"), as_json=True)
