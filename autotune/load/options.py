"""The typed options of ``autotune bench``; the command line gets them as
`autotune.tuner.study.options` says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from autotune.base import frozen


@frozen
class BenchOptions:
    """The typed options of ``autotune bench``; without a seed, the prompts' seed is random."""

    url: str
    seed: int
    model: str = ""
    workload: str = "sharegpt"
    window: str | None = None
    speedup: float | None = None
    output_len: int | None = None
    concurrency: Sequence[int] = ()
    request_rate: float | None = None
    burstiness: float = 1.0
    prompts: Literal["ids", "text"] | None = None
    repeats: int = 1
    workers: int | None = None
    slo: Sequence[str] = ()
    goodput: Sequence[str] = ()
    gpu_hour_price: float | None = None
    find_load: Literal["concurrency", "rate"] | None = None
    accuracy: str | None = None
    gpus: int | None = None
    keep_cache: bool = False
    same_prompts: bool = False
    endpoint: Literal["/v1/completions", "/v1/chat/completions"] = "/v1/completions"
    tokenizer: Path | None = None
    api_key_env: str | None = None
    save_result: Path | None = None
    reference: Sequence[Path] = ()
