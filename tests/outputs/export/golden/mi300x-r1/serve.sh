#!/usr/bin/env bash
# vllm 0.32.0 for deepseek-ai/DeepSeek-R1 on 8 x mi300x
# recommended by autotune, study mi300x-r1, configuration d314bec95c38
# evidence: SIMULATED, not measured on this hardware
# total_token_throughput on sharegpt: 7,740
# Gain +35.7 % (95 % interval +21.3 % to +51.9 %, from 2 launches against 3 launches). Verdict: better in the simulation, open on a real node: measure these commands with `autotune verify mi300x-r1 --on process`.
# It listens on loopback by default; to change that: ./serve.sh --host 0.0.0.0
set -euo pipefail
exec env \
  VLLM_ROCM_USE_AITER=1 \
  VLLM_ROCM_USE_AITER_MOE=1 \
  SAFETENSORS_FAST_GPU=1 \
  HSA_NO_SCRATCH_RECLAIM=1 \
  HIP_FORCE_DEV_KERNARG=1 \
  vllm serve deepseek-ai/DeepSeek-R1 \
  --data-parallel-size 8 \
  --kv-cache-dtype fp8 \
  --attention-backend TRITON_MLA \
  --max-model-len 81920 \
  --max-num-seqs 256 \
  --max-num-batched-tokens 32768 \
  --gpu-memory-utilization 0.95 \
  --speculative-config.method mtp \
  --speculative-config.num_speculative_tokens 1 \
  --block-size 1 \
  --reasoning-parser deepseek_r1 \
  --host 127.0.0.1 \
  "$@"
