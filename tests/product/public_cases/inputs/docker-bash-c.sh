mkdir -p /data/hf-cache

docker run --gpus '"device=5"' \
    --shm-size 32g \
    -p 30003:30003 \
    -v /data/hf-cache:/root/.cache/huggingface \
    --env "HF_TOKEN=hf_0123456789abcdefghijABCDEFGHIJ0123" \
    --ipc=host \
    lmsysorg/sglang:v0.5.16 \
    bash -c "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --host 0.0.0.0 --port 30003 --tp-size 1 --mem-fraction-static 0.7"
