"""The typed options of ``autotune bench``; some of them are options of ``autotune run``, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.base.options import FIRST, GOAL, not_again, option, repeatable, typed_word


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The typed options of ``autotune bench``; without a seed, the prompts' seed is random."""

    # fmt: off
    url: str
    seed: int
    model: str = option("--model", "The model's name on the server. Default: the one it serves.", default="")
    workload: str = option("--workload", "A name, random:IN:OUT[:N], sharegpt:FILE[:N] …", default="sharegpt")
    speedup: float | None = option("--speedup", "Replay trace:FILE this many times faster. Default: 1.", GOAL, needs="search", again=not_again)
    concurrency: Sequence[int] = repeatable("--concurrency", "Closed loop with this many requests in flight; repeated: a sweep.")
    request_rate: float | None = option("--request-rate", "Open loop: requests per second, Poisson arrivals.")
    burstiness: float = option("--burstiness", "Burstiness of a request rate: 1 is Poisson, inf evenly spaced.", default=1.0)
    prompts: Literal["ids", "text"] | None = option("--prompts", "Random prompts as token ids or as text.")
    repeats: int = option("--repeats", "Number of measurements, each with the next seed.", default=1, least=1)
    workers: int | None = option("--workers", "Processes that send the load; default: as many as needed.", least=1)
    slo: Sequence[str] = repeatable("--slo", "Limit for goodput, e.g. 'p99_ttft_ms<=2000'; repeat for several.")
    goodput: Sequence[str] = repeatable("--goodput", "Limits of a good request, in ms, e.g. 'ttft:2000 tpot:50'.", GOAL, needs="launch", again=lambda spec: [f"{name}:{typed_word(limit)}" for name, limit in spec.goodput.items()])
    gpu_hour_price: float | None = option("--gpu-hour-price", "Price of one GPU for an hour: adds cost_per_million_tokens.", GOAL, row=("Price of a GPU-hour", "{}"))
    find_load: Literal["concurrency", "rate"] | None = option("--find-load", "With --slo: find the highest load that meets every limit, to within 10 %.", FIRST, needs="search", row=("Load", "raised as far as the limits are met, by {}"))
    accuracy: str | None = option("--accuracy", "Check answers: builtin, a FILE.jsonl of tasks, or 'command {url} {model}' that prints a score.", GOAL)
    gpus: int | None = option("--gpus", "GPUs of the server: adds figures per GPU, and costs with a price.", least=1)
    keep_cache: bool = option("--keep-cache", "Do not empty the server's prefix cache before each load.", default=False)
    same_prompts: bool = option("--same-prompts", "Every repeat sends the same prompts.", default=False)
    endpoint: Literal["/v1/completions", "/v1/chat/completions"] = option("--endpoint", "", default="/v1/completions")
    tokenizer: Path | None = option("--tokenizer", "tokenizer.json, or its folder, for text.")
    api_key_env: str | None = option("--api-key-env", "Environment variable that holds the API key.")
    save_result: Path | None = option("--save-result", "Write JSON, and next to it a row per request.")
    reference: Sequence[Path] = repeatable(
        "--reference",
        "With --accuracy: earlier answers (from --save-result) to compare with; repeat for several of one server.",
    )
