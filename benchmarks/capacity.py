"""Is the capacity that a load search finds the right one? Against a server whose capacity is known.

``python benchmarks/capacity.py [--runs 20] [--rate 400]`` starts a queue: one server, first come, first served, every
request served in 1/RATE seconds. With n in flight each waits n/RATE seconds, which gives the concurrency that keeps a
limit on TTFT. The rate that keeps one is computed from 400,000 requests of the same queue in virtual time. Then
``autotune bench --find-load`` runs so many times against it, each time with another seed, by concurrency and by rate,
and once a linear sweep in steps of a tenth of the capacity, up to the first load that breaks the limit. Prints a line
for each run; exits with 1 where a capacity was more than 10 % off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_IN_FLIGHT = 128
"""What the limit of the search by concurrency allows."""
_SERVICES = 100
"""Services that the limit of the search by rate is long."""
_WORKLOAD = "random:10:2"
_WITHIN = 0.1
_CLIENT_BOUND, _TRIES = 4, 5


def _event(**more: Any) -> bytes:
    data = b"data: " + json.dumps({"id": "c", "object": "text_completion", "model": "queue", **more}).encode() + b"\n\n"
    return b"%x\r\n" % len(data) + data + b"\r\n"


class Queue:
    """The server: each request has both of its tokens when its service ends."""

    def __init__(self, rate: float) -> None:
        self._service_s = 1 / rate
        self._free_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                body = await reader.readexactly(length)
                if head.startswith(b"POST /v1/completions"):
                    writer.write(await self._answered(json.loads(body)))
                else:
                    known = head.startswith(b"GET /v1/models")
                    text = json.dumps({"data": [{"id": "queue"}]} if known else {}).encode()
                    status = b"200 OK" if known else b"404 Not Found"
                    kind = b"Content-Type: application/json\r\nContent-Length: "
                    writer.write(b"HTTP/1.1 %s\r\n%s%d\r\n\r\n%s" % (status, kind, len(text), text))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answered(self, asked: dict[str, Any]) -> bytes:
        loop = asyncio.get_running_loop()
        self._free_s = max(self._free_s, loop.time()) + self._service_s
        done = loop.create_future()
        loop.call_at(self._free_s, done.set_result, None)
        await done
        tokens, read = int(asked["max_tokens"]), len(asked["prompt"])
        choice = {"index": 0, "text": " a", "logprobs": None, "finish_reason": None}
        usage = {"prompt_tokens": read, "completion_tokens": tokens, "total_tokens": read + tokens}
        events = [_event(choices=[choice], usage=None)] * tokens
        return b"".join([_HEAD, *events, _event(choices=[], usage=usage), b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"])


async def _serve(rate: float) -> None:
    server = await asyncio.start_server(Queue(rate).serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def known_rate(rate: float) -> float:
    """The rate of Poisson arrivals at which the 99th percentile of the time in the queue is at the limit."""
    limit_s, draw = _SERVICES / rate, np.random.default_rng(0)
    gaps = draw.standard_exponential(400_000)
    low, high = 0.5 * rate, rate
    for _ in range(12):
        middle = (low + high) / 2
        # Lindley's recursion in closed form: what is left of the work, less its lowest level so far.
        drift = np.cumsum(1 / rate - gaps / middle)
        waits = drift - np.minimum.accumulate(drift) + 1 / rate
        low, high = (middle, high) if np.quantile(waits, 0.99) <= limit_s else (low, middle)
    return low


def bench(url: str, by: str, limit_ms: float, seed: int, folder: Path) -> dict[str, Any]:
    """One search; the result with its ``seconds``."""
    file = folder / "result.json"
    words = ["bench", "--url", url, "--workload", _WORKLOAD, "--find-load", by, "--seed", str(seed), "--json"]
    words += ["--slo", f"p99_ttft_ms<={limit_ms:g}", "--save-result", str(file)]
    for _ in range(_TRIES):
        began_s = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "autotune", *words], capture_output=True, text=True, check=False)
        if done.returncode != _CLIENT_BOUND:
            break
        print("  the client did not keep up on this machine, and said so: once more", flush=True)
    if done.returncode:
        raise SystemExit(f"autotune {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return {**json.loads(file.read_text()), "seconds": time.perf_counter() - began_s}


def sweep(url: str, by: str, limit_ms: float, capacity: float) -> tuple[int, float]:
    """Requests and seconds of a linear sweep in steps of a tenth of the capacity, as the search sends its loads."""
    from autotune.loadgen import load_workload, measure
    from autotune.loadgen.capacity.judge import least_requests
    from autotune.loadgen.capacity.search import PATIENCE, TURNOVERS, Probe
    from autotune.metrics.formulas import Slo

    slo, requests, began_s = Slo.parse(f"p99_ttft_ms<={limit_ms:g}"), 0, time.perf_counter()
    workload = load_workload(_WORKLOAD)
    for step in range(1, 100):
        load = max(1, round(step * capacity * _WITHIN))
        long_enough = PATIENCE * load * limit_ms / 1e3 / _WITHIN if by == "rate" else TURNOVERS * load
        probe = Probe(
            "rate" if by == "rate" else "concurrency", load, max(least_requests([slo]), round(long_enough)), step
        )
        metrics = measure(url, "queue", probe.workload(workload), probe.seed(0)).metrics
        requests += probe.requests
        if slo.violation(metrics[slo.metric]) > 0:
            break
    return requests, time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=400.0, help="services per second")
    parser.add_argument("--by", choices=["concurrency", "rate"], help="only this search; default: both")
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        import uvloop

        uvloop.run(_serve(options.rate))
        return
    command = [sys.executable, __file__, "--serve", "--rate", str(options.rate)]
    failed = False
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        # Half a service more, so that no rounding decides.
        known = {"concurrency": (_IN_FLIGHT, 1e3 * (_IN_FLIGHT + 0.5) / options.rate)}
        known["rate"] = (known_rate(options.rate), 1e3 * _SERVICES / options.rate)
        for by, (capacity, limit_ms) in known.items():
            if options.by not in (None, by):
                continue
            key = "capacity_concurrency" if by == "concurrency" else "capacity_request_rate"
            print(f"{by}: capacity {capacity:.4g}, p99_ttft_ms<={limit_ms:g}", flush=True)
            right, requests, seconds = 0, [], []
            for run in range(options.runs):
                result = bench(url, by, limit_ms, run, Path(folder))
                off = result[key] / capacity - 1
                right += abs(off) <= _WITHIN
                requests.append(sum(row["completed"] for row in result["curve"]))
                seconds.append(result["seconds"])
                print(f"  {result[key]:g} {off:+.1%}  {requests[-1]} requests  {seconds[-1]:.0f} s", flush=True)
            print(f"  within {_WITHIN:.0%}: {right} of {options.runs}; {np.mean(requests):.0f} requests, "
                  f"{np.mean(seconds):.0f} s a search", flush=True)  # fmt: skip
            swept, swept_s = sweep(url, by, limit_ms, capacity)
            print(f"  linear sweep: {swept} requests, {swept_s:.0f} s", flush=True)
            failed |= right < options.runs
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
