"""States of recurrent layers, and how ranks share them, are what vLLM's classes compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import MalformedFile
from autotune.engines.cards import (
    Architecture,
    ModelCard,
    draft_layer,
    expert_layers,
    kv_bytes_per_token,
    mixer_layers,
    state_bytes,
    total_parameters,
    weight_bytes_per_gpu,
    whole_layers,
)
from autotune.engines.library import Library
from tests.engines.settings import failing_rules
from tests.engines.space.published_recurrent import (
    FALCON_H1,
    GRANITE_H_SMALL,
    JAMBA,
    KIMI_K3,
    KIMI_LINEAR,
    LFM2,
    LFM2_MOE,
    NEMOTRON_H_8B,
    NEMOTRON_NANO,
    NEMOTRON_ULTRA,
    QWEN3_NEXT,
)

LIBRARY = Library()
VLLM, SGLANG = 2.0, 4.0
"""Bytes of a state's element where a checkpoint does not say (vLLM: the model's type)."""


def card(folder: Path, config: dict[str, Any]) -> ModelCard:
    (folder / "config.json").write_text(json.dumps(config))
    model = LIBRARY.model(str(folder))
    assert not model.unpredicted
    return model


@pytest.mark.parametrize(
    ("config", "element", "ranks", "size"),
    [
        # mamba_utils.py of vLLM 0.33: a state of heads x key x value, and three inputs of the
        # convolution over values, keys and queries (state-space layers: B and C of each group).
        (QWEN3_NEXT, VLLM, 1, 39_518_208),
        (QWEN3_NEXT, SGLANG, 1, 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)),
        (QWEN3_NEXT, VLLM, 8, 39_518_208 // 8),
        (NEMOTRON_NANO, VLLM, 1, 23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2)),
        (NEMOTRON_NANO, VLLM, 8, 23 * (8 * 64 * 128 * 4 + 3 * 768 * 2)),
        (NEMOTRON_ULTRA, VLLM, 4, 48 * (64 * 64 * 128 * 4 + 3 * (4096 + 512) * 2)),
        (KIMI_K3, VLLM, 1, 69 * (96 * 128 * 128 * 4 + 3 * 3 * 12288 * 2)),
        (KIMI_K3, VLLM, 8, 69 * (12 * 128 * 128 * 4 + 3 * 3 * 1536 * 2)),
        # The one group of B and C is copied to both ranks.
        (GRANITE_H_SMALL, VLLM, 2, 36 * (64 * 64 * 128 * 2 + 3 * (4096 + 256) * 2)),
        (LFM2_MOE, VLLM, 2, 18 * 2 * 1024 * 2),
        (FALCON_H1, VLLM, 2, 72 * 1_063_936),
        (JAMBA, VLLM, 1, 28 * 311_296),
        (JAMBA, VLLM, 8, 28 * 38_912),
    ],
)
def test_a_sequence_takes_the_states_of_a_rank(
    tmp_path: Path, config: dict[str, Any], element: float, ranks: int, size: int
) -> None:
    assert state_bytes(card(tmp_path, config).architecture, ranks, element) == size


@pytest.mark.parametrize(
    ("config", "one", "eight"),
    [
        (NEMOTRON_NANO, 6 * 2 * 2 * 128 * 2, 6 * 2 * 128 * 2),
        (KIMI_K3, 24 * 576 * 2, 24 * 576 * 2),
        (QWEN3_NEXT, 12 * 2 * 2 * 256 * 2, 12 * 2 * 256 * 2),
        (JAMBA, 4 * 2 * 8 * 128 * 2, 4 * 2 * 128 * 2),
        (FALCON_H1, 72 * 2 * 4 * 128 * 2, 72 * 2 * 128 * 2),
    ],
)
def test_attention_layers_alone_cache_tokens(
    tmp_path: Path, config: dict[str, Any], one: int, eight: int
) -> None:
    a = card(tmp_path, config).architecture
    assert (kv_bytes_per_token(a, "bfloat16", 1), kv_bytes_per_token(a, "bfloat16", 8)) == (
        one,
        eight,
    )


def test_a_part_of_a_layer_alone_is_half_a_layer(tmp_path: Path) -> None:
    nano, dense, k3 = (
        card(tmp_path, config).architecture for config in (NEMOTRON_NANO, NEMOTRON_H_8B, KIMI_K3)
    )
    assert (mixer_layers(nano), expert_layers(nano), whole_layers(nano)) == (29, 23, 26)
    assert (mixer_layers(dense), expert_layers(dense), whole_layers(dense)) == (28, 0, 26)
    assert (mixer_layers(k3), expert_layers(k3), whole_layers(k3)) == (93, 92, 93)
    falcon = card(tmp_path, FALCON_H1).architecture
    assert (mixer_layers(falcon), whole_layers(falcon)) == (144, 108)
    # A drafting layer has attention and experts.
    assert (mixer_layers(draft_layer(nano)), expert_layers(draft_layer(nano))) == (1, 1)


def test_each_rank_has_the_projections_to_the_experts_width(tmp_path: Path) -> None:
    a = card(tmp_path, NEMOTRON_ULTRA).architecture
    without = a.model_copy(update={"expert_hidden_size": 0, "experts": 0})
    assert a.expert_hidden_size == 2048
    per_rank = weight_bytes_per_gpu(a, 8, 8, 1, mtp=False)
    experts = 48 * 512 * 2 * 2048 * 5120 * 2 / 8
    dense = 48 * 2 * 8192 * 10240 * 2 / 8
    rest = weight_bytes_per_gpu(without, 8, 8, 1, mtp=False) - 48 * 2 * 8192 * 5120 * 2 / 8
    assert per_rank == pytest.approx(rest + experts + dense + 48 * 2 * 8192 * 2048 * 2)


def test_kimi_linear_has_a_gate_of_low_rank(tmp_path: Path) -> None:
    # 48B by the report's name (arXiv:2510.26692), which rounds down.
    total = total_parameters(card(tmp_path, KIMI_LINEAR).architecture) / 1e9
    assert total == pytest.approx(48, rel=0.025)


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        (NEMOTRON_NANO, 8),
        (KIMI_K3, 96),
        (GRANITE_H_SMALL, 128),
        (QWEN3_NEXT, 16),
        (LFM2_MOE, 0),
    ],
)
def test_tensor_parallelism_cuts_heads_and_groups(
    tmp_path: Path, config: dict[str, Any], heads: int
) -> None:
    assert card(tmp_path, config).state_heads == heads


def test_excluded_layers_of_nemotron_keep_their_sixteen_bits(tmp_path: Path) -> None:
    """The NVFP4 checkpoint has attention and the state-space layers before it in bf16: 19.324 GB by
    vLLM 0.32's classes."""
    pattern = NEMOTRON_NANO["hybrid_override_pattern"]
    attention = [n for n, one in enumerate(pattern) if one == "*"]
    excluded = [
        *(f"backbone.layers.{n}.mixer.{name}_proj" for n in attention for name in "qkvo"),
        *(
            f"backbone.layers.{n - 1}.mixer.{name}_proj"
            for n in attention
            for name in ("in", "out")
        ),
        "lm_head",
    ]
    quantization = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": excluded}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    a = card(tmp_path, NEMOTRON_NANO).architecture
    assert (a.weight_bytes, a.dense_weight_bytes) == (0.5625, None)
    assert weight_bytes_per_gpu(a, 1, 1, 1, mtp=False) / 1e9 == pytest.approx(19.324, rel=0.003)


def test_a_list_that_does_not_fit_the_layers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**NEMOTRON_NANO, "num_hidden_layers": 51}))
    with pytest.raises(MalformedFile, match="52 layers are listed, but there are 51"):
        LIBRARY.model(str(tmp_path))


@pytest.mark.parametrize(
    ("command", "version"),
    [
        ("vllm serve {} -tp {}", "0.33.0"),
        ("python3 -m sglang.launch_server --model-path {} --tp-size {}", "0.5.23"),
    ],
)
def test_ranks_that_do_not_divide_the_states_are_refused(
    tmp_path: Path, command: str, version: str
) -> None:
    """Of 64 heads in eight groups, 16 ranks would have half a group each."""
    for config, refused in ((NEMOTRON_NANO, [False, True]), (KIMI_K3, [False, False])):
        card(tmp_path, config)
        broken = [
            failing_rules(command.format(tmp_path, ranks), version, str(tmp_path))
            for ranks in (8, 16)
        ]
        assert ["state-heads-not-divisible" in rules for rules in broken] == refused


@pytest.mark.parametrize(
    ("config", "ranks", "gigabytes"),
    [
        # Bytes of a rank's weights by vLLM 0.32's classes on the meta device, routers included.
        (NEMOTRON_NANO, 1, 63.156),
        (NEMOTRON_NANO, 8, 7.915),
        (NEMOTRON_ULTRA, 1, 1098.618),
        (NEMOTRON_ULTRA, 8, 140.538),
        (NEMOTRON_H_8B, 8, 2.026),
        (QWEN3_NEXT, 8, 20.026),
        (GRANITE_H_SMALL, 2, 32.257),
        (GRANITE_H_SMALL, 8, 8.139),
        (LFM2_MOE, 8, 2.088),
        (LFM2, 1, 2.341),
        (FALCON_H1, 2, 33.643),
        (JAMBA, 8, 12.896),
        # The checkpoint's files.
        (KIMI_K3, 1, 1560),
    ],
)
def test_a_rank_holds_the_weights_that_vllm_creates(
    tmp_path: Path, config: dict[str, Any], ranks: int, gigabytes: float
) -> None:
    a = card(tmp_path, config).architecture
    held = weight_bytes_per_gpu(a, ranks, ranks, 1, mtp=False) / 1e9
    assert held == pytest.approx(gigabytes, rel=0.01)


def test_sglang_does_not_copy_the_one_group_of_quantised_weights(tmp_path: Path) -> None:
    command = "python3 -m sglang.launch_server --model-path {} --tp-size {}"
    fp8 = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    for config, ranks, refused in (
        (GRANITE_H_SMALL, 2, False),
        ({**GRANITE_H_SMALL, **fp8}, 1, False),
        ({**GRANITE_H_SMALL, **fp8}, 2, True),
        ({**NEMOTRON_NANO, **fp8}, 2, False),
    ):
        card(tmp_path, config)
        broken = failing_rules(command.format(tmp_path, ranks), "0.5.23", str(tmp_path))
        assert ("quantised-state-group-is-not-cut" in broken) == refused


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**NEMOTRON_NANO, "hybrid_override_pattern": "ME" * 26}, "no layer with attention"),
        ({**NEMOTRON_NANO, "hybrid_override_pattern": "M*X-" * 13}, "layers of the kind X"),
        ({**NEMOTRON_NANO, "n_groups": None}, "n_groups missing"),
        ({**KIMI_LINEAR, "linear_attn_config": {"kda_layers": [1]}}, "linear_num_value_heads"),
        ({**GRANITE_H_SMALL, "layer_types": None}, "not listed, by mamba_d_state"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_recurrent_layers_without_their_figures_are_not_predicted(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert words in LIBRARY.model(str(tmp_path)).unpredicted


def test_keys_of_linear_attention_in_older_cards_and_studies_stand_for_a_group() -> None:
    now = LIBRARY.model("Qwen/Qwen3.5-9B").architecture
    figures = now.model_dump(exclude={"layer_groups"})
    heads = {"linear_key_heads": 16, "linear_value_heads": 32, "linear_head_dim": 128}
    before = Architecture.model_validate({**figures, **heads, "linear_layers": 24})
    assert weight_bytes_per_gpu(before, 2, 2, 1, mtp=True) == weight_bytes_per_gpu(
        now, 2, 2, 1, mtp=True
    )
    assert state_bytes(before, 2, 2.0) == state_bytes(now, 2, 2.0)
    none = dict.fromkeys((*heads, "linear_layers"), 0)
    dense = LIBRARY.model("Qwen/Qwen3-8B").architecture
    assert Architecture.model_validate({**dense.model_dump(), **none}) == dense
