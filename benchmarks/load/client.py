"""What load clients cost, and by how much they are wrong: ``python benchmarks/load/client.py [--seconds
5] [--repeat 3]``.

Every client in a fresh process of its own against a fresh paced server, whose write times are the
truth; server and client on a core each where there are two. Clients take turns within a repeat; a
figure is the median of the repeats. Needs the `bench` extra: ``pip install -e '.[bench]'``.

    got       tokens per second that the server really wrote
    µs/chunk  CPU time of the client's process per token, from before its first connection to its last answer
    core      the same per second
    TTFT      first token seen minus first token written, ms
    ITL       gaps between tokens, 99th percentile, ms
    TPOT      mean time per output token, against the truth
    waited    share of the time in which the client could have run and another process did
    others    cores that other processes of the machine took meanwhile: its noise
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter

import numpy as np
from client_bias import Bias, Emission, PacedServer, Seen
from peers import CLIENTS, Load

from autotune.load.client.generator import allow_open_files

_PEERS = Path(__file__).with_name("peers.py")
_STREAMS = 1000
_RATES = (1_000, 5_000, 15_000, 40_000)
_MEMORY_TOKENS, _MEMORY_RATE = 2000, 50_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FORM = "{:<13} {:<9} {:>7} {:>7} {:>9} {:>5} {:>9} {:>9} {:>8} {:>8} {:>7} {:>6} {:>7} {:>7} {:>6}"
_TITLES = (
    "client",
    "emission",
    "asked/s",
    "got/s",
    "µs/chunk",
    "core",
    "TTFT p50",
    "TTFT p99",
    "ITL p99",
)
_MORE = ("true", "TPOT", "MiB", "waited", "others", "failed")


@dataclass(frozen=True)
class Row:
    """One load: how the server emits, and at which rate."""

    emission: Emission
    rate: int

    @property
    def name(self) -> str:
        return f"{self.emission}:{self.rate}"


@dataclass(frozen=True)
class Cell:
    """What one client did in one row; see the module's heading."""

    rate: float
    us_per_chunk: float
    core: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p99_ms: float
    true_itl_p99_ms: float
    tpot: float
    peak_mib: float
    waited: float
    others: float
    failed: float

    @classmethod
    def median(cls, repeats: Sequence[Cell]) -> Cell:
        columns = {name: [getattr(cell, name) for cell in repeats] for name in asdict(repeats[0])}
        return cls(**{name: float(np.median(values)) for name, values in columns.items()})

    def words(self) -> tuple[str, ...]:
        return (
            f"{self.rate:,.0f}",
            f"{self.us_per_chunk:.1f}",
            f"{self.core:.0%}",
            f"{self.ttft_p50_ms:,.2f}",
            f"{self.ttft_p99_ms:,.1f}",
            f"{self.itl_p99_ms:,.1f}",
            f"{self.true_itl_p99_ms:,.1f}",
            f"{self.tpot:+.1%}",
            f"{self.peak_mib:.0f}",
            f"{self.waited:.1%}",
            f"{self.others:.1f}",
            f"{self.failed:.0f}",
        )


class Noise:
    """How busy the machine is with other processes than our children, from now on."""

    def __init__(self, server_pid: int) -> None:
        self._server = Path(f"/proc/{server_pid}/stat")
        self._begun_s, self._theirs_s = perf_counter(), self._others_s()

    def cores(self) -> float:
        """Cores that they took."""
        return max(self._others_s() - self._theirs_s, 0.0) / (perf_counter() - self._begun_s)

    def _others_s(self) -> float:
        user, nice, system, _, _, *irq = map(
            int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        )
        server = sum(map(int, self._server.read_text().rpartition(")")[2].split()[11:13]))
        ours = getrusage(RUSAGE_CHILDREN)
        return (
            (user + nice + system + sum(irq) - server) / _TICKS_PER_S
            - ours.ru_utime
            - ours.ru_stime
        )


def _cores() -> tuple[int | None, int | None]:
    """The server's and the client's."""
    mine = sorted(os.sched_getaffinity(0))
    return (mine[0], mine[1]) if len(mine) > 1 else (None, None)


def _measured(row: Row, load: Load, limit_s: float) -> Cell | None:
    """One run; None when the client did not finish in time."""
    server_core, client_core = _cores()
    with PacedServer(row.rate, load.streams, row.emission, server_core) as server:
        load = replace(load, host=server.target.host, port=server.target.port, core=client_core)
        command = [sys.executable, str(_PEERS), json.dumps(asdict(load))]
        noise = Noise(server.pid)
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit_s, check=True)
        except subprocess.TimeoutExpired:
            return None
        others = noise.cores()
        with np.load(io.BytesIO(done.stdout)) as told:
            figures = json.loads(str(told["figures"]))
            ends = np.cumsum(told["counts"])
            seen = Seen(told["numbers"].tolist(), np.split(told["times"], ends)[: len(ends)])
        bias = Bias.between(seen, server.truth())
    assert bias is not None, f"{load.client} saw no request whole"
    chunks = int(ends[-1])
    return Cell(
        rate=bias.rate,
        us_per_chunk=figures["cpu_s"] / chunks * 1e6,
        core=figures["cpu_s"] / figures["span_s"],
        ttft_p50_ms=bias.ttft_p50_ms,
        ttft_p99_ms=bias.ttft_p99_ms,
        itl_p99_ms=bias.itl_p99_ms,
        true_itl_p99_ms=bias.true_itl_p99_ms,
        tpot=bias.tpot,
        peak_mib=figures["peak_mib"],
        waited=figures["run_delay_s"] / figures["span_s"],
        others=others,
        failed=load.streams - bias.requests,
    )


def _lines(options: argparse.Namespace) -> Iterator[str]:
    """The table; a client that did not finish at a rate is not asked for a higher one."""
    gave_up: set[tuple[str, Emission]] = set()
    limit_s = 4 * options.seconds + 10
    rows = [Row(emission, rate) for emission in ("even", "lockstep") for rate in _RATES]
    for row in rows:
        if options.rows and row.name not in options.rows:
            continue
        tokens = max(round(options.seconds * row.rate / _STREAMS), 2)
        cells: dict[str, list[Cell]] = {client: [] for client in options.clients}
        for repeat in range(options.repeat):
            for client in options.clients:
                if (client, row.emission) in gave_up:
                    continue
                load = Load(client, "", 0, _STREAMS, tokens, options.seed + repeat)
                cell = _measured(row, load, limit_s)
                if cell is None:
                    gave_up.add((client, row.emission))
                else:
                    cells[client].append(cell)
        for client, repeats in cells.items():
            start = (client, row.emission, f"{row.rate:,}")
            if repeats:
                yield _FORM.format(*start, *Cell.median(repeats).words())
            else:
                empty = _FORM.format(*start, *[""] * 12).rstrip()
                yield f"{empty}  did not finish within {limit_s:g} s, here or at a lower rate"


def _memory(seed: int) -> str:
    row, load = Row("even", _MEMORY_RATE), Load("ours", "", 0, _STREAMS, _MEMORY_TOKENS, seed)
    cell = _measured(row, load, limit_s=600)
    assert cell is not None
    what = f"{_STREAMS} requests of {_MEMORY_TOKENS} tokens at {cell.rate:,.0f}/s"
    return f"memory: {what}: {cell.peak_mib:.0f} MiB at most ({cell.failed:.0f} failed)"


def main() -> None:
    """Print the table, then the memory that a long load takes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of streaming per run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument(
        "--rows", nargs="+", metavar="EMISSION:RATE", help="such as even:15000; all without it"
    )
    parser.add_argument("--no-memory", action="store_true", help="leave the long load out")
    options = parser.parse_args()
    allow_open_files(2 * _STREAMS)  # the children inherit it
    cores = (
        "a core each for server and client"
        if _cores()[0] is not None
        else "one core for server and client"
    )
    ordinary = os.sched_getscheduler(0) == os.SCHED_OTHER
    print(
        f"{os.cpu_count()} cores, {cores}; load average {os.getloadavg()[0]:.1f} before", end="; "
    )
    print(f"{'ordinary' if ordinary else 'real-time'} priority; ", end="")
    print(f"{_STREAMS} streams, {options.seconds:g} s, median of {options.repeat}")
    print(_FORM.format(*_TITLES, *_MORE), flush=True)
    for line in _lines(options):
        print(line, flush=True)
    if not options.no_memory:
        print(_memory(options.seed))
    print(f"load average {os.getloadavg()[0]:.1f} after, which includes these runs")


if __name__ == "__main__":
    main()
