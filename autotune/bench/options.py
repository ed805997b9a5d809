"""The options of ``autotune bench``, and what they come to; each is checked before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.client.prompts import FileTokenizer
from autotune.errors import BadInput
from autotune.load import LoadOptions
from autotune.load.metrics import check_metric
from autotune.load.workloads import Workload, load_workload
from autotune.space.library import Library
from autotune.spec import Slo


@dataclass(frozen=True, slots=True)
class Bench:
    """The options as typed.

    Attributes:
        concurrency: requests in flight; several make a sweep, none leaves the workload as it is.
        repeats: how often the workload is measured, under the seeds ``seed``, ``seed + 1`` …
        workers: processes that send the load; None = as many as it needs.
        slo: limits as texts.
        keep_cache: the server's prefix cache is not emptied before a load.
        same_prompts: every repeat has the first one's seed.
    """

    url: str
    model: str
    workload: str
    concurrency: tuple[int, ...]
    request_rate: float | None
    seed: int
    repeats: int
    endpoint: str
    tokenizer: Path | None
    api_key_env: str | None
    workers: int | None
    slo: tuple[str, ...]
    min_success_rate: float
    keep_cache: bool
    same_prompts: bool
    save_result: Path | None

    @property
    def seeds(self) -> list[int]:
        """One per repeat; raises `BadInput` for none."""
        if self.repeats < 1:
            raise BadInput(f"--repeats {self.repeats}: the workload is measured at least once")
        return [self.seed + (0 if self.same_prompts else repeat) for repeat in range(self.repeats)]

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The limits; raises `BadInput` for one that is no limit on a metric."""
        slos = tuple(Slo.parse(text) for text in self.slo)
        for slo in slos:
            check_metric(slo.metric)
        return slos


def workload_of(asked: Bench) -> Workload:
    """The workload by its name, sent as asked for."""
    workload = load_workload(asked.workload)
    if asked.concurrency and asked.request_rate is not None:
        raise BadInput("--concurrency and --request-rate exclude each other: a load is closed or open")
    if asked.concurrency:
        return with_concurrencies(workload, asked.concurrency)
    if asked.request_rate is not None:
        if not 0 < asked.request_rate < float("inf"):
            raise BadInput(f"--request-rate {asked.request_rate:g}: give requests per second, more than 0")
        return workload.with_request_rate(asked.request_rate)
    return workload


def with_concurrencies(workload: Workload, values: Sequence[int]) -> Workload:
    """The workload's load points once per value, with so many requests in flight; labelled when there are several."""
    for value in values:
        if value < 1:
            raise BadInput(f"--concurrency {value}: at least 1 request must be under way")
        if values.count(value) > 1:
            raise BadInput(f"--concurrency {value}: given twice")
    if len(values) == 1:
        return workload.with_concurrency(values[0])
    points = [
        point.model_copy(update={"label": f"c{value} {point.label}".rstrip()})
        for value in values
        for point in workload.with_concurrency(value).points
    ]
    return workload.model_copy(update={"points": points})


def api_key(variable: str | None) -> str | None:
    """The key that an environment variable holds."""
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise BadInput(f"--api-key-env {variable}: this environment variable is not set")
    return value.strip()


def check_writable(path: Path | None) -> None:
    """Before the load, as a result that cannot be kept is an hour lost."""
    if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
        raise BadInput(f"--save-result {path}: cannot be written; give a file in a folder that exists")


def load_options(asked: Bench, key: str | None) -> LoadOptions:
    """How the workload is sent."""
    if asked.workers is not None and asked.workers < 1:
        raise BadInput(f"--workers {asked.workers}: at least one process must send the load")
    if not 0 < asked.min_success_rate <= 1:
        raise BadInput(f"--min-success-rate {asked.min_success_rate:g}: give a share of the requests, more than 0 to 1")
    return LoadOptions(
        endpoint=asked.endpoint,
        api_key=key,
        vocabulary=_vocabulary(asked.model),
        tokenizer=FileTokenizer.load(asked.tokenizer) if asked.tokenizer else None,
        workers=asked.workers,
        slos=asked.slos,
        min_success_rate=asked.min_success_rate,
    )


def _vocabulary(model: str) -> int | None:
    """The vocabulary of a model that the packaged library knows."""
    try:
        return Library().model(model).architecture.vocab_size
    except BadInput:
        return None
