"""Streams and tokens per second that `autotune emulate` sustains: ``python
benchmarks/node/emulator.py``.

Prints, for the emulator's own server and for an ASGI server that does nothing but pace (uvicorn
with httptools and uvloop, starlette), the tokens per second that arrived, the share of a core that
the server took, and the time that the emulator fell behind and gave up. The reader counts bytes and
nothing else; it runs in this process, so that two cores are needed. Target: 1000 streams at 15,000
tokens/s on one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit
from urllib.request import urlopen

import uvloop

MODEL = "deepseek-ai/DeepSeek-R1-0528"
_MEASURED_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Reader(asyncio.Protocol):
    """One stream, read for ever."""

    def __init__(self, request: bytes, counts: list[int]) -> None:
        self._request, self._counts = request, counts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        # uvloop's transports are no subclasses of asyncio's.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count events."""
        self._counts[0] += data.count(b"data: ")


def _request(url: str, index: int) -> bytes:
    body = json.dumps(
        {
            "prompt": [index + 1] * 16,
            "max_tokens": 20_000,
            "ignore_eos": True,
            "stream": True,
            "model": MODEL,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(frozen=True)
class Row:
    """What one server sustained."""

    tokens_per_s: float
    core: float


async def _read(url: str, pid: int, streams: int) -> Row:
    loop, counts, parts = asyncio.get_running_loop(), [0], urlsplit(url)
    transports = []
    for index in range(streams):
        request = _request(url, index)
        transport, _ = await loop.create_connection(
            lambda r=request: Reader(r, counts), parts.hostname, parts.port
        )
        transports.append(transport)
    while counts[0] < 2 * streams:  # every stream has begun, or nearly
        await asyncio.sleep(0.1)
    begin_s, begin_cpu, begin = perf_counter(), _cpu_s(pid), counts[0]
    await asyncio.sleep(_MEASURED_S)
    passed_s = perf_counter() - begin_s
    row = Row((counts[0] - begin) / passed_s, (_cpu_s(pid) - begin_cpu) / passed_s)
    for transport in transports:
        transport.abort()
    return row


def _emulator(streams: int, speed: float) -> tuple[Row, float]:
    command = [
        "vllm",
        "serve",
        MODEL,
        "-tp",
        "8",
        "--max-num-seqs",
        str(streams),
        "--max-model-len",
        "32768",
    ]
    options = ["--hw", "h200", "--port", "0", "--startup-s", "0", "--speed", str(speed), "--json"]
    words = [sys.executable, "-m", "autotune", "emulate", *options, "--", *command]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            row = uvloop.run(_read(url, process.pid, streams))
            page = urlopen(f"{url}/metrics").read().decode()
            lost_s = float(page.rsplit(" ", 1)[1])
        finally:
            process.terminate()
    return row, lost_s


def _asgi(streams: int, step_s: float) -> Row:
    words = [sys.executable, __file__, "--serve-asgi", str(step_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            return uvloop.run(_read(process.stdout.readline().strip(), process.pid, streams))
        finally:
            process.kill()


def _serve_asgi(step_s: float) -> None:
    """The comparison: every stream gets a token in every step, from one ticker."""
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    queues: set[asyncio.Queue[bytes]] = set()
    event = b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,'
    event += b'"text":" the","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'

    async def tick() -> None:
        due_s = perf_counter()
        while True:
            due_s += step_s
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
            for queue in queues:
                queue.put_nowait(event)

    async def events():
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queues.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            queues.discard(queue)

    ticking = []

    async def complete(request):
        await request.json()
        if not ticking:
            ticking.append(asyncio.ensure_future(tick()))
        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, http="httptools", loop="uvloop", log_level="error")).run(
        [listener]
    )


def main() -> None:
    """Print one line per server and rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve-asgi", type=float)
    parser.add_argument("--streams", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.serve_asgi is not None:
        _serve_asgi(arguments.serve_asgi)
        return
    streams = arguments.streams
    for speed in (0.5, 1.0, 2.0, 4.0):
        row, lost_s = _emulator(streams, speed)
        told = f"{row.tokens_per_s:9,.0f} tokens/s {row.core:5.0%} of a core, {lost_s:.1f} s lost"
        print(f"emulator        {streams} streams, speed {speed:g}: {told}", flush=True)
    for rate in (5_000, 15_000, 30_000):
        row = _asgi(streams, streams / rate)
        told = f"{row.tokens_per_s:9,.0f} of {rate:,} tokens/s {row.core:5.0%} of a core"
        print(f"uvicorn+starlette {streams} streams: {told}", flush=True)


if __name__ == "__main__":
    main()
