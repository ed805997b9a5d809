"""Is the capacity that a load search finds the right one? Against servers whose capacity is known.

``python benchmarks/load/capacity.py [--runs 20] [--by concurrency|rate] [--law
fixed|exponential|lognormal]`` starts a queue over HTTP: so many slots, first come, first served,
the first token when the service of a request begins and the last one when it ends. By concurrency a
server of one slot is searched, where n requests in flight wait for n - 1 services. By rate
``autotune bench --find-load rate`` runs against 32 slots of 0.5 s, and the rate that is right is
computed from two million requests of the same queue in virtual time. Each search has another seed
and a server of its own; `--side` of them run side by side. `--hold` then sends the rate that was
found for so many seconds, by `autotune bench --request-rate`, and says whether the limit held. A
load in which the client did not keep up is sent again.

``--virtual`` runs the same searches without HTTP, in virtual time: the arrivals, the search and its
judgement are those of `autotune bench`, the queue is computed. Its figures are simulated.

Prints a line for each run and the sums; exits with 1 where fewer than nine in ten are right to 10 %
or hold, or where the mean is more than 3 % off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapreplace
from pathlib import Path
from typing import Any

import numpy as np

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_IN_FLIGHT = 128
"""What the limit of the search by concurrency allows."""
_WORKLOAD = "random:10:2"
_WITHIN, _MEAN_WITHIN, _SHARE = 0.1, 0.03, 0.9
_CLIENT_BOUND, _TRIES = 4, 5
_EXACT = 2_000_000


@dataclass(frozen=True)
class Law:
    """A queue: slots, seconds of a service in the mean, and how services are distributed."""

    name: str
    slots: int
    service_s: float

    def draw(self, n: int, generator: np.random.Generator) -> Any:
        """Seconds of n services; the lognormal ones have a logarithm with a standard deviation of
        1."""
        if self.name == "exponential":
            return self.service_s * generator.standard_exponential(n)
        if self.name == "lognormal":
            return self.service_s * generator.lognormal(-0.5, 1.0, n)
        return np.full(n, self.service_s)

    def begins(self, sent_s: Any, service_s: Any) -> Any:
        """When services begin of requests that are sent at these times, first come, first
        served."""
        free, begins = [0.0] * self.slots, np.empty(len(sent_s))
        for i, (sent, service) in enumerate(zip(sent_s.tolist(), service_s.tolist(), strict=True)):
            begins[i] = begin = max(sent, free[0])
            heapreplace(free, begin + service)
        return begins

    def p99_ms(self, rate: float, n: int, seed: int) -> float:
        """The 99th percentile of the wait of n Poisson arrivals."""
        generator = np.random.default_rng(seed)
        sent = np.cumsum(generator.standard_exponential(n)) / rate
        return float(1e3 * np.quantile(self.begins(sent, self.draw(n, generator)) - sent, 0.99))

    def known_rate(self, limit_ms: float) -> float:
        """The rate of Poisson arrivals at which the 99th percentile of the wait is at the limit."""
        low, high = 0.5 * self.slots / self.service_s, self.slots / self.service_s
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self.p99_ms(middle, _EXACT, 0) <= limit_ms else (low, middle)
            )
        return low


def _event(**more: Any) -> bytes:
    data = (
        b"data: "
        + json.dumps({"id": "c", "object": "text_completion", "model": "queue", **more}).encode()
        + b"\n\n"
    )
    return b"%x\r\n" % len(data) + data + b"\r\n"


_CHOICE = {"index": 0, "text": " a", "logprobs": None, "finish_reason": None}
_TOKEN = _event(choices=[_CHOICE], usage=None)


class Queue:
    """The server."""

    def __init__(self, law: Law, seed: int) -> None:
        self._law = law
        self._generator = np.random.default_rng(seed)
        self._free_s = [0.0] * law.slots

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                body = await reader.readexactly(length)
                if head.startswith(b"POST /v1/completions"):
                    await self._answer(json.loads(body), writer)
                else:
                    known = head.startswith(b"GET /v1/models")
                    text = json.dumps({"data": [{"id": "queue"}]} if known else {}).encode()
                    status = b"200 OK" if known else b"404 Not Found"
                    kind = b"Content-Type: application/json\r\nContent-Length: "
                    writer.write(b"HTTP/1.1 %s\r\n%s%d\r\n\r\n%s" % (status, kind, len(text), text))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        now_s = asyncio.get_running_loop().time()
        begin_s = max(self._free_s[0], now_s)
        end_s = begin_s + float(self._law.draw(1, self._generator)[0])
        heapreplace(self._free_s, end_s)
        tokens, read = int(asked["max_tokens"]), len(asked["prompt"])
        usage = {"prompt_tokens": read, "completion_tokens": tokens, "total_tokens": read + tokens}
        await self._until(begin_s)
        writer.write(_HEAD + _TOKEN)
        await self._until(end_s)
        done = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        writer.write(b"".join([_TOKEN] * (tokens - 1)) + _event(choices=[], usage=usage) + done)

    async def _until(self, at_s: float) -> None:
        loop = asyncio.get_running_loop()
        if at_s > loop.time():
            reached = loop.create_future()
            loop.call_at(at_s, reached.set_result, None)
            await reached


async def _serve(law: Law, seed: int) -> None:
    server = await asyncio.start_server(Queue(law, seed).serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def serving(law: Law, seed: int) -> Iterator[str]:
    """The URL of a server of its own."""
    words = [
        "--serve",
        "--law",
        law.name,
        "--slots",
        str(law.slots),
        "--service-s",
        str(law.service_s),
    ]
    command = [sys.executable, __file__, *words, "--seed", str(seed)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


def bench(url: str, *more: str) -> tuple[dict[str, Any], int, float, str]:
    """One `autotune bench`: its result, tries that were bound by the client, seconds, and
    messages."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        words = ["bench", "--url", url, *more, "--json", "--save-result", str(file)]
        for _bound in range(_TRIES):
            began_s = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "autotune", *words],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != _CLIENT_BOUND:
                break
            print(f"  again: {done.stderr.strip().splitlines()[-1]}", flush=True)
        if done.returncode:
            raise SystemExit(
                f"autotune {' '.join(words)} ended with {done.returncode}:\n{done.stderr}"
            )
        return json.loads(file.read_text()), _bound, time.perf_counter() - began_s, done.stderr


@dataclass(frozen=True)
class Found:
    """What one search came to; `p99_ms`: of the load that was sent for `--hold` seconds at what it
    found, else None."""

    load: float
    requests: int
    seconds: float
    p99_ms: float | None


def searched(by: str, law: Law, limit_ms: float, seed: int, hold_s: float) -> Found:
    """One search over HTTP, and how long what it found holds."""
    limit = ["--slo", f"p99_ttft_ms<={limit_ms:g}", "--seed", str(seed)]
    with serving(law, seed) as url:
        result, bound, seconds, messages = bench(
            url, "--workload", _WORKLOAD, "--find-load", by, *limit
        )
        load = result["capacity_concurrency" if by == "concurrency" else "capacity_request_rate"]
        requests = sum(map(int, re.findall(r"; (\d+) requests in ", messages)))
        p99_ms = None
        if hold_s and by == "rate":
            words = [
                f"{_WORKLOAD}:{round(load * hold_s)}",
                "--request-rate",
                str(load),
                "--seed",
                str(seed + 10_000),
            ]
            p99_ms = bench(url, "--workload", *words)[0]["p99_ttft_ms"]
    print(
        f"  {by}, {law.name}, seed {seed}: {load:g}, {requests} requests, {seconds:.0f} s"
        + f", {bound} tries thrown away" * bool(bound)
        + (f"; at it p99 TTFT {p99_ms:.0f} ms" if p99_ms is not None else ""),
        flush=True,
    )
    return Found(load, requests, seconds, p99_ms)


def searched_in_virtual_time(
    _by: str, law: Law, limit_ms: float, seed: int, hold_s: float
) -> Found:
    """The same search, by rate, with the queue in virtual time."""
    from autotune.load import load_workload
    from autotune.load.capacity.search import CONFIRM_S, LoadSearch
    from autotune.load.metrics.formulas import Slo
    from autotune.load.metrics.records import RequestRecords

    workload, generator = load_workload(_WORKLOAD), np.random.default_rng(seed)
    search = LoadSearch(
        "rate", [Slo.parse(f"p99_ttft_ms<={limit_ms:g}")], workload, confirm_s=CONFIRM_S
    )
    requests, seconds = 0, 0.0
    while (probe := search.ask()) is not None:
        drawn, service_s = (
            probe.workload(workload).draw(0, probe.seed(seed)),
            law.draw(probe.requests, generator),
        )
        sent_s = drawn.send_s if probe.by == "rate" else np.cumsum(service_s) - service_s
        begins_s = law.begins(sent_s, service_s)
        n, two = probe.requests, np.full(probe.requests, 2.0)
        # A millisecond, as an answer of nothing would have no latency at all.
        search.tell(
            RequestRecords(
                sent_s, begins_s + 1e-3, begins_s + service_s, 5 * two, two, np.ones(n, dtype=bool)
            )
        )
        requests, seconds = requests + n, seconds + float((begins_s + service_s).max())
    load = search.found.capacity
    return Found(
        load,
        requests,
        seconds,
        law.p99_ms(load, round(load * hold_s), seed + 10_000) if hold_s else None,
    )


def report(founds: list[Found], capacity: float, limit_ms: float) -> bool:
    """Print every search and their sums; whether they are as good as is asked."""
    off = np.array([found.load / capacity - 1 for found in founds])
    for found, error in zip(founds, off, strict=True):
        held = "" if found.p99_ms is None else f"  p99 TTFT at it {found.p99_ms:.0f} ms"
        print(
            f"  {found.load:g} {error:+.1%}  {found.requests} requests  {found.seconds:.0f} s{held}",
            flush=True,
        )
    right, holds = (
        int((abs(off) <= _WITHIN).sum()),
        [f.p99_ms <= limit_ms for f in founds if f.p99_ms is not None],
    )
    spread = f"mean {off.mean():+.1%}, {off.min():+.1%} to {off.max():+.1%}"
    requests, seconds = (
        np.mean([found.requests for found in founds]),
        np.mean([found.seconds for found in founds]),
    )
    cost = f"{requests:.0f} requests, {seconds:.0f} s a search"
    held = f"; limit held {sum(holds)} of {len(holds)} times" * bool(holds)
    print(f"  within {_WITHIN:.0%}: {right} of {len(off)}; {spread}; {cost}{held}", flush=True)
    hold = not holds or sum(holds) >= _SHARE * len(holds)
    return right >= _SHARE * len(off) and hold and (len(off) < 5 or abs(off.mean()) <= _MEAN_WITHIN)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument(
        "--by", choices=["concurrency", "rate"], help="only this search; default: both"
    )
    parser.add_argument(
        "--law", choices=["fixed", "exponential", "lognormal"], help="by rate; default: each"
    )
    parser.add_argument("--slots", type=int, default=32, help="by rate")
    parser.add_argument("--service-s", type=float, default=0.5, help="by rate, in the mean")
    parser.add_argument("--limit-ms", type=float, default=550.0, help="by rate, on p99 TTFT")
    parser.add_argument(
        "--rate", type=float, default=400.0, help="services per second, by concurrency"
    )
    parser.add_argument("--side", type=int, default=1, help="searches side by side")
    parser.add_argument(
        "--hold", type=float, default=0.0, help="seconds for which the rate found is sent"
    )
    parser.add_argument("--virtual", action="store_true", help="by rate, in virtual time")
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        import uvloop

        uvloop.run(_serve(Law(options.law, options.slots, options.service_s), options.seed))
        return
    # Half a service less, so that no rounding decides.
    single = Law("fixed", 1, 1 / options.rate)
    cases = (
        []
        if options.by == "rate" or options.virtual
        else [("concurrency", single, float(_IN_FLIGHT), 1e3 * (_IN_FLIGHT - 0.5) / options.rate)]
    )
    for name in [options.law] if options.law else ["fixed", "exponential", "lognormal"]:
        if options.by != "concurrency":
            law = Law(name, options.slots, options.service_s)
            cases.append(("rate", law, law.known_rate(options.limit_ms), options.limit_ms))
    good, seeds = True, range(options.seed, options.seed + options.runs)
    how = searched_in_virtual_time if options.virtual else searched
    with (ProcessPoolExecutor if options.virtual else ThreadPoolExecutor)(options.side) as pool:
        asked = {
            case: [pool.submit(how, by, law, limit_ms, seed, options.hold) for seed in seeds]
            for case in cases
            for by, law, _, limit_ms in [case]
        }
        for (by, law, capacity, limit_ms), founds in asked.items():
            where = " in virtual time" if options.virtual else ""
            print(
                f"{by}{where}, {law.name} service: capacity {capacity:.4g}, p99_ttft_ms<={limit_ms:g}",
                flush=True,
            )
            good &= report([found.result() for found in founds], capacity, limit_ms)
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
