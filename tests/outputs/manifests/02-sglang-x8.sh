docker run --gpus '"device=0,1,2,3,4,5,6,7"' \
  --shm-size 32g \
  -p 8000:8000 \
  -e OMP_NUM_THREADS=1 \
  -v ~/.cache/huggingface:/root/.cache/huggingface \
  --ipc=host \
  lmsysorg/sglang:v0.5.23 \
  python3 -m sglang.launch_server \
    --model-path Qwen/Qwen3-32B-FP8 \
    --host 0.0.0.0 --port 8000 \
    --trust-remote-code \
    --attention-backend fa3 \
    --dp-size 4 \
    --tp 2 \
    --schedule-policy fcfs \
    --schedule-conservativeness 0.1 \
    --max-running-requests 64 \
    --mem-fraction-static 0.7
