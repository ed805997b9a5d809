"""Measurement of a workload on one warm server: `measure(url, model, workload, seed, options) -> Measurement`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from autotune.loadgen.client.generator import allow_open_files
from autotune.loadgen.client.messages import ClientHealth, WorkerTask
from autotune.loadgen.client.outcomes import RequestOutcome
from autotune.loadgen.client.target import Target
from autotune.loadgen.prompts import PromptKey, Prompts
from autotune.loadgen.results import LoadOptions, LoadResult, Measurement
from autotune.loadgen.speculation import DraftUse
from autotune.loadgen.workers import Workers, workers_for
from autotune.loadgen.workloads import Workload

_WARM_UP_CONCURRENCY = 128
_WARM_UP_OUTPUT = 32
_WARM_UP_INPUT_TOKENS = 200_000
"""Of the warm-up, for each server: it must touch every code path and batch size, not cost as much as the load."""


def measure(url: str, model: str, workload: Workload, seed: int, options: LoadOptions | None = None) -> Measurement:
    """Send all load points of a workload to a server that is ready, one after the other.

    A load in which the client does not keep up is sent again by more workers.

    Args:
        url: ``http://HOST:PORT``; of several servers that share the load, with commas between.
        seed: fixes lengths, prompts and send times; another seed gives new prompts.

    Returns:
        Faults of the server are counted in it, request by request. A server that answers no request of a warm-up
        gets no load.

    Raises:
        BadInput: a malformed URL, an unknown host, or too few open files allowed.
        ClientFailed: the client itself failed.
    """
    options = options or LoadOptions()
    target = Target.parse(url, options.api_key)
    for point in workload.points:  # before the first load, as the last one may be the one that needs the most
        streams = min(point.arrival.concurrency or point.prompts, point.prompts)
        if not point.arrival.open_loop:
            allow_open_files(math.ceil(streams / (options.workers or workers_for(streams))))
    drawn = [workload.draw(position, seed, options.tokenizer) for position in range(len(workload.points))]
    prompts = Prompts(
        model, options.endpoint, options.vocabulary, options.tokenizer, options.as_text, workload.streaming
    )
    loads: list[LoadResult] = []
    warm_up = _WarmUp(options)
    with Workers() as workers:
        for position, (point, requests) in enumerate(zip(workload.points, drawn, strict=True)):
            key = PromptKey(workload.name, position, seed)
            task = WorkerTask(target, prompts, requests, key, options.timeouts)
            if not warm_up.answered(task, workers):
                break
            on_progress = partial(options.on_progress, point.label) if options.on_progress is not None else None
            discarded: list[tuple[int, str]] = []
            for attempt, count in enumerate(workers.counts(requests, options.workers)):
                cache_before, drafts_before = options.cache.begin(), options.drafts()
                log, clients = workers.send(replace(task, key=replace(key, attempt=attempt)), count, on_progress)
                bound = ClientHealth.of_all(clients).excess(burst=not requests.ramp_s)
                cache = options.cache.report(requests, log, *cache_before)
                drafts = DraftUse.between(drafts_before, options.drafts())
                load = LoadResult(point, log, clients, bound, cache, drafts, options.slos)
                if not bound or not all(outcome.ok for outcome in log.outcomes):
                    break  # where requests failed the server, not the client, is to blame
                discarded.append((count, load.client_bound))
            else:
                discarded.pop()  # the last one stays, for what it is worth
            loads.append(replace(load, discarded=tuple(discarded)))
    return Measurement(seed, tuple(loads), warm_up.seconds, warm_up.failed, len(target.servers))


class _WarmUp:
    """Requests that are not counted, before each load of more streams than any before.

    Attributes:
        seconds: spent on them.
        failed: how the last ones ended when none of them succeeded.
    """

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._streams = 0
        self.seconds = 0.0
        self.failed: tuple[RequestOutcome, ...] = ()

    def answered(self, task: WorkerTask, workers: Workers) -> bool:
        """Send the warm-up of a load where it needs one; whether the server answered any of it."""
        requests, servers = task.requests, len(task.target.servers)
        streams = min(requests.concurrency, servers * _WARM_UP_CONCURRENCY)
        if not self._options.warm_up or streams <= self._streams:
            return True
        self._streams = streams
        # At least twice as many requests as streams, within the bounds, all at once, with short answers.
        count = min(2 * streams, len(requests))
        count = max(int((np.cumsum(requests.input_tokens[:count]) <= servers * _WARM_UP_INPUT_TOKENS).sum()), 1)
        some = replace(
            requests,
            input_tokens=requests.input_tokens[:count],
            output_tokens=np.minimum(requests.output_tokens[:count], _WARM_UP_OUTPUT),
            send_s=np.zeros(count),
            group=requests.group[:count],
            blocks=(),
            turns=None,
            concurrency=min(streams, count),
        )
        task = replace(task, requests=some, key=replace(task.key, warm_up=True))
        log, clients = workers.send(task, next(workers.counts(some, self._options.workers)))
        self.seconds += ClientHealth.of_all(clients).span_s
        if not any(outcome.ok for outcome in log.outcomes):
            self.failed = log.outcomes
        return not self.failed
