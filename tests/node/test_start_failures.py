"""Which of the documented command lines start: every failure predicted, none invented."""

from __future__ import annotations

import pytest

from autotune.engines.context import Context
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.registry import recognise, split_command
from autotune.node.memory import plan_memory, start_failure, start_warning
from autotune.node.resolve_command import resolve_command
from autotune.node.server import SimulatedServer
from tests.data import LAB, SWEEP, rows
from tests.node.nodes import LIBRARY, V32

VLLM, SGLANG, TRTLLM = (
    f"vllm serve {V32}",
    f"sglang serve --model-path {V32}",
    f"trtllm-serve {V32}",
)


def start(
    command: str, version: str | None, model: str, node: str = "h200", gpus: int = 8
) -> Failure | None:
    """Why a command line would not start; None when it would."""
    context = Context(LIBRARY.model(model), LIBRARY.node(node), gpus, "")
    resolved = resolve_command(split_command(command), LIBRARY, context, version)
    if resolved.failure is not None:
        return resolved.failure
    server = SimulatedServer(resolved.setup)
    return start_failure(server, plan_memory(server))


def test_every_documented_failure_is_predicted_and_none_is_invented() -> None:
    failures = [start(row["command"], row["engine_version"], row["model"]) for row in rows(LAB)]
    for row, failure in zip(rows(LAB), failures, strict=True):
        assert (failure is not None) == bool(row["failure"]), (row["command"], failure)
    kinds = [failure.kind for failure in failures if failure is not None]
    assert kinds == [*[FailureKind.UNSUPPORTED] * 4, FailureKind.CRASHED]


def test_the_sixth_failure_stands_in_a_note_and_is_warned_of() -> None:
    """Of the row with ``--max-model-len 81920`` the document says that the full context ran out of
    memory."""
    row = next(
        row for row in rows(LAB) if "with the full context it ran out of memory" in row["note"]
    )
    command = row["command"].replace(" --max-model-len 81920", "")
    assert command != row["command"]
    context = Context(LIBRARY.model(row["model"]), LIBRARY.node("h200"), 8, "")
    server = SimulatedServer(
        resolve_command(split_command(command), LIBRARY, context, row["engine_version"]).setup
    )
    plan = plan_memory(server)
    assert plan.fit_probability < 0.5
    assert "too close to call" in (start_warning(server, plan) or "")


def test_every_row_of_the_sweep_starts() -> None:
    known = {"tensorrt_llm": "1.0.0", "sglang": "0.4.3.post2", "vllm": "0.11.0"}
    assert len(rows(SWEEP)) == 30
    for row in rows(SWEEP):
        command = f"{row['env']} {row['command']}".strip()
        version = known[recognise(split_command(command).argv).name]
        assert start(command, version, row["model"], row["hardware"].lower()) is None, command


@pytest.mark.parametrize(
    ("command", "gpus", "said"),
    [
        (f"{VLLM} -tp 8", 6, "World size is larger than the number of available GPUs"),
        (f"{SGLANG} --tp 8", 6, "invalid device ordinal"),
        (f"{SGLANG} --pp-size 8", 4, "invalid device ordinal"),
        (f"{TRTLLM} --tp_size 8", 6, "world size is larger"),
        (f"{VLLM} -tp 6", 6, "Total number of attention heads"),
        (f"{SGLANG} --tp 6", 6, "num_heads is not divisible"),
        (f"{TRTLLM} --tp_size 3", 3, "num_heads must be divisible"),
        (f"{SGLANG} --tp 8 --dp 3 --enable-dp-attention", 8, "tp_size % self.dp_size == 0"),
        (f"{SGLANG} --tp 4 --dp 8 --enable-dp-attention", 8, "tp_size % self.dp_size == 0"),
        (f"{SGLANG} --tp 8 --ep-size 3", 8, "tp_size must be divisible by ep_size"),
    ],
)
def test_a_layout_that_does_not_divide_is_the_engines_own_bad_argument(
    command: str, gpus: int, said: str
) -> None:
    failure = start(command, None, V32, gpus=gpus)
    assert failure is not None
    assert failure.kind is FailureKind.BAD_ARGUMENT
    assert said in failure.log_excerpt


@pytest.mark.parametrize(
    ("command", "version", "node", "gpus", "fails"),
    [
        ("{sglang} zai-org/GLM-4.6-FP8 --tp-size 8", "0.5.3", "a100", 8, True),
        ("{sglang} Qwen/Qwen3-30B-A3B-FP8 --tp-size 2", "0.5.23", "a10", 2, True),
        (
            "{sglang} Qwen/Qwen3-30B-A3B --tp-size 2 --quantization fp8",
            "0.5.5.post1",
            "a100",
            2,
            True,
        ),
        ("{sglang} Qwen/Qwen3-32B-FP8", "0.5.5.post1", "a100", 1, False),
        ("{sglang} Qwen/Qwen3-30B-A3B-FP8 --tp-size 2", "0.5.23", "h100", 2, False),
        ("vllm serve zai-org/GLM-4.6-FP8 -tp 8 --max-model-len 32768", "0.11.0", "a100", 8, False),
    ],
)
def test_sglang_has_no_kernel_of_fp8_experts_for_gpus_without_fp8(
    command: str, version: str, node: str, gpus: int, fails: bool
) -> None:
    command = command.format(sglang="python3 -m sglang.launch_server --model-path")
    model = next(word for word in command.split() if "/" in word)
    failure = start(command, version, model, node, gpus)
    assert (failure is not None) == fails, failure
    if failure is not None:
        assert failure.kind is FailureKind.UNSUPPORTED
        assert "type fp8e4nv not supported in this architecture" in failure.message
