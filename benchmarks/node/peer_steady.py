"""Run by ``benchmarks/node/simulator.py --peer PYTHON`` in that interpreter: what aiconfigurator-core
0.12.0 predicts.

It imports nothing of autotune. Its arguments are a JSON object on stdin, ``{"model", "system",
"backends", "gpus", "input_tokens", "output_tokens", "context_tokens", "concurrency": [...]}``; it
prints one JSON object per backend and line: ``{"backend", "version", "load_s", "points":
[{"concurrency", "seconds", "output_tokens_per_s", "ttft_ms", "tpot_ms"}]}``, or ``{"backend",
"error"}``. ``load_s`` is the reading of its tables and the building of the model; ``seconds`` is
one prediction. The KV cache and attention are said to be bf16: left out, it takes what the
checkpoint says of its weights.
"""

from __future__ import annotations

import json
import logging
import sys
from time import perf_counter
from typing import Any


def _predictions(asked: dict[str, Any], backend_name: str) -> dict[str, Any]:
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config import RuntimeConfig
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model
    from aiconfigurator_core.sdk.perf_database import get_database, get_version_slots

    begin = perf_counter()
    version = (get_version_slots(asked["system"], backend_name) or {})["current"]
    database = get_database(asked["system"], backend_name, version)
    layout = {"tp_size": asked["gpus"], "pp_size": 1, "attention_dp_size": 1}
    experts = {"moe_tp_size": asked["gpus"], "moe_ep_size": 1}
    kinds = {"kvcache_quant_mode": "bfloat16", "fmha_quant_mode": "bfloat16"}
    model = get_model(
        asked["model"], build_model_config(**layout, **experts, **kinds), backend_name
    )
    backend = get_backend(backend_name)

    def predict(concurrency: int) -> dict[str, Any]:
        runtime = RuntimeConfig(
            batch_size=concurrency,
            isl=asked["input_tokens"],
            osl=asked["output_tokens"],
            engine_step_backend="rust",
        )
        begun = perf_counter()
        summary = backend.run_agg(model, database, runtime, ctx_tokens=asked["context_tokens"])
        seconds = perf_counter() - begun
        found = summary.get_result_dict()
        told = {
            "output_tokens_per_s": found["tokens/s"],
            "ttft_ms": found["ttft"],
            "tpot_ms": found["tpot"],
        }
        return {
            "concurrency": concurrency,
            "seconds": seconds,
            **{k: float(v) for k, v in told.items()},
        }

    # A batch that is not asked for: its tables are read when they are first looked up.
    predict(3)
    load_s = perf_counter() - begin
    points = [predict(concurrency) for concurrency in asked["concurrency"]]
    return {"backend": backend_name, "version": version, "load_s": load_s, "points": points}


def main() -> None:
    """One line per backend; what it cannot predict is told and is no end."""
    logging.disable(logging.CRITICAL)
    asked = json.load(sys.stdin)
    for backend in asked["backends"]:
        try:
            found = _predictions(asked, backend)
        except Exception as error:  # whatever its tables lack
            found = {"backend": backend, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
