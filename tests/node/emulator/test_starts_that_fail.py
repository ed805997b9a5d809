"""Command lines that an engine refuses, and servers that do not come up: exit codes and telling
lines."""

import socket

import pytest

from tests.node.emulator.servers import COMMANDS, R1, V32, launched

VLLM, SGLANG, TRTLLM = COMMANDS["vllm"], COMMANDS["sglang"], COMMANDS["tensorrt_llm"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ([*VLLM, "--max-num-sekvs", "4"], "vllm: error: unrecognized arguments: --max-num-sekvs 4"),
        (
            [*VLLM, "--dtype", "bf17"],
            "vllm serve: error: argument --dtype: invalid choice: 'bf17' (choose from",
        ),
        (
            [*VLLM, "--max-num-seqs", "many"],
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
        ),
        (
            [*SGLANG, "--max-runing", "4"],
            "launch_server.py: error: unrecognized arguments: --max-runing 4",
        ),
        (
            [*SGLANG, "--kv-cache-dtype", "fp7"],
            "launch_server.py: error: argument --kv-cache-dtype: invalid choice",
        ),
        ([*TRTLLM, "--max_batch", "4"], "Error: No such option: --max_batch"),
        (
            [*TRTLLM, "--max_batch_size", "x"],
            "Error: Invalid value for '--max_batch_size': 'x' is not a valid integer.",
        ),
        ([*TRTLLM, "--backend", "x"], "Error: Invalid value for '--backend': 'x' is not one of"),
        ([*TRTLLM, "--max_batch_size"], "Error: Option '--max_batch_size' requires an argument."),
    ],
)
def test_a_refused_command_line_ends_as_the_engines(command, line):
    ended = launched(*command)
    assert ended.code == 2
    assert ended.lines[-1].startswith(line)


@pytest.mark.parametrize(
    ("command", "version", "line"),
    [
        ([*SGLANG, "--dcp-size", "2"], "0.5.6", "unrecognized arguments: --dcp-size"),
        ([*TRTLLM, "--enable_attention_dp"], "1.2.1", "No such option: --enable_attention_dp"),
    ],
)
def test_versions_have_their_own_parsers(command, version, line):
    ended = launched(*command, options=("--engine-version", version))
    assert ended.code == 2
    assert line in ended.lines[-1]


@pytest.mark.parametrize(
    ("command", "telling", "last"),
    [
        (
            [
                "vllm",
                "serve",
                V32,
                "-tp",
                "8",
                "--gpu-memory-utilization",
                "0.65",
                "--max-model-len",
                "160000",
            ],
            "To serve at least one request with the model's max seq len (160000)",
            "leaked shared_memory",
        ),
        (
            ["vllm", "serve", V32, "-tp", "2"],
            "torch.OutOfMemoryError: CUDA out of memory.",
            "leaked shared_memory",
        ),
        (
            ["vllm", "serve", V32, "-tp", "8", "--attention-backend", "FLASHMLA"],
            "sparse not supported",
            "leaked shared_memory",
        ),
        (
            [*SGLANG, "--pp-size", "2"],
            "CUDA error: invalid device ordinal",
            "Received sigquit from a child process",
        ),
        (
            ["python3", "-m", "sglang.launch_server", "--model-path", R1, "--tp", "2"],
            "out of memory",
            "sigquit",
        ),
        (
            ["trtllm-serve", R1, "--tp_size", "6"],
            "num_heads must be divisible",
            "Executor worker returned error",
        ),
    ],
)
def test_a_server_that_cannot_start_says_why_before_its_noise(command, telling, last):
    ended = launched(*command)
    assert ended.code == 1
    told = [i for i, line in enumerate(ended.lines) if telling in line]
    assert told, ended.log
    assert told[0] < len(ended.lines) - 1
    assert last in ended.lines[-1]


def test_memory_runs_out_after_the_weights_and_a_rule_fails_before():
    memory, rule = (
        launched("vllm", "serve", V32, "-tp", "2"),
        launched(*VLLM, "--attention-backend", "FLASHMLA"),
    )
    assert "Loading safetensors checkpoint shards: 100% Completed" in memory.log
    assert "shards" not in rule.log


@pytest.mark.parametrize(
    ("command", "telling"),
    [
        ([*VLLM, "--block-size", "128"], "ValueError: No common block size for 128."),
        (
            [*SGLANG, "--dp", "8", "--enable-dp-attention", "--enable-torch-compile"],
            "Capture CUDA graph failed",
        ),
        (
            [*SGLANG, "--dp", "8", "--enable-dp-attention", "--cuda-graph-max-bs-decode", "96"],
            "Capture CUDA graph failed",
        ),
    ],
)
def test_something_fails_that_no_rule_and_no_simulator_knows(command, telling):
    from autotune.engines.context import Context
    from autotune.engines.library import Library
    from autotune.engines.registry import command_of
    from autotune.node.memory import plan_memory, start_failure
    from autotune.node.resolve_command import resolve_command
    from autotune.node.server import SimulatedServer

    library = Library()
    resolved = resolve_command(
        command_of(command), library, Context(library.model(V32), library.node("h200"), 8, "")
    )
    server = SimulatedServer(resolved.setup)
    assert resolved.failure is None
    assert start_failure(server, plan_memory(server)) is None
    ended = launched(*command)
    assert ended.code == 1
    assert telling in ended.log


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = launched(*VLLM, options=("--port", str(taken.getsockname()[1])))
    assert ended.code == 1
    assert "OSError: [Errno 98] Address already in use" in ended.lines[-1]


@pytest.mark.parametrize(
    ("command", "options", "told"),
    [
        (["vllm", "serve", "somebody/unknown-7b"], (), "unknown model 'somebody/unknown-7b'"),
        (VLLM, ("--fault", "dies"), "unknown fault 'dies'"),
        (VLLM, ("--speed", "0"), "--speed 0: must be above 0"),
        (VLLM, ("--speed", "nan"), "--speed nan: must be above 0"),
        (VLLM, ("--startup-s", "nan"), "--startup-s nan: must be a number"),
        (VLLM, ("--engine-version", "oldest"), "unknown vllm version 'oldest'"),
        (["ls", "-l"], (), "not an engine's command line"),
    ],
)
def test_bad_input_is_one_message(command, options, told):
    ended = launched(*command, options=options)
    assert ended.code == 2
    assert ended.log.startswith("autotune: ")
    assert told in ended.log
    assert len(ended.lines) == 1
