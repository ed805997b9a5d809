#!/usr/bin/env bash
set -e
IMAGE=lmsysorg/sglang:v0.5.20-rocm10-mi30x
MODEL=/mnt/resource_nvme/DeepSeek-R1-0528
LOG_DIR=/mnt/resource_nvme/logs

docker rm -f dskf 2>/dev/null || true
docker run -d \
  --device=/dev/kfd \
  --device=/dev/dri \
  --security-opt seccomp=unconfined \
  --cap-add=SYS_PTRACE \
  --group-add video \
  --privileged \
  --shm-size 32g \
  --ipc=host \
  --name dskf \
  -p 30000:30000 \
  -v /mnt/resource_nvme:/mnt/resource_nvme \
  -e HF_HOME=/mnt/resource_nvme/hf_cache \
  -e HSA_NO_SCRATCH_RECLAIM=1 \
  -e SGLANG_USE_AITER=1 \
  ${IMAGE} \
  python3 -m sglang.launch_server --model-path "$MODEL" --served-model-name deepseek-r1 --tp 8 --trust-remote-code --chunked-prefill-size 131072 --max-running-requests 48 --host 0.0.0.0 --port 30000 --api-key=not-the-real-one > ${LOG_DIR}/output.log 2>&1

docker logs -f dskf &
