#!/usr/bin/env bash
# Measures the studies under examples/ anew, with real engines on this machine's CPU.
#
#     examples/measure.sh FOLDER [llama_server|vllm_cpu|sglang_cpu]
#
# FOLDER, an absolute path, gets the engines, their models and the studies; 4 GB. `autotune` is taken from the PATH, in an
# environment into which examples/llama_server was installed too. Writes examples/*/measured/.
set -euo pipefail
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1

keep() { # STUDY'S HOME, EXAMPLE
    local measured="$examples/$2/measured"
    mkdir -p "$measured"
    autotune --version
    autotune bundle measured --home "$1" -o "$measured/study.bundle"
    cp "$1/studies/measured/report.html" "$measured/report.html"
}

llama_server() {
    mkdir -p "$folder/llama" && cd "$folder/llama"
    cp "$examples"/llama_server/{install.sh,requirements.txt,serve.py,tiny_gguf.py} .
    [[ -x .venv/bin/llama-server ]] || sh install.sh .venv
    [[ -f tiny.gguf ]] || .venv/bin/python tiny_gguf.py tiny.gguf
    cp -r "$examples/llama_server/measured/space" . && rm -rf home
    PATH=$PWD/.venv/bin:$PATH
    autotune run --model ./tiny.gguf --hw local --space space --on process --workload assistant --set threads=1 \
        --launches 16 --baseline 'llama-server --model ./tiny.gguf --parallel 8 --threads 1 --no-cache-prompt' \
        --study measured --home home
    keep "$PWD/home" llama_server
}

tiny_model() { # VLLM'S ENVIRONMENT
    [[ -d tiny ]] || "$1/bin/python" "$examples/vllm_cpu/tiny_model.py" tiny
    cp -r "$examples/vllm_cpu/space" . && rm -rf home
    export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_SERVER_DEV_MODE=1
}

vllm_cpu() {
    mkdir -p "$folder/vllm" && cd "$folder/vllm"
    "$examples/vllm_cpu/make_environment.sh" .vllm-env
    tiny_model .vllm-env
    autotune run --model ./tiny --hw local --engine vllm --engine-bin vllm=.vllm-env --on process --space space \
        --workload tiny-shared-prefix --launches 11 --set enforce_eager=true --engine-arg vllm='--dtype float32' \
        --env VLLM_CPU_KVCACHE_SPACE=1 \
        --baseline 'vllm serve ./tiny --enforce-eager --dtype float32 --max-num-seqs 4 --no-enable-prefix-caching' \
        --study measured --home home
    keep "$PWD/home" vllm_cpu
}

sglang_cpu() {
    mkdir -p "$folder/both" && cd "$folder/both"
    "$examples/sglang_cpu/make_environment.sh" .engines
    tiny_model .engines/vllm
    export OMP_NUM_THREADS=1
    autotune run --model ./tiny --hw local --on process --space space --workload tiny-shared-prefix --launches 9 \
        --engine vllm --engine-bin vllm=.engines/vllm --engine-arg vllm='--dtype float32 --enforce-eager' \
        --engine sglang --engine-bin sglang=.engines/sglang \
        --engine-arg sglang='--dtype float32 --max-total-tokens 40000 --mem-fraction-static 0.2' \
        --env VLLM_CPU_KVCACHE_SPACE=1 \
        --baseline 'vllm serve ./tiny --enforce-eager --dtype float32 --max-num-seqs 4 --no-enable-prefix-caching' \
        --study measured --home home
    keep "$PWD/home" sglang_cpu
}

for study in ${2:-llama_server vllm_cpu sglang_cpu}; do ("$study"); done
