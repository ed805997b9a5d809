"""Start vLLM with a model's weights and with random ones, and measure both: throughput, start by
phase, power.

    python random_weights.py MODEL OUT.jsonl
    python random_weights.py MODEL OUT.jsonl cpu

Each start is a forked child with the engine in its own process (`vllm.LLM`, no HTTP), so that
imports are paid once. One round of 256 prompts of 1,024 random tokens with answers of 256 follows a
short one; `ROUNDS` of them are measured. On a CPU they are 32 prompts of 128 tokens with answers of
32, and routing falls as it does: there vLLM 0.32.0 has no kernel for even routing.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

EVEN = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
CPU = sys.argv[3:] == ["cpu"]
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "engine defaults": {},
    "8 requests": {"max_num_seqs": 8},
    "256 tokens a step": {"max_num_batched_tokens": 256},
    "no prefix caching": {"enable_prefix_caching": False},
    "blocks of 32 tokens": {"block_size": 32},
}
ON_A_GPU: dict[str, dict[str, Any]] = {
    "engine defaults": {},
    "fp8 KV cache": {"kv_cache_dtype": "fp8"},
    "fp8 weights": {"quantization": "fp8"},
    "2,048 tokens a step": {"max_num_batched_tokens": 2048},
    "Triton attention": {"attention_backend": "TRITON_ATTN"},
}
CONFIGURATIONS = CONFIGURATIONS if CPU else ON_A_GPU
ALL = {"max_model_len": 4096, "max_num_seqs": 256, "seed": 0} | (
    {} if CPU else {"gpu_memory_utilization": 0.85}
)
WEIGHTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "own, from the disk": ({}, {}),
    "own": ({}, {}),
    "random, even routing": ({"load_format": "dummy"}, EVEN),
    "random": ({"load_format": "dummy"}, {}),
}
RANDOM = "random" if CPU else "random, even routing"
STARTS = [("engine defaults", weights) for weights in WEIGHTS if not (CPU and "," in weights)]
STARTS += [(name, weights) for name in list(CONFIGURATIONS)[1:] for weights in (RANDOM, "own")]
"""Configuration and weights of each start, in order."""
REQUESTS, INPUT, OUTPUT, ROUNDS = (32, 128, 32, 3) if CPU else (256, 1024, 256, 2)
PHASES = {
    "weights_s": r"Model loading took [\d.]+ GiB memory and ([\d.]+) seconds",
    "compile_s": r"torch.compile took ([\d.]+) s in total",
    "graphs_s": r"Graph capturing finished in ([\d.]+) secs",
    "kv_cache_tokens": r"GPU KV cache size: ([\d,]+) tokens",
}


def phases(log: str) -> dict[str, float]:
    found = {name: re.search(pattern, log) for name, pattern in PHASES.items()}
    return {name: float(match[1].replace(",", "")) for name, match in found.items() if match}


def measure(model: str, configuration: str, weights: str) -> dict[str, Any]:
    """Start the engine in this process, and load it."""
    from vllm import LLM, SamplingParams

    options, environment = WEIGHTS[weights]
    os.environ.update(environment)
    began = time.perf_counter()
    llm = LLM(model=model, **(ALL | CONFIGURATIONS[configuration] | options))
    ready_s = time.perf_counter() - began

    def took(seed: int, output: int) -> float:
        rng = random.Random(seed)
        prompts = [
            {
                "prompt_token_ids": [
                    rng.randrange(1000, 19_000 if CPU else 150_000) for _ in range(INPUT)
                ]
            }
            for _ in range(REQUESTS)
        ]
        exact = SamplingParams(
            max_tokens=output, min_tokens=output, ignore_eos=True, temperature=0, detokenize=False
        )
        start = time.perf_counter()
        llm.generate(prompts, exact, use_tqdm=False)
        return time.perf_counter() - start

    took(1, 16)
    power, done = list[float](), threading.Event()

    def watch() -> None:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not done.wait(0.1):
            power.append(pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)

    watching = threading.Thread(target=(lambda: None) if CPU else watch)
    watching.start()
    seconds = [took(2 + number, OUTPUT) for number in range(ROUNDS)]
    done.set()
    watching.join()
    total = REQUESTS * (INPUT + OUTPUT)
    row = {"ready_s": round(ready_s, 2), "tokens_per_s": [round(total / one, 1) for one in seconds]}
    return row | ({"power_w": round(sum(power) / len(power), 1)} if power else {})


def main() -> None:
    model, out = sys.argv[1], Path(sys.argv[2])
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm.v1.worker.gpu_model_runner  # noqa: F401  # The slow part of the imports, without CUDA.
    from vllm import LLM  # noqa: F401

    for number, (configuration, weights) in enumerate(STARTS):
        if weights == "own, from the disk" and not CPU:
            subprocess.run("sync; echo 3 > /proc/sys/vm/drop_caches", shell=True, check=True)
        log, result = (out.with_name(f"{number}.{kind}") for kind in ("log", "json"))
        pid = os.fork()
        if not pid:
            number = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(number, 1)
            os.dup2(number, 2)
            result.write_text(json.dumps(measure(model, configuration, weights)))
            os._exit(0)
        os.waitpid(pid, 0)
        row = {"configuration": configuration, "weights": weights, **json.loads(result.read_text())}
        with out.open("a") as rows:
            rows.write(json.dumps(row | phases(log.read_text())) + "\n")


if __name__ == "__main__":
    main()
