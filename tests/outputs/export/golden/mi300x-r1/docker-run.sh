#!/usr/bin/env bash
# vllm 0.32.0 for deepseek-ai/DeepSeek-R1 on 8 x mi300x
# recommended by autotune, study mi300x-r1, configuration d314bec95c38
# evidence: SIMULATED, not measured on this hardware
# total_token_throughput on sharegpt: 7,740
# Gain +35.7 % (95 % interval +21.3 % to +51.9 %, from 2 launches against 3 launches). Verdict: better in the simulation, open on a real node: measure these commands with `autotune verify mi300x-r1 --on process`.
# image: the tag is derived from earlier versions' names, check that it exists (Docker Hub, vllm/vllm-openai-rocm; tags from v0.14.0 to v0.31.0 are quoted in public projects)
# Its address is 127.0.0.1:8000 by default; to change that: PUBLISH=0.0.0.0:8000 ./docker-run.sh
set -euo pipefail
exec \
  docker run --rm \
  --init \
  --ipc host \
  --ulimit memlock=-1 \
  --ulimit stack=67108864 \
  --ulimit nofile=65535 \
  --device /dev/kfd \
  --device /dev/dri \
  --group-add video \
  --cap-add SYS_PTRACE \
  --security-opt seccomp=unconfined \
  --publish "${PUBLISH:-127.0.0.1:8000}:8000" \
  --volume autotune-vllm-vllm-openai-rocm-v0.32.0-mi300x-root-cache:/root/.cache \
  --volume autotune-vllm-vllm-openai-rocm-v0.32.0-mi300x-root-triton:/root/.triton \
  --volume autotune-vllm-vllm-openai-rocm-v0.32.0-mi300x-root-tilelang:/root/.tilelang \
  --volume autotune-vllm-vllm-openai-rocm-v0.32.0-mi300x-root-aiter:/root/.aiter \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}":/root/.cache/huggingface \
  --env HF_HOME=/root/.cache/huggingface \
  --env HF_TOKEN \
  --env HF_ENDPOINT \
  --env HF_HUB_OFFLINE \
  --env CUDA_VISIBLE_DEVICES \
  --env HIP_VISIBLE_DEVICES \
  --env ROCR_VISIBLE_DEVICES \
  --env VLLM_ROCM_USE_AITER=1 \
  --env VLLM_ROCM_USE_AITER_MOE=1 \
  --env SAFETENSORS_FAST_GPU=1 \
  --env HSA_NO_SCRATCH_RECLAIM=1 \
  --env HIP_FORCE_DEV_KERNARG=1 \
  --entrypoint= \
  vllm/vllm-openai-rocm:v0.32.0 \
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
  --host 0.0.0.0 \
  --port 8000 \
  "$@"
