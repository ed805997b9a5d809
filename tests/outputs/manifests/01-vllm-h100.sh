#!/bin/bash
# Llama 3.3 70B for the chat team. Four H100; ask before you restart it.
docker run --rm --runtime nvidia --gpus all --platform linux/amd64 \
    -v /data/.cache/huggingface:/root/.cache/huggingface \
    --env "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" -p 24444:24444 \
    -w /app -v $(pwd):/app \
    --ipc=host --shm-size=8g vllm/vllm-openai:v0.33.0 --model meta-llama/Llama-3.3-70B-Instruct \
    --port 24444 --seed 42 \
    --max-num-seqs 32 \
    --trust-remote-code --gpu-memory-utilization 0.9 --tensor-parallel-size 4
