#!/usr/bin/env bash
# aiconfigurator-core 0.12.0: a checkpoint in FP8 that says nothing of its KV cache gets an FP8 one, and twice the tokens that vLLM has.
#
# Guess: kvcache_quant_mode, left out, is what an engine takes when it is told nothing: FP8 where the checkpoint says so (ModelOpt's
# kv_cache_quant_algo), and else the type of the model. The help of --kvcache-quant-mode has "Auto-inferred from model config if omitted".
# Seen: FP8 weights alone make an FP8 cache, for each of the three engines. Qwen3-32B-FP8, whose file says nothing of a cache, has
# 1,741,181 tokens on two H200 with vLLM; with the cache that vLLM's configuration takes for the same file (2 bytes a value) it has 870,590.
# Nothing is said. The BF16 checkpoint, and one that declares its FP8 cache, have the type that vLLM takes.
# Who meets it: whoever sizes concurrency or context by the estimate: write kvcache_quant_mode, or give the engine --kv-cache-dtype fp8.
#
# Output seen (2026-11-29, CPython 3.11, Linux; the configurations of models that aiconfigurator-core ships; the package vllm-cpu 0.32.0):
#   Qwen/Qwen3-32B in vllm: 131072 bytes a token, 751,550 tokens; written bfloat16: 131072 bytes a token, 751,550 tokens
#   Qwen/Qwen3-32B in sglang: 131072 bytes a token, 742,462 tokens; written bfloat16: 131072 bytes a token, 742,462 tokens
#   Qwen/Qwen3-32B in trtllm: 131072 bytes a token, 780,352 tokens; written bfloat16: 131072 bytes a token, 780,352 tokens
#   Qwen/Qwen3-32B-FP8 in vllm: 65536 bytes a token, 1,741,181 tokens; written bfloat16: 131072 bytes a token, 870,590 tokens
#   Qwen/Qwen3-32B-FP8 in sglang: 65536 bytes a token, 1,723,005 tokens; written bfloat16: 131072 bytes a token, 861,502 tokens
#   Qwen/Qwen3-32B-FP8 in trtllm: 65536 bytes a token, 1,774,976 tokens; written bfloat16: 131072 bytes a token, 887,488 tokens
#   nvidia/Llama-3.1-70B-Instruct-FP8 in vllm: 81920 bytes a token, 1,158,958 tokens; written bfloat16: 163840 bytes a token, 579,479 tokens
#   nvidia/Llama-3.1-70B-Instruct-FP8 in sglang: 81920 bytes a token, 1,144,417 tokens; written bfloat16: 163840 bytes a token, 572,208 tokens
#   nvidia/Llama-3.1-70B-Instruct-FP8 in trtllm: 81920 bytes a token, 1,209,392 tokens; written bfloat16: 163840 bytes a token, 604,696 tokens
#   Qwen/Qwen3-32B, vLLM's own: auto, 2 bytes a value
#   Qwen/Qwen3-32B-FP8, vLLM's own: auto, 2 bytes a value
#   nvidia/Llama-3.1-70B-Instruct-FP8, vLLM's own: fp8_e4m3, 1 bytes a value
# Needs 3 GB of disk, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
python3 -m venv "$folder/core"
"$folder/core/bin/pip" install -q --disable-pip-version-check aiconfigurator-core==0.12.0 numpy==2.4.6 pandas==2.3.3 pyarrow==26.0.1 \
    scipy==1.17.1
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 TRANSFORMERS_VERBOSITY=error

cat >"$folder/estimate.py" <<'PYTHON'
"""Print how many tokens of cache fit, as estimated with and without the cache's type."""

import logging

from aiconfigurator_core.sdk.memory import estimate_kv_cache

logging.disable(logging.INFO)
VERSIONS = {"vllm": "0.24.0", "sglang": "0.5.14", "trtllm": "1.3.0rc20"}
for model in ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8", "nvidia/Llama-3.1-70B-Instruct-FP8"):
    for engine, version in VERSIONS.items():
        found = []
        for mode in (None, "bfloat16"):
            estimate = estimate_kv_cache(
                model, "h200_sxm", engine, version, max_num_tokens=8192, max_batch_size=256, tp_size=2, kvcache_quant_mode=mode,
                memory_fraction_kind="of_free" if engine == "trtllm" else "of_total", memory_fraction_value=0.9,
            )
            found.append(f"{estimate['kv_size_per_token_bytes']:.0f} bytes a token, {estimate['total_kv_size_tokens']:,} tokens")
        print(f"{model} in {engine}: {found[0]}; written bfloat16: {found[1]}")
PYTHON

cat >"$folder/ask.py" <<'PYTHON'
"""Ask vLLM's configuration for the type of the cache of the same models."""

import shutil
import sys
from pathlib import Path

from vllm.engine.arg_utils import EngineArgs
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

shipped, folder = map(Path, sys.argv[1:])
for model in ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8", "nvidia/Llama-3.1-70B-Instruct-FP8"):
    made = folder / model
    made.mkdir(parents=True)
    for name in ("config.json", "hf_quant_config.json"):
        source = shipped / f"{model.replace('/', '--')}_{name}"
        if source.exists():
            shutil.copy(source, made / name)
    config = EngineArgs(model=str(made), skip_tokenizer_init=True).create_engine_config()
    cache, dtype = config.cache_config.cache_dtype, kv_cache_dtype_str_to_dtype(config.cache_config.cache_dtype, config.model_config)
    print(f"{model}, vLLM's own: {cache}, {dtype.itemsize} bytes a value")
PYTHON
"$folder/core/bin/python" "$folder/estimate.py" | tee "$folder/seen"
shipped=$("$folder/core/bin/python" -c 'import aiconfigurator_core as core; print(core.__path__[0])')/model_configs
"$folder/env/bin/python" "$folder/ask.py" "$shipped" "$folder/models" 2>"$folder/log" | tee -a "$folder/seen" || { cat "$folder/log" >&2; exit 1; }
diff - "$folder/seen" <<'SEEN'
Qwen/Qwen3-32B in vllm: 131072 bytes a token, 751,550 tokens; written bfloat16: 131072 bytes a token, 751,550 tokens
Qwen/Qwen3-32B in sglang: 131072 bytes a token, 742,462 tokens; written bfloat16: 131072 bytes a token, 742,462 tokens
Qwen/Qwen3-32B in trtllm: 131072 bytes a token, 780,352 tokens; written bfloat16: 131072 bytes a token, 780,352 tokens
Qwen/Qwen3-32B-FP8 in vllm: 65536 bytes a token, 1,741,181 tokens; written bfloat16: 131072 bytes a token, 870,590 tokens
Qwen/Qwen3-32B-FP8 in sglang: 65536 bytes a token, 1,723,005 tokens; written bfloat16: 131072 bytes a token, 861,502 tokens
Qwen/Qwen3-32B-FP8 in trtllm: 65536 bytes a token, 1,774,976 tokens; written bfloat16: 131072 bytes a token, 887,488 tokens
nvidia/Llama-3.1-70B-Instruct-FP8 in vllm: 81920 bytes a token, 1,158,958 tokens; written bfloat16: 163840 bytes a token, 579,479 tokens
nvidia/Llama-3.1-70B-Instruct-FP8 in sglang: 81920 bytes a token, 1,144,417 tokens; written bfloat16: 163840 bytes a token, 572,208 tokens
nvidia/Llama-3.1-70B-Instruct-FP8 in trtllm: 81920 bytes a token, 1,209,392 tokens; written bfloat16: 163840 bytes a token, 604,696 tokens
Qwen/Qwen3-32B, vLLM's own: auto, 2 bytes a value
Qwen/Qwen3-32B-FP8, vLLM's own: auto, 2 bytes a value
nvidia/Llama-3.1-70B-Instruct-FP8, vLLM's own: fp8_e4m3, 1 bytes a value
SEEN
echo "as stated"
