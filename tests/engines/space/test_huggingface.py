"""Published configurations give the published figures; a file of no decoder is refused."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput, MalformedFile
from autotune.engines.cards import (
    Architecture,
    ModelCard,
    active_parameters,
    kv_bytes_per_token,
    total_parameters,
    weight_bytes_per_gpu,
)
from autotune.engines.config_json import model_from_file
from autotune.engines.library import Library
from tests.engines.settings import shared
from tests.engines.space.published import (
    DEEPSEEK_V3,
    FP8_BLOCKS,
    GEMMA_27B,
    GLM_4_6,
    GLM_5_2,
    GPT_OSS,
    INT4_EXPERTS,
    KIMI_K2,
    LLAMA_70B,
    MAVERICK,
    PUBLISHED,
    QWEN3_30B,
    QWEN3_235B,
)
from tests.engines.space.published_qwen import QWEN3_5_35B, QWEN3_8B, QWEN3_14B, QWEN3_32B

LIBRARY = Library()
LLAMA_4 = ("meta-llama/Llama-4-Maverick-17B-128E", "meta-llama/Llama-4-Scout-17B-16E")
NVFP4 = {"quant_algo": "NVFP4", "group_size": 16}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def described(folder: Path, config: dict[str, Any]) -> Architecture:
    (folder / "config.json").write_text(json.dumps(config))
    return LIBRARY.model(str(folder)).architecture


@lru_cache
def published(name: str) -> Architecture:
    with TemporaryDirectory() as folder:
        return described(Path(folder), PUBLISHED[name][0])


def gigabytes(a: Architecture) -> float:
    """The weights on one device."""
    return weight_bytes_per_gpu(a, 1, 1, 1, mtp=False) / 1e9


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_those_that_the_authors_publish(tmp_path: Path, name: str) -> None:
    config, total, active = PUBLISHED[name]
    a = described(tmp_path, config)
    assert total_parameters(a) / 1e9 == pytest.approx(total, rel=0.014)
    if active is not None:
        # Authors count the embedding as active or do not, and round: GLM-4.5-Air's 12.8 to 12.
        embedding = 0 if a.tied_embeddings else a.vocab_size * a.hidden_size
        both = active_parameters(a) / 1e9, (active_parameters(a) + embedding) / 1e9
        assert min(abs(count / active - 1) for count in both) < (0.07 if "Air" in name else 0.035)


@pytest.mark.parametrize("card", [*LIBRARY.models.values()], ids=lambda card: card.id)
def test_a_shipped_card_says_what_the_config_says(tmp_path: Path, card: Any) -> None:
    known = {f"deepseek-ai/DeepSeek-{name}" for name in ("V3-0324", "V3.1", "R1", "R1-0528")}
    sparse = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
    configs = {
        **{name: config for name, (config, *_) in PUBLISHED.items()},
        **dict.fromkeys(known, DEEPSEEK_V3),
        "deepseek-ai/DeepSeek-V3.2": {**DEEPSEEK_V3, **sparse},
        "zai-org/GLM-5.2-FP8": {**GLM_5_2, "quantization_config": FP8_BLOCKS},
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": {**QWEN3_235B, "quantization_config": FP8_BLOCKS},
        **{
            f"Qwen/Qwen3-{n}-FP8": {**config, "quantization_config": FP8_BLOCKS}
            for n, config in QWEN3.items()
        },
        **{
            f"Qwen/Qwen3-{n}-AWQ": {**config, "quantization_config": AWQ}
            for n, config in QWEN3.items()
        },
        "Qwen/Qwen3.5-35B-A3B-FP8": {**QWEN3_5_35B, "quantization_config": FP8_BLOCKS},
        **{
            f"{name}-FP8": {**PUBLISHED[name][0], "quantization_config": FP8_BLOCKS}
            for name in (
                "Qwen/Qwen3-30B-A3B-Instruct-2507",
                "Qwen/Qwen3-Coder-480B-A35B-Instruct",
            )
        },
        **{f"{name}-Instruct": PUBLISHED[name][0] for name in LLAMA_4},
        "zai-org/GLM-4.6-FP8": {
            **GLM_4_6,
            "quantization_config": compressed(8, "float", None, activations=8),
        },
    }
    # Kimi-K3's figures there are without its quantisation.
    if card.id in configs.keys() - {"moonshotai/Kimi-K3"}:
        assert described(tmp_path, configs[card.id]) == card.architecture
        return
    published = MODEL_CONFIGS.get(card.id, card.id).replace("/", "--")
    read = model_from_file(shared(f"model_configs/{published}/config.json"))
    stored = QUANTISATION if "NVFP4" in published and "NVFP4" not in card.id else set()
    assert read.family == card.family
    assert read.architectures == card.architectures or card.id in OTHER_CLASSES
    assert read.architecture.model_dump(exclude=stored) == card.architecture.model_dump(
        exclude=stored
    )


OTHER_CLASSES = {"MiniMaxAI/MiniMax-M3", "stepfun-ai/Step-3.7-Flash"}
"""Of these the collected files have classes of their own; the cards have the engines'."""
QUANTISATION = {
    *(name for name in Architecture.model_fields if name.endswith("weight_bytes")),
    "matrices_in",
    "quant_method",
    "kv_cache_scheme",
}
MODEL_CONFIGS = {
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "google/gemma-4-26B-A4B-it": "google/gemma-4-26B-A4B",
    "Qwen/Qwen3.5-122B-A10B": "nvidia/Qwen3.5-122B-A10B-NVFP4",
    "Qwen/Qwen3.6-35B-A3B": "nvidia/Qwen3.6-35B-A3B-NVFP4",
}
"""Checkpoints whose figures, but for the quantisation, are those of another name."""


@pytest.mark.parametrize("card", [*LIBRARY.models.values()], ids=lambda card: card.id)
def test_a_card_has_as_many_parameters_as_its_name_says(card: ModelCard) -> None:
    said = re.search(r"-(\d+(?:\.\d+)?)B(?:-A(\d+)B)?(?!-\d+E)", card.id)
    if said is None:
        return
    a = card.architecture
    assert total_parameters(a) / 1e9 == pytest.approx(float(said[1]), rel=0.055)
    if said[2] is not None:
        # Of the embedding, which some names count.
        embedding = a.vocab_size * a.hidden_size
        both = active_parameters(a) / 1e9, (active_parameters(a) + embedding) / 1e9
        assert any(count == pytest.approx(float(said[2]), rel=0.12, abs=0.6) for count in both)


QWEN3 = {"8B": QWEN3_8B, "14B": QWEN3_14B, "32B": QWEN3_32B}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def compressed(
    bits: int, kind: str, group: int | None, activations: int | None = None
) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": kind,
        "group_size": group,
        "strategy": "group" if group else "channel",
    }
    inputs = {"num_bits": activations, "type": kind} if activations else None
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        },
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize(
    ("config", "quantization", "size_gb", "matrices_in"),
    [
        # Sizes of the files on the hub, where such a checkpoint is published.
        (GPT_OSS, GPT_OSS["quantization_config"], 65.2, "bf16"),
        (KIMI_K2, INT4_EXPERTS, 594, "bf16"),
        (DEEPSEEK_V3, FP8_BLOCKS, 672, "fp8"),
        (LLAMA_70B, AWQ, 39.8, "bf16"),
        (LLAMA_70B, {"quant_method": "gptq", "bits": 8, "group_size": 128}, 74.2, "bf16"),
        (LLAMA_70B, compressed(8, "float", None, activations=8), 72.7, "fp8"),
        (LLAMA_70B, compressed(4, "float", 16, activations=4), 42.7, "fp4"),
        (LLAMA_70B, {"quant_method": "modelopt", "quant_algo": "FP8"}, 72.7, "fp8"),
        (LLAMA_70B, None, 141.1, None),
    ],
    ids=[
        "mxfp4",
        "int4-experts",
        "fp8",
        "awq",
        "gptq8",
        "fp8-channel",
        "nvfp4-groups",
        "modelopt",
        "bf16",
    ],
)
def test_each_part_has_its_own_bytes(
    tmp_path: Path,
    config: dict[str, Any],
    quantization: Any,
    size_gb: float,
    matrices_in: str | None,
) -> None:
    a = described(tmp_path, {**config, "quantization_config": quantization})
    assert gigabytes(a) == pytest.approx(size_gb, rel=0.01)
    assert a.matrices_in == matrices_in


def test_excluded_modules_keep_their_sixteen_bits(tmp_path: Path) -> None:
    left_out = [*(f"model.layers.{i}.self_attn*" for i in range(61)), "model.layers.61*", "lm_head"]
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps(
            {
                "producer": {"name": "modelopt"},
                "quantization": {**NVFP4, "exclude_modules": left_out},
            }
        )
    )
    a = described(tmp_path, {**DEEPSEEK_V3, "quantization_config": None})
    assert (a.weight_bytes, a.attention_weight_bytes, a.dense_weight_bytes) == (0.5625, 2.0, None)
    assert (a.mtp_weight_bytes, a.multiplied_in(a.weight_bytes)) == (2.0, "fp4")
    with_mtp = weight_bytes_per_gpu(a, 8, 8, 1, mtp=True) - weight_bytes_per_gpu(
        a, 8, 8, 1, mtp=False
    )
    assert with_mtp > 2.0 * 256 * 3 * 7168 * 2048 / 8


def test_mixed_algorithms_are_told_apart(tmp_path: Path) -> None:
    layers = {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4"} for i in range(48)}
    layers |= {
        f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"}
        for i in range(48)
        for p in "qkvo"
    }
    mixed = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
    }
    a = described(tmp_path, {**QWEN3_30B, "quantization_config": mixed})
    assert (a.weight_bytes, a.attention_weight_bytes) == (0.5625, 1.0)
    assert (a.multiplied_in(0.5625), a.multiplied_in(1.0), a.multiplied_in(2.0)) == (
        "fp4",
        "fp8",
        "bf16",
    )


def test_windows_chunks_and_shared_indexers_are_counted(tmp_path: Path) -> None:
    gemma, maverick, glm = (
        described(tmp_path, config) for config in (GEMMA_27B, MAVERICK, GLM_5_2)
    )
    assert (gemma.sliding_window, gemma.sliding_layers, gemma.tied_embeddings) == (1024, 52, True)
    assert (maverick.sliding_window, maverick.sliding_layers, maverick.dense_layers) == (
        8192,
        36,
        24,
    )
    assert glm.indexer is not None
    assert (glm.indexer.layers, glm.dense_layers, glm.context_limit) == (21, 3, 1048576)
    full, cut = (kv_bytes_per_token(gemma, "bfloat16", 1, length) for length in (0, 102400))
    assert cut / full == pytest.approx((10 + 52 / 100) / 62)
    mistral = {**LLAMA_70B, "model_type": "mistral", "sliding_window": 4096}
    assert described(tmp_path, mistral).sliding_layers == 80
    assert described(tmp_path, {**mistral, "model_type": "llama"}).sliding_layers == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"architectures": ["LLaDAModelLM"]}, "architectures: LLaDAModelLM"),
        ({"architectures": ["BertForSequenceClassification"]}, "not an autoregressive text model"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ({"vocab_size": None}, r"vocab_size missing.*docs/models\.md"),
        ({"block_configs": [{}], "num_attention_heads": None}, r"num_attention_heads missing"),
        ({"block_configs": [{}], "hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"block_configs": [{}], "num_hidden_layers": 10**9}, "num_hidden_layers is above 10,000"),
        (
            {"mlp_layer_types": ["dense"], "num_experts": 8, "num_experts_per_tok": 1},
            "1 entries.*80 layers",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "bits is None"),
        (
            {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["re:("]}},
            "pattern of modules",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_file_of_no_decoder_or_a_malformed_one_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(MalformedFile, match=words) as caught:
        described(tmp_path, {**LLAMA_70B, **changes})
    assert str(tmp_path / "config.json") in str(caught.value)


# The published figures of nvidia/Llama-3_3-Nemotron-Super-49B-v1.
NEMOTRON_NAS = {
    **LLAMA_70B,
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "nemotron-nas",
    "intermediate_size": None,
    "num_key_value_heads": None,
    "block_configs": [{"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}}] * 80,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (NEMOTRON_NAS, "layers of different sizes"),
        ({"layer_types": ["spiral_attention", "full_attention"] * 40}, "spiral_attention"),
        ({"full_attention_interval": 4}, "linear_num_value_heads.*missing"),
        (
            {"layer_types": ["linear_attention", "full_attention"] * 40},
            "linear_num_value_heads.*missing",
        ),
        ({"num_experts": 8}, "num_experts_per_tok missing"),
        ({"intermediate_size": [14336, 28672] * 40}, "intermediate_size differs between layers"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim.*missing"),
        ({"quantization_config": {"quant_method": "exl3", "bits": 3}}, "'exl3' is unknown"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_decoder_with_an_unknown_part_is_read_and_says_why_it_is_not_predicted(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """What divides and how long requests may be is known; the weights are those of the files."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, **changes}))
    card = LIBRARY.model(str(tmp_path))
    assert re.search(words, card.unpredicted)
    a = card.architecture
    assert (a.layers, a.hidden_size, a.heads, a.vocab_size) == (80, 8192, 64, 128256)
    assert (a.context_limit, a.checkpoint_gb) == (131072, 0)
    (tmp_path / "model-1.safetensors").write_bytes(bytes(2000))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(1000))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(3000))
    assert LIBRARY.model(str(tmp_path)).weights_gb == 3e-6
    index = {"metadata": {"total_size": 99_000_000_000}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert LIBRARY.model(str(tmp_path)).weights_gb == 99
    assert weight_bytes_per_gpu(LIBRARY.model(str(tmp_path)).architecture, 4, 8, 2, mtp=True) == (
        pytest.approx(99_000_000_000 / 16)
    )
    with pytest.raises(BadInput, match=r"is not simulated: .*; measure it on real servers"):
        card.check_predicted()


def test_the_file_itself_stands_for_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    assert LIBRARY.model(str(tmp_path / "config.json")) == LIBRARY.model(str(tmp_path))


@given(
    name=st.sampled_from(sorted(PUBLISHED)),
    tensor_parallel=st.sampled_from([1, 2, 4, 8, 16]),
    replicas=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
)
def test_the_gpus_together_hold_the_model(
    name: str, tensor_parallel: int, replicas: int, pipeline: int
) -> None:
    a = published(name)
    stage = tensor_parallel * replicas
    held = weight_bytes_per_gpu(a, tensor_parallel, stage, pipeline, mtp=False)
    whole = weight_bytes_per_gpu(a, 1, 1, 1, mtp=False)
    assert held * stage * pipeline >= whole * (1 - 1e-9)
    assert weight_bytes_per_gpu(a, 2 * tensor_parallel, 2 * stage, pipeline, mtp=False) < held
    assert weight_bytes_per_gpu(a, tensor_parallel, stage, pipeline, mtp=True) > held
