"""The options of ``autotune bench``, and what they come to; each is checked before anything is sent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInput
from autotune.loadgen import LoadOptions, Target
from autotune.loadgen.arrivals import arrival_of
from autotune.loadgen.client.tokenizers import Tokenizer
from autotune.loadgen.tokenizers import tokenizer_for
from autotune.loadgen.workloads import Workload, load_workload
from autotune.metrics.formulas import check_metric
from autotune.space.library import Library
from autotune.study.spec import Slo


@dataclass(frozen=True, slots=True)
class Bench:
    """The options as typed.

    Attributes:
        concurrency: requests in flight; several make a sweep, none leaves the workload as it is.
        repeats: how often the workload is measured, under the seeds ``seed``, ``seed + 1`` …
        ramp_from: a rate, in requests per s, from which it rises to `request_rate`.
        prompts: ``ids`` or ``text``; None leaves it to the endpoint.
        workers: processes that send the load; None = as many as it needs.
        slo: limits as texts.
        must_beat: total tokens per s; a load that can no longer exceed it is stopped.
        stop_early: a load that can no longer keep a limit is stopped, too.
        keep_cache: the server's prefix cache is not emptied before a load.
        same_prompts: every repeat has the first one's seed.
    """

    url: str
    model: str
    workload: str
    concurrency: tuple[int, ...]
    request_rate: float | None
    burstiness: float
    ramp_from: float | None
    prompts: str | None
    seed: int
    repeats: int
    endpoint: str
    tokenizer: Path | None
    api_key_env: str | None
    workers: int | None
    slo: tuple[str, ...]
    must_beat: float | None
    stop_early: bool
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
    workload = _sent_as_asked(asked, load_workload(asked.workload))
    if len(workload.points) > 1 and (asked.must_beat is not None or asked.stop_early):
        raise BadInput("--must-beat and --stop-early are for one load; this workload has several load points")
    if asked.must_beat is not None and not asked.must_beat > 0:
        raise BadInput(f"--must-beat {asked.must_beat:g}: give total tokens per second, more than 0")
    if asked.stop_early and not asked.slo:
        raise BadInput("--stop-early stops when a limit is lost: give one with --slo, e.g. --slo 'p99_ttft_ms<=2000'")
    return workload


def _sent_as_asked(asked: Bench, workload: Workload) -> Workload:
    if asked.concurrency and asked.request_rate is not None:
        raise BadInput("--concurrency and --request-rate exclude each other: a load is closed or open")
    if asked.concurrency:
        return workload.with_concurrencies(asked.concurrency)
    arrival = arrival_of(None, asked.request_rate, asked.burstiness, asked.ramp_from)
    return workload if asked.request_rate is None else workload.with_arrival(arrival)


def tokenizer_of(asked: Bench, workload: Workload, target: Target) -> Tokenizer | None:
    """Who counts the tokens of text; None where only token ids are sent."""
    text = "chat" in asked.endpoint or asked.prompts == "text" or workload.says_text
    if not text and asked.tokenizer is None:
        return None
    return tokenizer_for(asked.tokenizer, target, asked.model)


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
    other = path is not None and path.exists() and not path.is_file()
    if path is not None and (other or not os.access(path.absolute().parent, os.W_OK)):
        raise BadInput(f"--save-result {path}: cannot be written; give a file in a folder that exists")


def load_options(asked: Bench, key: str | None, tokenizer: Tokenizer | None) -> LoadOptions:
    """How the workload is sent."""
    if asked.prompts == "ids" and "chat" in asked.endpoint:
        raise BadInput(f"--prompts ids: {asked.endpoint} takes text; token ids go to /v1/completions")
    if asked.workers is not None and asked.workers < 1:
        raise BadInput(f"--workers {asked.workers}: at least one process must send the load")
    if not 0 < asked.min_success_rate <= 1:
        raise BadInput(f"--min-success-rate {asked.min_success_rate:g}: give a share of the requests, more than 0 to 1")
    return LoadOptions(
        endpoint=asked.endpoint,
        api_key=key,
        vocabulary=_vocabulary(asked.model),
        tokenizer=tokenizer,
        as_text=asked.prompts == "text",
        workers=asked.workers,
        slos=asked.slos,
        must_beat=asked.must_beat,
        stop_on_lost_slo=asked.stop_early,
        min_success_rate=asked.min_success_rate,
    )


def _vocabulary(model: str) -> int | None:
    """The vocabulary of a model that the packaged library knows."""
    try:
        return Library().model(model).architecture.vocab_size
    except BadInput:
        return None
