"""The emulated engine in an event loop whose clock jumps to the next timer: no waiting, the same
figures every time."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from autotune.load.prompts import PromptKey, Prompts
from autotune.load.requests import Requests
from autotune.node.emulator.engine import LiveEngine


class _Jumping(selectors.SelectSelector):
    """Passes the time that the loop would wait."""

    now_s = 0.0

    def select(self, timeout=None):
        self.now_s += timeout or 0.0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time is that of its timers."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


@dataclass
class ClosedLoop:
    """A client that keeps so many requests in flight; nothing lies between it and the engine."""

    engine: LiveEngine
    requests: Requests
    clock: Callable[[], float]
    sent_s: list[float] = field(default_factory=list)
    first_s: dict[int, float] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self) -> None:
        number = len(self.sent_s)
        if number == len(self.requests):
            return
        self.sent_s.append(self.clock())
        part = slice(number, number + 1)
        (body,) = Prompts("m").bodies(self.requests, PromptKey("", 0, 0), part=part)
        prompt = json.loads(body)["prompt"]
        self.engine.submit(
            prompt,
            int(self.requests.output_tokens[number]),
            partial(self.arrived, number),
            lambda cached: None,
        )

    def arrived(self, number: int, count: int, last: bool) -> None:
        now_s = self.clock()
        self.first_s.setdefault(number, now_s)
        if not last:
            return
        self.last_s[number] = now_s
        if len(self.last_s) == len(self.requests):
            self.over.set()
        asyncio.get_running_loop().call_soon(self.send)

    def figures(self) -> dict[str, float]:
        """Those of ``autotune.load.metrics.formulas`` that are compared."""
        first, last = (
            np.array([times[i] for i in range(len(times))]) for times in (self.first_s, self.last_s)
        )
        written = np.asarray(self.requests.output_tokens)
        tokens = self.requests.input_tokens.sum() + written.sum()
        many = written > 1
        return {
            "total_token_throughput": float(tokens / (last.max() - self.sent_s[0])),
            "median_tpot_ms": float(np.median((last - first)[many] / (written[many] - 1))) * 1e3,
            "median_ttft_ms": float(np.median(first - np.array(self.sent_s))) * 1e3,
        }


def run(
    make_engine: Callable[[Callable[[], float]], LiveEngine], requests: Requests
) -> dict[str, float]:
    """The figures of a closed loop of these requests on ``make_engine(clock)``."""

    async def whole():
        clock = asyncio.get_running_loop().time
        engine = make_engine(clock)
        client = ClosedLoop(engine, requests, clock)
        for _ in range(min(requests.concurrency, len(requests))):
            client.send()
        await client.over.wait()
        return client.figures()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(whole())
