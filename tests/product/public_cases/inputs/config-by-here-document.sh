#!/usr/bin/env bash
MODEL=openai/gpt-oss-120b
TP=8
CONC=64
ISL=1024
OSL=1024
MAX_LEN=${MAX_MODEL_LEN:-10240}

cat > config.yaml << STOP
no-enable-prefix-caching: true
max-cudagraph-capture-size: 2048
max-num-batched-tokens: 8192
max-model-len: $MAX_LEN
STOP

SERVER_LOG=/workspace/server.log
export VLLM_MXFP4_USE_MARLIN=1

PYTHONNOUSERSITE=1 vllm serve $MODEL --host 0.0.0.0 --port ${PORT:-8888} \
 --config config.yaml \
 --gpu-memory-utilization 0.9 \
 --tensor-parallel-size $TP \
 --max-num-seqs $CONC > $SERVER_LOG 2>&1 &

SERVER_PID=$!
wait_for_server "$SERVER_PID" "$SERVER_LOG"
