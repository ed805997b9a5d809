#!/usr/bin/env bash
# tensorrt_llm 1.2.0 for deepseek-ai/DeepSeek-V3.2 on 8 x h200
# recommended by autotune, study h200-v32-tensorrt-llm, configuration f6d204ffbcf6
# evidence: SIMULATED, not measured on this hardware
# total_token_throughput on sharegpt: 6,630
# Gain +277 % (95 % interval +256 % to +299 %, from 2 launches against 3 launches). Verdict: better in the simulation, open on a real node: measure these commands with `autotune verify h200-v32-tensorrt-llm --on process`.
# It listens on loopback by default; to change that: ./serve.sh --host 0.0.0.0
set -euo pipefail
folder="$(mktemp -d "${TMPDIR:-/tmp}/autotune-serve.XXXXXX")"  # not removed: the server reads it
printf '%s' 'enable_attention_dp: true
kv_cache_config:
  enable_block_reuse: false
  tokens_per_block: 64
enable_chunked_prefill: true
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 1
cuda_graph_config:
  max_batch_size: 512
  enable_padding: true
' > "$folder"/trtllm-config.yaml
exec \
  trtllm-serve deepseek-ai/DeepSeek-V3.2 \
  --tp_size 8 \
  --ep_size 8 \
  --max_seq_len 81920 \
  --max_batch_size 512 \
  --max_num_tokens 16384 \
  --kv_cache_free_gpu_memory_fraction 0.75 \
  --custom_tokenizer deepseek_v32 \
  --config "$folder"/trtllm-config.yaml \
  --host 127.0.0.1 \
  "$@"
