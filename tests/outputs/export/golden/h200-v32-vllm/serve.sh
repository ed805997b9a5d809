#!/usr/bin/env bash
# vllm 0.32.0 for deepseek-ai/DeepSeek-V3.2 on 8 x h200
# recommended by autotune, study h200-v32-vllm, configuration f10482dd7bf9
# evidence: SIMULATED, not measured on this hardware
# total_token_throughput on sharegpt: 7,590
# Gain +44.5 % (95 % interval +38.8 % to +50.4 %, from 2 launches against 3 launches). Verdict: better in the simulation, open on a real node: measure these commands with `autotune verify h200-v32-vllm --on process`.
# It listens on loopback by default; to change that: ./serve.sh --host 0.0.0.0
set -euo pipefail
exec env \
  VLLM_USE_DEEP_GEMM=0 \
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
  --host 127.0.0.1 \
  "$@"
