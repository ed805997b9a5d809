"""Requests sent from this process by the measured path, without what `measure` does around them."""

import json
from time import perf_counter_ns
from typing import Any

import numpy as np

from autotune.load.client.generator import Generator, event_loop
from autotune.load.client.messages import RequestLog, RequestTimeouts, Schedule
from autotune.load.client.target import Target

SHORT = RequestTimeouts(connect_s=5, stall_s=0.3)
LONG = RequestTimeouts(connect_s=5, stall_s=60)


def run(target: Target, schedule: Schedule, timeouts: RequestTimeouts) -> RequestLog:
    """Send a whole schedule, and wait for every answer."""
    with event_loop() as runner:
        log, _ = runner.run(Generator(target, schedule, timeouts).run(perf_counter_ns))
    return log


def completion(prompt: Any = (1, 2, 3, 4, 5), **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "max_tokens": 3, **more}


def send(
    url: str,
    bodies: list[dict[str, Any]] | None = None,
    concurrency: int = 4,
    timeouts: RequestTimeouts = SHORT,
    streaming: bool = True,
    api_key: str | None = None,
) -> RequestLog:
    """All at once or in a closed loop; four of the same unless told otherwise."""
    bodies = bodies or [completion()] * 4
    target = Target.parse(url, api_key)
    requests = [target.request("/v1/completions", json.dumps(body).encode()) for body in bodies]
    expected = np.array([body["max_tokens"] for body in bodies])
    return run(
        target,
        Schedule(requests, np.zeros(len(bodies)), expected, concurrency, streaming),
        timeouts,
    )
