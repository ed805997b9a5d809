#!/usr/bin/env bash
# vllm 0.32.0 for deepseek-ai/DeepSeek-V3.2 on 8 x h200
# recommended by autotune, study h200-v32-vllm, configuration f10482dd7bf9
# evidence: SIMULATED, not measured on this hardware
# total_token_throughput on sharegpt: 7,590
# Gain +44.5 % (95 % interval +38.8 % to +50.4 %, from 2 launches against 3 launches). Verdict: better in the simulation, open on a real node: measure these commands with `autotune verify h200-v32-vllm --on process`.
# Its address is 127.0.0.1:8000 by default; to change that: PUBLISH=0.0.0.0:8000 ./docker-run.sh
set -euo pipefail
exec \
  docker run --rm \
  --init \
  --ipc host \
  --ulimit memlock=-1 \
  --ulimit stack=67108864 \
  --ulimit nofile=65535 \
  --gpus all \
  --publish "${PUBLISH:-127.0.0.1:8000}:8000" \
  --volume autotune-vllm-vllm-openai-v0.32.0-h200-root-cache:/root/.cache \
  --volume autotune-vllm-vllm-openai-v0.32.0-h200-root-triton:/root/.triton \
  --volume autotune-vllm-vllm-openai-v0.32.0-h200-root-tilelang:/root/.tilelang \
  --volume autotune-vllm-vllm-openai-v0.32.0-h200-root-aiter:/root/.aiter \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  --env HF_HOME=/root/.cache/huggingface \
  --env HF_TOKEN \
  --env HF_ENDPOINT \
  --env HF_HUB_OFFLINE \
  --env CUDA_VISIBLE_DEVICES \
  --env HIP_VISIBLE_DEVICES \
  --env ROCR_VISIBLE_DEVICES \
  --env VLLM_USE_DEEP_GEMM=0 \
  --entrypoint= \
  vllm/vllm-openai:v0.32.0 \
  vllm serve deepseek-ai/DeepSeek-V3.2 \
  --tensor-parallel-size 2 \
  --data-parallel-size 4 \
  --enable-expert-parallel \
  --attention-backend FLASHMLA_SPARSE \
  --max-num-seqs 512 \
  --speculative-config.method mtp \
  --speculative-config.num_speculative_tokens 1 \
  --tokenizer-mode deepseek_v32 \
  --reasoning-parser deepseek_v3 \
  --tool-call-parser deepseek_v32 \
  --enable-auto-tool-choice \
  --host 0.0.0.0 \
  --port 8000 \
  "$@"
