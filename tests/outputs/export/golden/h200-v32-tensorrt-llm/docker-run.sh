#!/usr/bin/env bash
# tensorrt_llm 1.2.0 for deepseek-ai/DeepSeek-V3.2 on 8 x h200
# recommended by autotune, study h200-v32-tensorrt-llm, configuration f6d204ffbcf6
# evidence: SIMULATED, not measured on this hardware
# total_token_throughput on sharegpt: 6,630
# Gain +277 % (95 % interval +256 % to +299 %, from 2 launches against 3 launches). Verdict: better in the simulation, open on a real node: measure these commands with `autotune verify h200-v32-tensorrt-llm --on process`.
# Its address is 127.0.0.1:8000 by default; to change that: PUBLISH=0.0.0.0:8000 ./docker-run.sh
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
  docker run --rm \
  --init \
  --ipc host \
  --ulimit memlock=-1 \
  --ulimit stack=67108864 \
  --ulimit nofile=65535 \
  --gpus all \
  --publish "${PUBLISH:-127.0.0.1:8000}:8000" \
  --volume autotune-nvcr.io-nvidia-tensorrt-llm-release-1.2.0-h200-root-cache:/root/.cache \
  --volume autotune-nvcr.io-nvidia-tensorrt-llm-release-1.2.0-h200-root-triton:/root/.triton \
  --volume autotune-nvcr.io-nvidia-tensorrt-llm-release-1.2.0-h200-root-tilelang:/root/.tilelang \
  --volume autotune-nvcr.io-nvidia-tensorrt-llm-release-1.2.0-h200-root-aiter:/root/.aiter \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  --volume "$folder"/trtllm-config.yaml:/autotune/trtllm-config.yaml:ro \
  --env HF_HOME=/root/.cache/huggingface \
  --env HF_TOKEN \
  --env HF_ENDPOINT \
  --env HF_HUB_OFFLINE \
  --env CUDA_VISIBLE_DEVICES \
  --env HIP_VISIBLE_DEVICES \
  --env ROCR_VISIBLE_DEVICES \
  --workdir /autotune \
  nvcr.io/nvidia/tensorrt-llm/release:1.2.0 \
  trtllm-serve deepseek-ai/DeepSeek-V3.2 \
  --tp_size 8 \
  --ep_size 8 \
  --max_seq_len 81920 \
  --max_batch_size 512 \
  --max_num_tokens 16384 \
  --kv_cache_free_gpu_memory_fraction 0.75 \
  --custom_tokenizer deepseek_v32 \
  --config trtllm-config.yaml \
  --host 0.0.0.0 \
  --port 8000 \
  "$@"
