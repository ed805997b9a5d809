"""Writes the search benchmark's tables out of NVIDIA's kernel measurements; run in an environment
of their own::

    python3.11 -m venv peer && peer/bin/pip install aiconfigurator-core==0.12.0
    peer/bin/python benchmarks/tuner/kernel_tables.py --out FOLDER

It imports nothing of autotune. aiconfigurator-core (Apache-2.0) adds up measured times of kernels
on the GPU asked for, per engine: a truth that our simulator was never fitted to. Written are
``kernels-r1.csv`` and ``kernels-v32.csv``, replay files in the knobs' vocabulary: engine, layout,
all-to-all, KV cache, tokens per step, running requests per attention replica; 3200 tokens in, 800
out, 1024 requests in flight on 8 x H200. A configuration without measured kernels has no row. Where
the requests do not fit, fewer run at a time, as engines do; where not one does, the row says out of
memory.
"""

from __future__ import annotations

import argparse
import csv
import logging
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

MODELS = {"kernels-r1": "deepseek-ai/DeepSeek-R1", "kernels-v32": "deepseek-ai/DeepSeek-V3.2"}
BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}
SYSTEM, GPUS = "h200_sxm", 8
READ, WRITTEN, IN_FLIGHT = 3200, 800, 1024
ATTENTION = ((8, 1), (4, 2), (2, 4), (1, 8))
EXPERTS = (1, 2, 4, 8)
CACHES = ("bfloat16", "fp8")
TOKENS = (2048, 4096, 8192, 16384, 32768)
RUNNING = (32, 64, 128, 256, 512)
DEEPEP = {"context": "deepep_ht", "generation": "deepep_ll"}
COLUMNS = (
    "engine",
    "tensor_parallel",
    "data_parallel",
    "expert_parallel",
    "moe_all_to_all",
    "kv_cache_dtype",
    "max_batched_tokens",
    "max_running_requests",
    "failure",
    "total_token_throughput",
)


class Predictor:
    """One engine's kernels under one layout."""

    def __init__(
        self, model: str, backend: str, layout: tuple[int, int, int], exchange: str, cache: str
    ) -> None:
        from aiconfigurator_core.sdk.backends.factory import get_backend
        from aiconfigurator_core.sdk.config_builders import build_model_config
        from aiconfigurator_core.sdk.models import get_model
        from aiconfigurator_core.sdk.perf_database import get_database, get_version_slots

        tp, dp, ep = layout
        version = (get_version_slots(SYSTEM, backend) or {})["current"]
        self._database = get_database(SYSTEM, backend, version)
        kinds = {"kvcache_quant_mode": cache, "fmha_quant_mode": "bfloat16"}
        config = build_model_config(tp, 1, dp, GPUS // ep, ep, **kinds)
        if exchange == "deepep":
            config.moe_comm_backend, config.num_gpus_per_node = DEEPEP, GPUS
        self._model = get_model(model, config, backend)
        self._backend = get_backend(backend)

    def tokens_per_s(self, batch: int, tokens: int) -> float | None:
        """Total tokens per second of the node with so many requests per replica at most; None = not
        one fits."""
        while batch >= 1:
            summary = self._run(batch, tokens)
            if not summary.check_oom():
                return float(summary.get_result_dict()["tokens/s"]) * (READ + WRITTEN) / WRITTEN
            batch = batch * 3 // 4
        return None

    def _run(self, batch: int, tokens: int) -> Any:
        from aiconfigurator_core.sdk.config import RuntimeConfig

        runtime = RuntimeConfig(batch_size=batch, isl=READ, osl=WRITTEN, engine_step_backend="rust")
        return self._backend.run_agg(self._model, self._database, runtime, ctx_tokens=tokens)


def rows(model: str) -> Iterator[dict[str, object]]:
    """One row per configuration whose kernels were measured."""
    from aiconfigurator_core.sdk.errors import PerfDataNotAvailableError

    for engine, (tp, dp), ep, cache in product(BACKENDS, ATTENTION, EXPERTS, CACHES):
        for exchange in (
            ("none", "deepep") if ep == GPUS and dp > 1 and engine != "tensorrt_llm" else ("none",)
        ):
            known = dict(zip(COLUMNS, (engine, tp, dp, ep, exchange, cache), strict=False))
            try:
                predictor = Predictor(model, BACKENDS[engine], (tp, dp, ep), exchange, cache)
                for tokens, running in product(TOKENS, RUNNING):
                    found = predictor.tokens_per_s(min(running, IN_FLIGHT // dp), tokens)
                    told = {"failure": "", "total_token_throughput": f"{found:.1f}"} if found else {
                        "failure": "out_of_memory", "total_token_throughput": ""}  # fmt: skip
                    yield {
                        **known,
                        "max_batched_tokens": tokens,
                        "max_running_requests": running,
                        **told,
                    }
            except (PerfDataNotAvailableError, ValueError, NotImplementedError) as error:
                print(
                    f"left out: {' '.join(map(str, known.values()))}: {str(error)[:60]}",
                    file=sys.stderr,
                )


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        path = asked.out / f"{name}.csv"
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS)
            writer.writeheader()
            count = 0
            for row in rows(model):
                writer.writerow(row)
                count += 1
        print(f"wrote {path}: {count} configurations")


if __name__ == "__main__":
    main()
