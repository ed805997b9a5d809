"""Load generator: sends a workload to an OpenAI-compatible server over HTTP and measures it; usable on its own.

from autotune.loadgen.measuring import measure
from autotune.loadgen.workloads import load_workload

workload = load_workload("random:4000:200:500").with_concurrency(64)
print(measure("http://127.0.0.1:8000", "my-model", workload, seed=0).metrics["total_token_throughput"])

workloads      what is sent and when: lengths, arrivals, files
requests, prompts, tokenizers   the requests of one load in numbers, and what they say
measuring      `measure`: warm-up and loads; results: its options and results
workers        processes that send a load together; client: what runs in them
prefix_cache   emptied before a load, its hits counted during it
server_client  single calls to a server; request_file: one row per request, in a columnar file
bench          ``autotune bench``, and ``autotune compare`` of two of its results or ``vllm bench serve``'s
"""
