"""What an engine says of itself, read back: printed settings, knobs, and what counts as a
difference."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from autotune.base import redact
from autotune.engines.command import Configuration, Resolved
from autotune.engines.context import Context, effective
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.engines.report_back import compare, parse_reported, settings

LIBRARY = Library()
R1 = LIBRARY.model("deepseek-ai/DeepSeek-R1")
H200 = LIBRARY.node("h200")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), VALUES))
def test_a_printed_dictionary_is_read_back(values: dict[str, Any]) -> None:
    assert settings(repr(values)) == values


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), VALUES),
    st.sampled_from([", ", " "]),
)
def test_printed_assignments_are_read_back(values: dict[str, Any], between: str) -> None:
    assert settings(between.join(f"{name}={value!r}" for name, value in values.items())) == values


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(settings(text), dict)
    assert isinstance(settings("a=" + text), dict)
    assert isinstance(settings("{" + text), dict)


def test_what_vllm_prints() -> None:
    # From the log of a vLLM 0.32 on a CPU.
    line = (
        "model='/m', speculative_config=None, tokenizer_mode=auto, dtype=torch.bfloat16, max_seq_len=8192, "
        "tensor_parallel_size=1, quantization=None, enforce_eager=True, device_config=cpu, "
        "structured_outputs_config=StructuredOutputsConfig(backend='auto', reasoning_parser=''), "
        "served_model_name=m, enable_prefix_caching=True, compilation_config={'mode': <CompilationMode.NONE: 0>, "
        "'cache_dir': '', 'compile_ranges_endpoints': [2048], 'cudagraph_mode': <CUDAGraphMode.NONE: 0>, "
        "'max_cudagraph_capture_size': None}, kernel_config=KernelConfig(ir_op_priority=IrOpPriorityConfig("
        "rms_norm=['native']), moe_backend='auto')"
    )
    read = settings(line)
    assert (read["max_seq_len"], read["enforce_eager"], read["dtype"]) == (
        8192,
        True,
        "torch.bfloat16",
    )
    assert read["compilation_config"]["mode"] == "NONE"
    assert read["compilation_config"]["max_cudagraph_capture_size"] is None
    assert read["kernel_config"] == {
        "ir_op_priority": {"rms_norm": ["native"]},
        "moe_backend": "auto",
    }


def test_nothing_is_read_behind_what_cannot_be() -> None:
    assert settings("a=1, b=Odd(c=], d=2), a=3") == {"a": 1, "b": {}}
    assert settings("a=1, b=[2, : 3], c=4") == {"a": 1}, (
        "a colon alone is no item, and does not repeat for ever"
    )


def made_of(name: str, version: str, said: dict[str, Any], **knobs: Any) -> Resolved:
    kind = engine(name, LIBRARY)
    context = Context(R1, H200, 8, version)
    asked = effective(kind.card, Configuration(name, kind.default_knobs(context, knobs)), context)
    command = kind.command(asked, context)
    return compare(kind, asked, context, command, parse_reported(kind, asked, context, said)[1])


def test_a_context_that_was_left_to_the_engine_is_what_it_fitted() -> None:
    """The line of a vLLM 0.32 on a CPU: "Auto-fit max_model_len: reduced from … to 130944"."""
    said = {"fitted": {"max_model_len": "130944"}, "config": {"max_seq_len": 163840}}
    resolved = made_of("vllm", "0.32.0", said, context_length="auto")
    assert resolved.differs == {"context_length": ("auto", 130944)}
    assert resolved.notes == {
        "context_length": "vLLM ran with `context_length=130944`, its own choice"
    }


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"info": {}},
        {"info": {"parallel_config": 3}, "args": {"kv_cache_config": None}},
        {"info": {"tp_size": "eight", "attn_dp_size": [], "max_running_requests": float("nan")}},
        {
            "args": {
                "tensor_parallel_size": "eight",
                "enable_attention_dp": 0,
                "pipeline_parallel_size": {},
            }
        },
        {"config": {"tensor_parallel_size": "eight", "data_parallel_size": "two"}},
    ],
)
def test_what_is_not_told_is_taken_as_asked(name: str, said: dict[str, Any]) -> None:
    found = made_of(name, engine(name, LIBRARY).card.newest, said, context_length=32768)
    assert found.differs == {}


@pytest.mark.parametrize("version", ["0.5.6.post2", "0.5.23"])
def test_dp_attention_divides_and_multiplies_what_is_told(version: str) -> None:
    told = {
        "tp_size": 8, "dp_size": 8, "attn_dp_size": 8, "enable_dp_attention": True, "chunked_prefill_size": 1024,
        "schedule_conservativeness": 0.3, "kv_cache_dtype": "auto", "attention_backend": "FA3",
        "max_running_requests": None,
    }  # fmt: skip
    if version == "0.5.23":
        told["dp_size"] = 1
    found = made_of("sglang", version, {"info": told}, tensor_parallel=1, data_parallel=8)
    assert found.differs == {}, "only the spelling differs"


def test_dp_attention_is_read_where_its_width_is_not_told() -> None:
    told = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "chunked_prefill_size": 1024}
    for version in ("0.5.14", "0.5.23"):
        found = made_of("sglang", version, {"info": told}, tensor_parallel=1, data_parallel=8)
        assert found.differs == {}
        other = made_of(
            "sglang",
            version,
            {"info": {**told, "enable_dp_attention": False, "dp_size": 1}},
            tensor_parallel=1,
            data_parallel=8,
        )
        assert other.differs["data_parallel"] == (8, 1)


@pytest.mark.parametrize(("version", "name"), [("0.5.12", "nsa"), ("0.5.13", "dsa")])
def test_the_sparse_kernels_are_read_under_the_name_of_the_version(version: str, name: str) -> None:
    kind, v32 = engine("sglang", LIBRARY), LIBRARY.model("deepseek-ai/DeepSeek-V3.2")
    context = Context(v32, H200, 8, version)
    asked = effective(kind.card, Configuration("sglang", kind.default_knobs(context)), context)
    said = {"info": {f"{name}_prefill_backend": "fa3", f"{name}_decode_backend": "flashmla_sparse"}}
    assert parse_reported(kind, asked, context, said)[0] == {
        "prefill_attention_backend": "fa3",
        "decode_attention_backend": "flashmla_sparse",
    }


def test_the_cap_under_speculation_is_no_surprise_to_the_packaged_space() -> None:
    told = {
        "max_running_requests": 48,
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 1,
    }
    assert made_of("sglang", "0.5.23", {"info": told}, speculative_tokens=1).differs == {}
    capped = made_of(
        "sglang", "0.5.23", {"info": {**told, "max_running_requests": 48}}, max_running_requests=512
    )
    assert capped.differs["max_running_requests"] == (512, 48)
    assert capped.notes["max_running_requests"].startswith(
        "`--max-running-requests 512` was overridden: SGLang ran with"
    )


@pytest.mark.parametrize(
    ("backend", "differs"), [("full", {}), ("disabled", {"cuda_graph_max_batch": (512, 0)})]
)
def test_graphs_are_read_with_their_backend(backend: str, differs: dict[str, Any]) -> None:
    told = {
        "disable_cuda_graph": False,
        "cuda_graph_config": {"decode": {"max_bs": 512, "backend": backend}},
    }
    assert made_of("sglang", "0.5.23", {"info": told}).differs == differs


@pytest.mark.parametrize(("version", "read"), [("1.2.0", 3), ("1.3.0rc20", 2), ("1.4.0rc1", 2)])
def test_drafts_of_tensorrt_llm_are_read_under_the_name_of_the_version(
    version: str, read: int
) -> None:
    told = settings(
        "speculative_config=MTPDecodingConfig(max_draft_len=2, num_nextn_predict_layers=3)"
    )
    assert made_of("tensorrt_llm", version, {"args": told}, speculative_tokens=1).differs[
        "speculative_tokens"
    ] == (
        1,
        read,
    )


def test_a_backend_that_the_engine_ignores_is_a_no_op() -> None:
    # From 0.18 on the backend decides the size of a block, too.
    default = made_of("vllm", "0.16.0", {"chosen": {"backend": "FLASH_ATTN_MLA"}})
    assert default.differs == {}
    ignored = made_of(
        "vllm", "0.16.0", {"chosen": {"backend": "FLASH_ATTN_MLA"}}, attention_backend="FLASHMLA"
    )
    assert ignored.differs == {"attention_backend": ("FLASHMLA", "FLASH_ATTN_MLA")}
    assert ignored.fingerprint == default.fingerprint
    silent = made_of(
        "vllm",
        "0.16.0",
        {"info": {"attention_config": {"backend": None}}},
        attention_backend="FLASHMLA",
    )
    assert silent.fingerprint == default.fingerprint, (
        "nothing is what it would be without the setting"
    )
    path = {
        "info": {
            "attention_config": {
                "backend": "vllm.v1.attention.backends.mla.flashmla.FlashMLABackend"
            }
        }
    }
    assert made_of("vllm", "0.16.0", path, attention_backend="FLASHMLA").differs == {}, (
        "a class path is no contradiction"
    )


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        (
            "INFO [cuda.py:506] Using FLASHMLA attention backend out of potential backends: ['FLASHMLA', 'X'].",
            "FLASHMLA",
        ),
        ("INFO [cuda.py:446] Using AttentionBackendEnum.FLASH_ATTN_MLA backend.", "FLASH_ATTN_MLA"),
        (
            "INFO [rocm.py:750] Using ROCM_AITER_MLA backend (selected via --attention-backend).",
            "ROCM_AITER_MLA",
        ),
        (
            "INFO [rocm.py:850] Using TRITON_MLA backend out of potential backends: ['TRITON_MLA'].",
            "TRITON_MLA",
        ),
        (
            "INFO [rocm.py:894] Found incompatible backend(s) [ROCM_ATTN, TURBOQUANT, ULTRAQUANT] with decoder. "
            "Overriding with ROCM_AITER_FA out of potential backends: ['ROCM_AITER_FA', 'TRITON_ATTN'].",
            "ROCM_AITER_FA",
        ),
        (
            "INFO [fp8.py:1] Using TRITON Fp8 MoE backend out of potential backends: ['TRITON'].",
            None,
        ),
        ("INFO [rocm.py:886] Using AITER Flash Attention backend for ViT model.", None),
    ],
)
def test_the_attention_backend_in_vllm_s_log(line: str, backend: str | None) -> None:
    source = next(source for source in LIBRARY.engine("vllm").resolved if source.name == "chosen")
    found = re.search(source.pattern or "", line)
    assert (found and found["backend"]) == backend


def test_replicas_of_a_model_without_experts_print_one() -> None:
    kind = engine("vllm", LIBRARY)
    dense = R1.model_copy(
        update={"architecture": R1.architecture.model_copy(update={"experts": 0})}
    )
    context = Context(dense, H200, 8, "0.32.0")
    knobs = kind.default_knobs(context, {"tensor_parallel": 4, "data_parallel": 2})
    asked = effective(kind.card, Configuration("vllm", knobs), context)
    said = {"config": {"tensor_parallel_size": 4, "data_parallel_size": 1}}
    assert parse_reported(kind, asked, context, said)[1] == asked


def test_secrets_in_what_a_server_tells_are_masked() -> None:
    told = {
        "api_key": "correct-horse", "admin_api_key": ["a-b-c-d"], "hf_token": None, "max_total_num_tokens": 5,
        "launch_command": "python -m x --api-key correct-horse", "argv": ["--api-key", "zz-top-1"], "tokenizer": "t",
    }  # fmt: skip
    text = json.dumps(redact.document({"info": told}, {"correct-horse"}))
    for secret in ("correct-horse", "a-b-c-d", "zz-top-1"):
        assert secret not in text
    shown = redact.document(told)
    assert (shown["hf_token"], shown["max_total_num_tokens"], shown["tokenizer"]) == (None, 5, "t")
