#!/usr/bin/env bash
# sglang 0.5.23 for deepseek-ai/DeepSeek-V3.2 on 8 x h200
# recommended by autotune, study h200-v32-sglang, configuration 7e63fec2c86b
# evidence: SIMULATED, not measured on this hardware
# total_token_throughput on sharegpt: 8,830
# Gain +107 % (95 % interval +89.4 % to +126 %, from 2 launches against 3 launches). Verdict: better in the simulation, open on a real node: measure these commands with `autotune verify h200-v32-sglang --on process`.
# It listens on loopback by default; to change that: ./serve.sh --host 0.0.0.0
set -euo pipefail
exec \
  python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-V3.2 \
  --tp-size 8 \
  --dp-size 8 \
  --enable-dp-attention \
  --ep-size 8 \
  --moe-a2a-backend deepep \
  --dsa-prefill-backend fa3 \
  --context-length 16384 \
  --speculative-algorithm EAGLE \
  --speculative-num-steps 1 \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 2 \
  --max-running-requests 1024 \
  --chunked-prefill-size 32768 \
  --mem-fraction-static 0.88 \
  --disable-radix-cache \
  --reasoning-parser deepseek-v3 \
  --tool-call-parser deepseekv32 \
  --host 127.0.0.1 \
  "$@"
