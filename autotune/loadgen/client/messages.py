"""Messages between the worker processes of a load and the process that started them.

For each load, in this order: in comes a `WorkerTask`, out goes `READY`, in comes the start in ns, out go
`Progress` about twice a second and at last a pair of `RequestLog` and `ClientHealth`. A task that cannot be sent is
answered with a `BadInput`, a fault of the worker itself with a `ClientFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.arrays import Floats, Ints
from autotune.loadgen.client.conversations import Conversation, conversations
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.target import Target
from autotune.loadgen.prompts import PromptKey, Prompts
from autotune.loadgen.requests import Requests

READY = "ready"


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """When to give up on a request.

    Attributes:
        connect_s: for a connection to be made.
        stall_s: without an event: of its own once its answer has begun, before that of any request, as a request
            that waits in a busy server's queue is not stalled.
    """

    connect_s: float = 10.0
    stall_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests and when they are sent: everything that can be made before the clock starts.

    Attributes:
        requests: whole HTTP requests, in the order of sending, n entries.
        send_s: seconds after the start at which each may be sent, shape (n,), ascending.
        output_tokens: how many tokens each must bring, shape (n,).
        conversations: of sessions, whose requests are made when the answers before are there; then `requests` is empty
            and `concurrency` counts sessions.
        ramp_s: seconds in which the streams of a closed loop begin, evenly; 0 = all at once.
    """

    requests: Sequence[bytes]
    send_s: Floats
    output_tokens: Ints
    concurrency: int
    streaming: bool = True
    conversations: Sequence[Conversation] = ()
    ramp_s: float = 0.0

    def __len__(self) -> int:
        return len(self.output_tokens)

    @property
    def at_once(self) -> int:
        """How many are surely in flight together from the start."""
        return min(self.concurrency, int((self.send_s <= 0).sum()))


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """Every n-th request (or session) of a load point, for one of n workers; concurrency is split as evenly as can be.

    Attributes:
        requests: of the whole load point: what a prompt says depends on the request's number in it.
        worker: of `workers`, from 0.
    """

    target: Target
    prompts: Prompts
    requests: Requests
    key: PromptKey
    timeouts: RequestTimeouts
    worker: int = 0
    workers: int = 1

    def schedule(self) -> Schedule:
        """Make the request bodies of this task; workers make theirs side by side."""
        requests, prompts, target = self.requests, self.prompts, self.target
        chosen = requests.dealt(self.worker, self.workers)
        sessions, bodies = list[Conversation](), list[bytes]()
        if requests.turns is None:
            bodies = prompts.bodies(requests, self.key, slice(self.worker, None, self.workers))
        else:
            sessions = conversations(target, prompts, requests, self.key, chosen.tolist())
        return Schedule(
            requests=[target.request(prompts.endpoint, body) for body in bodies],
            send_s=requests.send_s[chosen],
            output_tokens=requests.output_tokens[chosen],
            concurrency=requests.concurrency // self.workers + (self.worker < requests.concurrency % self.workers),
            streaming=prompts.streaming,
            conversations=sessions,
            ramp_s=requests.ramp_s,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a load, in counts since its start."""

    sent: int
    finished: int
    failed: int
    total: int
    chunks: int


Answer: TypeAlias = str | Progress | tuple[RequestLog, ClientHealth]
"""Of a worker whose task can be sent."""
