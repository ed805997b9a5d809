#!/bin/bash
# Options that trtllm-serve has no flag for.
cat > trt_extra.yaml <<YAML
kv_cache_config:
  free_gpu_memory_fraction: 0.7
  enable_block_reuse: true
print_iter_log: false
YAML

sudo docker run -it --rm --gpus all \
    --env "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" -p 26666:26666 \
    -w /app -v "$(pwd)":/app \
    -v $HOME/.cache/:/root/.cache/ \
    --shm-size 5g --ulimit memlock=-1 --ulimit stack=67108864 --ipc=host --network=host \
    --entrypoint bash nvcr.io/nvidia/tensorrt-llm/release:1.2.0 \
    -c "trtllm-serve openai/gpt-oss-120b --host 0.0.0.0 --port 26666 --backend pytorch --tp_size 2 --max_batch_size 64 --trust_remote_code --extra_llm_api_options trt_extra.yaml"
