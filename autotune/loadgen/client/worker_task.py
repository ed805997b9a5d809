"""One worker's share of a load, as it is sent to the worker's process."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.loadgen.client.generator import Limits, Schedule
from autotune.loadgen.client.prompts import PromptKey, Prompts
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.client.target import Target


@dataclass(frozen=True, slots=True)
class Share:
    """Every n-th request of a load point, for one of n workers; concurrency is split as evenly as it goes.

    Attributes:
        requests: of the whole load point: what a prompt says depends on the request's number in it.
        warm_up: whether to send other prompts than the load's.
        worker: of `workers`, from 0.
    """

    target: Target
    prompts: Prompts
    requests: Requests
    key: PromptKey
    limits: Limits
    streaming: bool = True
    warm_up: bool = False
    worker: int = 0
    workers: int = 1

    def schedule(self) -> Schedule:
        """The share with its request bodies, made here: workers make theirs side by side."""
        requests, prompts, target = self.requests, self.prompts, self.target
        chosen = slice(self.worker, None, self.workers)
        bodies = prompts.bodies(requests, self.key, self.streaming, chosen, self.warm_up)
        return Schedule(
            requests=[target.request(prompts.endpoint, body) for body in bodies],
            send_s=requests.send_s[chosen],
            output_tokens=requests.output_tokens[chosen],
            concurrency=requests.concurrency // self.workers + (self.worker < requests.concurrency % self.workers),
            streaming=self.streaming,
        )
