"""The engines as they run today: what a start prints, by version and vendor, is read back, and what
ends one has its kind, its phase and its way out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.engines.entry import in_range
from autotune.engines.library import Library
from autotune.node.emulator.launch import Died, EmulatedLaunch, Emulation, prepare_launch
from autotune.node.emulator.process import Log, start
from autotune.servers.logs import known_failure, patterns_of
from autotune.tuner.backends.read_back import kv_cache_tokens, read_source

LIBRARY = Library()
R1 = "deepseek-ai/DeepSeek-R1-0528"
QWEN = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
AITER = "VLLM_ROCM_USE_AITER=1"
Started = Callable[..., tuple[EmulatedLaunch | None, str]]


@pytest.fixture
def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Started:
    """Starts a command line in this process; gives the launch, None if it was refused, and what it
    printed."""

    def begin(
        command: str, hardware: str, version: str | None = None, config: str = ""
    ) -> tuple[EmulatedLaunch | None, str]:
        monkeypatch.chdir(tmp_path)
        words = command.split()
        if config:
            Path("c.yaml").write_text(config)
            words += ["--config", "c.yaml"]
        node = LIBRARY.node(hardware)
        launch = None
        with suppress(Died):
            asked = Emulation(words, node, node.gpus, version, startup_s=0.0, port=1)
            launch = prepare_launch(asked, LIBRARY)
            start(launch, {}, Log(launch, 1, to_stderr=False))
        told = capsys.readouterr()
        return launch, told.out + told.err.replace("\r", "\n")

    return begin


TRTLLM = f"trtllm-serve {R1} --tp_size 8 --ep_size 8"
V2 = "KV cache manager v2 device quota set to "


@pytest.mark.parametrize(
    ("hardware", "version", "config", "prints", "not_printed"),
    [
        ("h200", "1.2.0", "enable_attention_dp: true", "for max tokens in paged KV cache", V2),
        (
            "b200",
            "1.3.0rc24",
            "kv_cache_config: {use_kv_cache_manager_v2: true}",
            V2,
            "max tokens in",
        ),
        ("b200", "1.3.0rc25", "", V2, "max tokens in"),
        ("b200", "1.4.0rc4", "", V2, "max tokens in"),
        ("b200", "1.4.0rc4", "kv_cache_config: {use_kv_cache_manager_v2: false}", "max tokens", V2),
    ],
)
def test_the_kv_cache_behind_the_estimate_is_read_of_either_manager(
    started: Started, hardware: str, version: str, config: str, prints: str, not_printed: str
) -> None:
    moe = "" if hardware == "h200" else "moe_config: {backend: DEEPGEMM}\n"
    launch, log = started(TRTLLM, hardware, version, moe + config)
    assert launch is not None
    assert launch.failure is None, log
    # The first is of one step's tokens, to see what the weights leave.
    assert log.count(prints) == 2
    assert not_printed not in log
    run = launch.resolved
    read = kv_cache_tokens(run.card, log, run.effective, run.context)
    # The newer one tells GiB, which are tokens by the model's own bytes.
    assert read == pytest.approx(launch.memory.capacity_tokens, rel=1e-3 if prints == V2 else 0)


def test_a_backend_of_the_experts_that_cannot_serve_them_is_replaced_with_a_warning(
    started: Started,
) -> None:
    """As moe_resolution.py does from 1.3.0rc25 on; the arguments are printed as they were given."""
    launch, log = started(TRTLLM, "h200", "1.4.0rc4", "moe_config: {backend: TRTLLM}")
    assert launch is not None
    assert launch.failure is None, log
    assert "[W] MoE backend TRTLLM cannot serve this layer; CUTLASS is used." in log
    assert "MoeConfig(backend='TRTLLM'" in log


@pytest.mark.parametrize(
    ("command", "hardware", "backend"),
    [
        (f"vllm serve {QWEN} -tp 8", "mi300x", "ROCM_ATTN"),
        (f"{AITER} vllm serve openai/gpt-oss-120b -tp 8", "mi355x", "ROCM_AITER_FA"),
        ("vllm serve openai/gpt-oss-120b -tp 8", "mi355x", "ROCM_AITER_UNIFIED_ATTN"),
        (f"{AITER} vllm serve {R1} -tp 8", "mi300x", "ROCM_AITER_MLA"),
        (f"{AITER} vllm serve {R1} -tp 8 --attention-backend TRITON_MLA", "mi300x", "TRITON_MLA"),
    ],
)
def test_the_backend_that_rocm_chose_is_read(
    started: Started, command: str, hardware: str, backend: str
) -> None:
    """The order of vLLM 0.33's platforms/rocm.py, and its two ways to tell what was taken."""
    launch, log = started(command, hardware, "0.33.0")
    assert launch is not None
    assert launch.failure is None, log
    sources = [s for s in launch.resolved.card.resolved if s.name == "chosen"]
    (source,) = (s for s in sources if in_range("0.33.0", s.versions))
    told = read_source(source, log)
    assert told is not None
    assert told.settings == {"backend": backend}


@pytest.mark.parametrize(
    ("command", "hardware", "config", "expected", "prints"),
    [
        # Kernels are run first by the autotuner, behind the weights.
        (
            TRTLLM,
            "b200",
            "moe_config: {backend: CUTLASS}",
            "unsupported",
            [
                "GB for model weights",
                "Autotuning process starts",
                "fp8 blockscale gemm only support Hopper",
            ],
        ),
        (
            TRTLLM,
            "h200",
            "moe_config: {backend: DEEPGEMM}",
            "unsupported",
            ["GB for model weights", "Autotuning process starts", "sfa_dtype == torch::kFloat"],
        ),
        (
            TRTLLM,
            "h200",
            "{kv_cache_config: {fraction: 0.8}}",
            "bad_argument",
            ["1 validation error for TorchLlmArgs", "fraction\n  Extra inputs are not permitted"],
        ),
        # The variables are read before everything else, as the platform's module is imported.
        (
            "HIP_VISIBLE_DEVICES=0 CUDA_VISIBLE_DEVICES=1 vllm serve Qwen/Qwen3-8B",
            "mi300x",
            "",
            "infrastructure",
            ["_sync_hip_cuda_env_vars", "HIP_VISIBLE_DEVICES='0' vs CUDA_VISIBLE_DEVICES='1'"],
        ),
        (
            f"vllm serve {QWEN} -tp 8 --attention-backend ROCM_AITER_FA --block-size 8",
            "mi300x",
            "",
            "unsupported",
            ["EngineCore failed to start", "Reason: ['block_size not supported']"],
        ),
        (
            f"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION=INT5 vllm serve {QWEN} -tp 8",
            "mi300x",
            "",
            "bad_argument",
            ["Traceback", "Invalid value 'INT5' for VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"],
        ),
        (
            "python3 -m sglang.launch_server --model-path openai/gpt-oss-120b --tp 8",
            "mi300x",
            "",
            "unsupported",
            ["prepare_server_args", "Unknown quantization method: mxfp4"],
        ),
        (
            f"trtllm-serve {R1} --tp_size 2",
            "h200",
            "",
            "out_of_memory/load",
            ["could not be created: Model", "Executor worker returned error"],
        ),
    ],
)
def test_what_ends_a_start_has_its_kind_and_its_way_out(
    started: Started,
    tmp_path: Path,
    command: str,
    hardware: str,
    config: str,
    expected: str,
    prints: list[str],
) -> None:
    _, log = started(command, hardware, config=config)
    places = [log.find(text) for text in prints]
    assert -1 not in places, log
    assert places == sorted(places)
    (tmp_path / "server.log").write_text(log)
    engine = "tensorrt_llm" if "trtllm-serve" in command else "vllm"
    card = LIBRARY.engine("sglang" if "sglang" in command else engine)
    failure = known_failure(tmp_path / "server.log", patterns_of(card), served=False)
    assert failure is not None, log
    kind, _, phase = expected.partition("/")
    assert (failure.kind, failure.phase if phase else "") == (kind, phase)
    assert failure.message
