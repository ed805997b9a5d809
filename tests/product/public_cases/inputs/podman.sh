podman run --rm -d --name qwen \
  --device nvidia.com/gpu=all --security-opt=label=disable \
  -v ~/.cache/huggingface:/root/.cache/huggingface:Z \
  --env "HF_TOKEN=hf_0123456789abcdefghijABCDEFGHIJ0123" \
  -p 8000:8000 --ipc=host \
  docker.io/vllm/vllm-openai:v0.32.0 \
  --model Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs=64
