"""The clients that `benchmarks/load/client.py` compares, each run in a process of its own: ``python
benchmarks/load/peers.py``.

Reads a load as JSON from its command line, sends it, and writes what the client saw to its standard
output. The other clients do what their users' code does with an event, no more: a time, JSON, a
list.
"""

from __future__ import annotations

import asyncio
import codecs
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter, perf_counter_ns, process_time
from typing import Any

import numpy as np

from autotune.base.arrays import Ints
from autotune.load.client.generator import allow_open_files
from autotune.load.client.target import Target

Times = Ints
Answer = tuple[int, Sequence[int]]
"""The number of the request in the truth, and when its tokens came, in ns."""


@dataclass(frozen=True)
class Load:
    """So many streamed completions, all at once.

    Attributes:
        core: the core to run on; None = any.
    """

    client: str
    host: str
    port: int
    streams: int
    tokens: int
    seed: int = 0
    core: int | None = None

    def bodies(self) -> list[bytes]:
        """Prompts of 64 token ids."""
        ids = np.random.default_rng(self.seed).integers(1000, 30_000, (self.streams, 64)).tolist()
        common = {"model": "m", "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0.0}
        common |= {"stream": True, "stream_options": {"include_usage": True}}
        return [json.dumps(common | {"prompt": prompt}).encode() for prompt in ids]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/v1/completions"


def ours(load: Load, bodies: Sequence[bytes]) -> list[Answer]:
    """What `autotune bench` sends with, in one worker."""
    from autotune.load.client.generator import HEAD_START_NS, Generator, event_loop
    from autotune.load.client.messages import RequestTimeouts, Schedule

    target = Target("http", load.host, load.port)
    requests = [target.request("/v1/completions", body) for body in bodies]
    tokens = np.full(load.streams, load.tokens)
    schedule = Schedule(requests, np.zeros(load.streams), tokens, load.streams)
    with event_loop() as runner:
        generator = Generator(target, schedule, RequestTimeouts())
        log, _ = runner.run(generator.run(lambda: perf_counter_ns() + HEAD_START_NS))
    ok = log.records.ok
    ends = np.cumsum(log.chunks[ok])
    times = np.split(np.round(log.records.token_s * 1e9).astype(np.int64), ends)[: len(ends)]
    return [(int(number), seen) for number, seen in zip(log.cached_tokens[ok], times, strict=True)]


def _messages(buffer: str) -> tuple[list[str], str]:
    """The whole messages of a buffer, and what is left of it."""
    *whole, rest = buffer.split("\n\n")
    found = [message.strip() for message in whole if message.strip()]
    data = rest.removeprefix("data: ").strip()
    if not rest.startswith("data: ") or not data:
        return found, rest
    try:
        if data != "[DONE]":
            json.loads(data)
    except json.JSONDecodeError:
        return found, rest
    return [*found, rest.strip()], ""


def aiohttp_vllm(load: Load, bodies: Sequence[bytes]) -> list[Answer]:
    """aiohttp as ``vllm bench serve`` uses it (vllm/benchmarks/lib/endpoint_request_func.py).

    Any bytes that came are stripped, decoded and put into a buffer; a whole event at its end is
    found by parsing it, and parsed once more for its text.
    """

    async def read(response: Any) -> Answer:
        number, times, text, buffer = -1, [], "", ""
        decoder = codecs.getincrementaldecoder("utf-8")()
        async for data in response.content.iter_any():
            data = data.strip()
            if not data:
                continue
            found, buffer = _messages(buffer + decoder.decode(data))
            for message in found:
                content = message.removeprefix("data: ")
                if message.startswith(":") or content == "[DONE]":
                    continue
                event = json.loads(content)
                if choices := event.get("choices"):
                    times.append(perf_counter())
                    text += choices[0].get("text") or ""
                elif usage := event.get("usage"):
                    number = usage["prompt_tokens_details"]["cached_tokens"]
        return number, [round(at * 1e9) for at in times]

    return asyncio.run(_with_aiohttp(load, bodies, read))


def aiohttp_lean(load: Load, bodies: Sequence[bytes]) -> list[Answer]:
    """aiohttp at its best: one time per piece of the body, each event parsed once, from bytes."""

    async def read(response: Any) -> Answer:
        number, times, buffer = -1, [], b""
        async for data in response.content.iter_any():
            now_ns = perf_counter_ns()
            *events, buffer = (buffer + data).split(b"\n\n")
            for event in events:
                if event == b"data: [DONE]":
                    continue
                content = json.loads(event[6:])
                if content.get("choices"):
                    times.append(now_ns)
                elif usage := content.get("usage"):
                    number = usage["prompt_tokens_details"]["cached_tokens"]
        return number, times

    return asyncio.run(_with_aiohttp(load, bodies, read))


async def _with_aiohttp(
    load: Load, bodies: Sequence[bytes], read: Callable[[Any], Any]
) -> list[Answer]:
    import aiohttp

    async def one(body: bytes) -> Answer:
        async with session.post(
            load.url, data=body, headers={"Content-Type": "application/json"}
        ) as response:
            answer: Answer = await read(response)
            return answer

    timeout = aiohttp.ClientTimeout(total=6 * 3600)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as session:
        return _fine(await asyncio.gather(*map(one, bodies), return_exceptions=True))


def with_httpx(load: Load, bodies: Sequence[bytes]) -> list[Answer]:
    """httpx, line by line."""
    import httpx

    async def one(session: Any, body: bytes) -> Answer:
        number, times = -1, []
        async with session.stream("POST", load.url, content=body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("choices"):
                    times.append(perf_counter_ns())
                elif usage := event.get("usage"):
                    number = usage["prompt_tokens_details"]["cached_tokens"]
        return number, times

    async def all_of_them() -> list[Answer]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as session:
            return _fine(
                await asyncio.gather(
                    *(one(session, body) for body in bodies), return_exceptions=True
                )
            )

    return asyncio.run(all_of_them())


def _fine(answers: Sequence[Answer | BaseException]) -> list[Answer]:
    return [answer for answer in answers if not isinstance(answer, BaseException)]


CLIENTS: dict[str, tuple[str, Callable[[Load, Sequence[bytes]], list[Answer]]]] = {
    "ours": ("autotune.load.client.generator", ours),
    "aiohttp": ("aiohttp", aiohttp_vllm),
    "aiohttp-lean": ("aiohttp", aiohttp_lean),
    "httpx": ("httpx", with_httpx),
}
"""By name: what is imported before the clock starts, and what sends."""


def _kib(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0])


def _run_delay_s() -> float:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def main() -> None:
    """Send one load; CPU is this process's own, from before the first connection to the last
    answer."""
    load = Load(**json.loads(sys.argv[1]))
    if load.core is not None:
        os.sched_setaffinity(0, {load.core})
    allow_open_files(load.streams)
    bodies = load.bodies()
    module, client = CLIENTS[load.client]
    import_module(module)
    gc.collect()
    waited_s, cpu_s, began_s = _run_delay_s(), process_time(), perf_counter()
    answers = client(load, bodies)
    figures = {
        "span_s": perf_counter() - began_s,
        "cpu_s": process_time() - cpu_s,
        "run_delay_s": _run_delay_s() - waited_s,
        "peak_mib": _kib("VmHWM") / 1024,
    }
    times = [np.array(seen, dtype=np.int64) for _, seen in answers]
    numbers = np.array([number for number, _ in answers], dtype=np.int64)
    counts = np.array([len(seen) for seen in times], dtype=np.int64)
    joined = np.concatenate([*times, np.empty(0, dtype=np.int64)])
    whole = io.BytesIO()
    np.savez(
        whole, figures=np.array(json.dumps(figures)), numbers=numbers, counts=counts, times=joined
    )
    with open(
        sys.stdout.fileno(), "wb", closefd=False
    ) as out:  # the standard one may be unbuffered, and write short
        out.write(whole.getvalue())


if __name__ == "__main__":
    main()
