"""What a checkpoint says of itself is read, and a layout is refused where the engine refuses it.

Expected refusals: vLLM 0.32.0 built each model's class on the meta device as a rank of so many on
an H200, but for GPTQ's split groups (`test_a_rank_has_whole_groups`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.cards import kv_bytes_per_token, weight_bytes_per_gpu
from autotune.engines.command import Command, Scalar
from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.registry import engine, recognise, split_command
from autotune.node.memory import plan_memory
from autotune.node.resolve_command import resolve_for
from autotune.node.server import SimulatedServer
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.options import RunOptions
from tests.engines.settings import failing_rules
from tests.engines.space.published import FP8_BLOCKS, LLAMA_70B
from tests.engines.space.published_qwen import QWEN3_5_35B

LIBRARY = Library()
DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560,
    "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = {
    **DENSE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "num_key_value_heads": 4,
}  # fmt: skip
NEXT = {
    **EXPERTS, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "moe_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 512, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
MEDIUM = {**DENSE, "num_attention_heads": 40, "num_key_value_heads": 10, "hidden_size": 5120}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
STATIC = {"num_bits": 8, "type": "float", "dynamic": False}
NVFP4 = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": STATIC,
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
}  # fmt: skip


def compressed(cache: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "kv_cache_scheme": cache}


INT4 = compressed(num_bits=4, type="int", group_size=128)
BLOCKS = compressed(num_bits=8, type="float", block_structure=[128, 128])


def saved(folder: Path, config: dict[str, Any], quantization: dict[str, Any] | None = None) -> str:
    whole = {**config, "quantization_config": quantization} if quantization else config
    (folder / "config.json").write_text(json.dumps(whole))
    return str(folder)


@pytest.mark.parametrize(
    ("quantization", "name", "version", "kind"),
    [
        (NVFP4, "vllm", "0.33.0", "fp8_e4m3"),
        (NVFP4, "vllm", "0.13.0", "bfloat16"),
        ({**NVFP4, "kv_cache_scheme": "FP8"}, "vllm", "0.33.0", "fp8_e4m3"),
        ({**NVFP4, "kv_cache_scheme": None}, "vllm", "0.33.0", "bfloat16"),
        (NVFP4, "sglang", "0.5.23", "fp8_e4m3"),
        (NVFP4, "tensorrt_llm", "1.2.0", "fp8"),
        (compressed(STATIC, num_bits=8, type="float"), "vllm", "0.33.0", "fp8"),
        (compressed(STATIC, num_bits=8, type="float"), "vllm", "0.14.0", "bfloat16"),
        (compressed(STATIC, num_bits=8, type="float"), "sglang", "0.5.23", "fp8_e4m3"),
        (compressed(STATIC, num_bits=8, type="float"), "sglang", "0.5.9", "bfloat16"),
        # A scale for each head: SGLang keeps 16 bits.
        (compressed({**STATIC, "strategy": "attn_head"}, num_bits=8), "vllm", "0.33.0", "fp8"),
        (compressed({**STATIC, "strategy": "attn_head"}, num_bits=8), "sglang", "0.5.23", "bfloat16"),
    ],
)  # fmt: skip
def test_the_cache_has_the_type_that_the_checkpoint_says(
    tmp_path: Path, quantization: dict[str, Any], name: str, version: str, kind: Scalar
) -> None:
    model = LIBRARY.model(saved(tmp_path, DENSE, quantization))
    context = Context(model, LIBRARY.hardware["h200"], 8, version)
    assert engine(name).default_knobs(context)["kv_cache_dtype"] == kind


def test_an_fp8_cache_of_the_checkpoint_halves_what_a_long_request_needs(tmp_path: Path) -> None:
    """131,072 tokens x 80 layers x 2 x 8 heads x 128 bytes: 21.5 GB beside 42.7 GB of weights."""
    long = {**LLAMA_70B, "max_position_embeddings": 131072}
    model = LIBRARY.model(saved(tmp_path, long, NVFP4))
    assert 131072 * kv_bytes_per_token(model.architecture, "fp8", 1) == 21474836480
    context = Context(model, LIBRARY.hardware["h100"], 1, "0.33.0")

    def starts(*options: str) -> bool:
        command = Command(("vllm", "serve", model.id, *options))
        return plan_memory(
            SimulatedServer(resolve_for(engine("vllm"), command, context).setup)
        ).starts

    assert starts()
    assert not starts("--kv-cache-dtype", "bfloat16")


@pytest.mark.parametrize(
    ("weights", "layers"),
    [
        (None, 1),  # the class's own number
        (["model.layers.47.mlp.gate.weight"], 0),
        (["mtp.fc.weight", "mtp.layers.0.mlp.gate.weight"], 1),
        (["model.layers.48.eh_proj.weight", "model.layers.49.eh_proj.weight"], 2),
    ],
)
def test_draft_layers_that_the_file_does_not_name_are_found(
    tmp_path: Path, weights: list[str] | None, layers: int
) -> None:
    if weights is not None:
        index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert LIBRARY.model(saved(tmp_path, NEXT)).architecture.mtp_layers == layers


@pytest.mark.parametrize(
    ("config", "quantization", "ranks", "rule"),
    [
        (DENSE, FP8_BLOCKS, 8, "shards-split-blocks"),
        (DENSE, FP8_BLOCKS, 4, None),
        (DENSE, BLOCKS, 8, "shards-split-blocks"),
        (NEXT, FP8_BLOCKS, 8, "shards-split-blocks"),  # 64 inputs of the shared expert
        (NEXT, FP8_BLOCKS, 4, None),
        (DENSE, AWQ, 8, "shards-split-groups"),
        (DENSE, AWQ, 4, None),
        ({**DENSE, "intermediate_size": 10944}, AWQ, 1, "shards-split-groups"),
        (DENSE, GPTQ, 8, "shards-split-groups"),
        (DENSE, {**GPTQ, "group_size": 32}, 8, None),
        (DENSE, {**GPTQ, "group_size": -1}, 8, None),
        (DENSE, {**GPTQ, "desc_act": True}, 1, "activation-order"),
        (DENSE, {**GPTQ, "desc_act": True, "group_size": -1}, 1, None),
        (DENSE, INT4, 8, "shards-split-groups"),
        (EXPERTS, INT4, 2, None),
        (EXPERTS, INT4, 4, "expert-shards-split-groups"),
        (EXPERTS, AWQ, 8, None),  # its experts get finer groups
        (EXPERTS, BLOCKS, 4, "expert-shards-split-compressed-blocks"),
        (EXPERTS, FP8_BLOCKS, 4, None),
        (MEDIUM, None, 2, None),
        (MEDIUM, None, 4, "kv-heads-not-divisible"),
        (MEDIUM, None, 8, "kv-heads-not-divisible"),
        (DENSE, {"quant_method": "bitsandbytes", "load_in_4bit": True}, 1, "bitsandbytes-is-gone"),
    ],
)
def test_a_rank_has_whole_groups(
    tmp_path: Path,
    config: dict[str, Any],
    quantization: dict[str, Any] | None,
    ranks: int,
    rule: str | None,
) -> None:
    """vLLM 0.32 builds GPTQ's model of 1,216 inputs a rank, too; Machete then refuses its nine
    scales for ten groups (machete_mm_kernel.cuh)."""
    model = saved(tmp_path, config, quantization)
    command = f"vllm serve {model} --tensor-parallel-size {ranks}"
    assert failing_rules(command, "0.32.0", model) == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("config", "quantization", "ranks", "rule"),
    [
        (DENSE, FP8_BLOCKS, 8, "shards-split-blocks"),
        (DENSE, FP8_BLOCKS, 4, None),
        (DENSE, AWQ, 8, "shards-split-groups"),
        (DENSE, GPTQ, 8, "shards-split-groups"),
        (DENSE, GPTQ, 4, None),
        # 64 keys of a rank; vLLM allows them from 0.16 on.
        (
            {**DENSE, "head_dim": 64, "intermediate_size": 8192},
            FP8_BLOCKS,
            8,
            "shards-split-blocks",
        ),
    ],
)
def test_sglang_refuses_split_blocks_and_groups_as_well(
    tmp_path: Path, config: dict[str, Any], quantization: dict[str, Any], ranks: int, rule: str
) -> None:
    model = saved(tmp_path, config, quantization)
    command = f"python3 -m sglang.launch_server --model-path {model} --tp {ranks}"
    assert failing_rules(command, "0.5.23", model) == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("quantization", "version", "rule"),
    [
        ({**GPTQ, "desc_act": True}, "0.29.0", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "0.27.0", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "0.28.0", "bitsandbytes-is-gone"),
    ],
)
def test_a_method_is_refused_from_the_version_on_that_lost_it(
    tmp_path: Path, quantization: dict[str, Any], version: str, rule: str | None
) -> None:
    model = saved(tmp_path, DENSE, quantization)
    assert failing_rules(f"vllm serve {model}", version, model) == ([rule] if rule else [])


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_baseline_is_a_layout_that_starts(tmp_path: Path, name: str) -> None:
    asked = RunOptions(saved(tmp_path, MEDIUM), "h200", engines=(name,), on="simulator", study="s")
    knobs = prepare(build_spec(asked), LIBRARY).candidates.baseline_candidate.configuration.knobs
    assert (knobs["replicas"], knobs["tensor_parallel"]) == (4, 2)


def test_names_of_linear_attention_are_those_of_the_list(tmp_path: Path) -> None:
    """vLLM 0.32.0 holds 15.464 GB of the model that shared/data/cases/discovery has as
    bytes-qwen3.5-nvfp4: eight layers of 3,072, of which the experts alone are quantised."""
    names = ("linear_attn*", "self_attn*", "mlp.shared_expert*")
    text = {
        **QWEN3_5_35B["text_config"], "hidden_size": 3072, "num_hidden_layers": 8,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_attention_heads": 32,
        "linear_num_value_heads": 64, "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    }  # fmt: skip
    text["layer_types"] *= 2
    ignored = [f"model.language_model.layers.{n}.{name}" for n in range(8) for name in names]
    config = {**QWEN3_5_35B, "text_config": text}
    model = LIBRARY.model(saved(tmp_path, config, {**NVFP4, "ignore": ignored}))
    held = weight_bytes_per_gpu(model.architecture, 1, 1, 1, mtp=False)
    assert held / 1e9 == pytest.approx(15.464, rel=0.002)


def test_an_algorithm_without_its_method_is_no_quantisation(tmp_path: Path) -> None:
    """vLLM 0.32.0 loads Qwen3-32B's file of this form in 16 bits."""
    model = LIBRARY.model(saved(tmp_path, DENSE, {**NVFP4, "quant_method": ""}))
    assert model.architecture.weight_bytes == 2.0


@pytest.mark.parametrize(
    ("command", "version", "starts"),
    [
        ("vllm serve {} --tensor-parallel-size 4", "0.32.0", True),
        ("vllm serve {} --tensor-parallel-size 8", "0.32.0", False),
        ("vllm serve {} --tensor-parallel-size 8 --mm-encoder-tp-mode data", "0.32.0", True),
        ("python3 -m sglang.launch_server --model-path {} --tp 8", "0.5.23", False),
        (
            "python3 -m sglang.launch_server --model-path {} --tp 8 --mm-enable-dp-encoder",
            "0.5.23",
            True,
        ),
    ],
)
def test_a_vision_part_is_cut_by_its_heads(
    tmp_path: Path, command: str, version: str, starts: bool
) -> None:
    """GLM-4.1V's twelve, which its class has where the file says nothing."""
    name = "Glm4vForConditionalGeneration"
    text = {**DENSE, "model_type": "glm4v_text", "architectures": [name]}
    config = {"architectures": [name], "model_type": "glm4v", "text_config": text}
    model = LIBRARY.model(saved(tmp_path, {**config, "vision_config": {"depth": 24}}))
    split = split_command(command.format(model.id))
    context = Context(model, LIBRARY.hardware["h200"], 8, version)
    kind = recognise(split.argv)
    resolved = resolve_for(kind, split, context)
    assert (resolved.failure is None) is starts
    # A candidate has the option where it needs it.
    written = kind.command(resolved.effective, context)
    assert resolve_for(kind, written, context).failure is None


@pytest.mark.parametrize(
    ("method", "option", "starts"),
    [
        ("fp8", "--quantization awq", False),
        ("gptq", "--quantization fp8", False),
        ("gptq", "--quantization gptq_marlin", True),
        ("fbgemm_fp8", "", False),
        ("fbgemm_fp8", "--allow-deprecated-quantization", True),
    ],
)
def test_an_option_fits_the_checkpoint_s_own_method(
    tmp_path: Path, method: str, option: str, starts: bool
) -> None:
    own = GPTQ if method == "gptq" else {"quant_method": method}
    model = LIBRARY.model(saved(tmp_path, DENSE, own))
    context = Context(model, LIBRARY.hardware["h200"], 8, "0.33.0")
    command = split_command(f"vllm serve {model.id} {option}")
    assert (resolve_for(engine("vllm"), command, context).failure is None) is starts


def test_a_quantisation_that_no_file_describes_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "Some-Model-NVFP4"
    folder.mkdir()
    model = LIBRARY.model(saved(folder, DENSE))
    context = Context(model, LIBRARY.hardware["h200"], 8, "0.33.0")
    told = resolve_for(engine("vllm"), split_command(f"vllm serve {folder}"), context).changes
    assert "no file says how" in "".join(told)
    described = {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (folder / "hf_quant_config.json").write_text(json.dumps(described))
    assert not LIBRARY.model(str(folder)).untold


@pytest.mark.parametrize(
    ("model", "held"),
    [
        ("openai/gpt-oss-120b", {1: 65.14, 2: 33.33, 4: 17.37, 8: 8.71}),
        ("openai/gpt-oss-20b", {4: 3.62, 8: 1.81}),
    ],
)
def test_a_rank_s_part_of_an_expert_is_padded(model: str, held: dict[int, float]) -> None:
    """GB that vLLM 0.32.0 holds; 2,880 columns are 45 tiles of 64."""
    a = LIBRARY.model(model).architecture
    for ranks, size in held.items():
        padded = weight_bytes_per_gpu(a, ranks, ranks, 1, mtp=False)
        assert padded / 1e9 == pytest.approx(size, rel=0.01)
    spread = weight_bytes_per_gpu(a, 8, 8, 1, mtp=False, expert_parallel=8)
    assert spread < 0.96 * weight_bytes_per_gpu(a, 8, 8, 1, mtp=False)


@pytest.mark.parametrize(("ranks", "finer"), [(2, 1.0), (4, 1.0375), (8, 1.1125)])
def test_experts_get_finer_groups_where_a_rank_would_split_them(
    tmp_path: Path, ranks: int, finer: float
) -> None:
    """768 columns: 192 a rank in groups of 64, 96 in groups of 32, instead of 128."""
    a = LIBRARY.model(saved(tmp_path, EXPERTS, AWQ)).architecture
    whole = LIBRARY.model(saved(tmp_path, EXPERTS, {**AWQ, "group_size": 32})).architecture
    coarse = (4 + 20 / 128) / 8
    assert whole.weight_bytes / coarse == pytest.approx(1.1125, rel=0.01)
    plain = a.model_copy(update={"weight_group": 0})
    grown, before = (weight_bytes_per_gpu(one, ranks, ranks, 1, mtp=False) for one in (a, plain))
    experts = 36 * 128 * 3 * 2048 * 768 / ranks
    assert (grown - before) / experts / coarse + 1 == pytest.approx(finer, rel=0.002)


def test_a_quantised_head_and_projections_in_parts_count_with_their_bytes(tmp_path: Path) -> None:
    """As nvidia/Qwen3.6-35B-A3B-NVFP4 lists its modules; bytes of vLLM 0.33.0's own model."""
    fp4, fp8 = {"quant_algo": "W4A16_NVFP4", "group_size": 16}, {"quant_algo": "FP8"}
    parts = {
        **{f"linear_attn.{name}": fp8 for name in ("in_proj_qkv", "in_proj_z", "out_proj")},
        **{"self_attn": fp8, "mlp.experts": fp4, "mlp.shared_expert": fp4},
    }
    layers = [f"model.language_model.layers.{number}" for number in range(40)]
    listed = {f"{layer}.{part}": how for layer in layers for part, how in parts.items()}
    listed["lm_head"] = fp4
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    model = LIBRARY.model(saved(tmp_path, QWEN3_5_35B, {**mixed, "quantized_layers": listed}))
    for ranks, size in ((1, 20825158982), (8, 2648375702)):
        stored = weight_bytes_per_gpu(model.architecture, ranks, ranks, 1, mtp=False)
        assert stored == pytest.approx(size, rel=0.02)
