"""Accuracy of the load client on this machine: ``python benchmarks/load/client_self_test.py [--workers
N] [--json]``.

The paced server streams at rising rates; what the client saw is compared with what was written,
beside the figures by which the client judges its own health (`ClientHealth.excess`). 1,000 streams,
1,000 to 40,000 chunks per second: two and a half minutes. Exits with 4 when a load was measured
wrong while the client was within its limits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from client_bias import Bias, Emission, PacedServer, Seen

from autotune.load.client.generator import allow_open_files
from autotune.load.client.messages import ClientHealth, RequestTimeouts, WorkerTask
from autotune.load.measuring import Workers, workers_for
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.requests import Requests

_RATES = (1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000)
"""Tokens per second; a node of eight H200 makes some 14,000."""

_MAX_TTFT_P50_MS, _MAX_TTFT_P99_MS, _MAX_ITL = 6.0, 10.0, 0.1
"""A load is accurate up to these biases. The last chunks of a thousand that come in one instant
wait some ms for a single core, whoever reads them, and the shortest TTFT that engines show is ten
times that; gaps get the share of their length by which two configurations may well differ."""

_LATE_SHARE = 1 / 4
_SPREAD_SHARE = 1 / 3
_LENGTH_SPREAD = 0.3
_PROMPT_TOKENS = 64
_FIGURES = ("cpu_share", "run_delay_share", "loop_lag_p99_ms", "send_delay_p99_ms")
_FORM = "{:<9} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8} {:>6} {:>5} {:>6} {:>8} {:>10} {:>6}  {}"


@dataclass(frozen=True, slots=True)
class Row:
    """One load.

    Attributes:
        asked: tokens per second asked of the server.
        bias: None when no request was seen whole.
        failed: requests that were not seen whole.
        health: the figures of the worst worker, by their names in `ClientHealth`.
        excess: what of the client was beyond its limits; empty when it kept up.
        workers: how many sent the load.
    """

    emission: Emission
    asked: float
    bias: Bias | None
    failed: int
    health: Mapping[str, float]
    excess: str
    workers: int

    @property
    def accurate(self) -> bool:
        """Whether the client saw what was written, within the tolerance."""
        if self.bias is None or self.failed:
            return False
        ttft = (
            self.bias.ttft_p50_ms <= _MAX_TTFT_P50_MS and self.bias.ttft_p99_ms <= _MAX_TTFT_P99_MS
        )
        return ttft and abs(self.bias.itl) <= _MAX_ITL

    @property
    def undetected(self) -> bool:
        """Whether a measurement like this one would be believed although it is wrong."""
        return not self.accurate and not self.failed and not self.excess

    def line(self) -> str:
        """The row as text: biases and times in ms."""
        bias, health = self.bias, self.health
        figures = ["-"] * 5
        if bias is not None:
            figures = [f"{bias.rate:,.0f}", f"{bias.ttft_p50_ms:.2f}", f"{bias.ttft_p99_ms:.1f}"]
            figures += [f"{bias.itl_p99_ms:.1f}", f"{bias.true_itl_p99_ms:.1f}"]
        client = [f"{health['cpu_share']:.0%}", f"{health['run_delay_share']:.0%}"]
        client += [f"{health['loop_lag_p99_ms']:.1f}", f"{health['send_delay_p99_ms']:.1f}"]
        verdict = (
            "accurate"
            if self.accurate
            else "undetected"
            if self.undetected
            else "beyond tolerance, detected"
        )
        if bias is None or bias.rate < 0.95 * self.asked:
            verdict += ", the server fell behind"
        counts = (self.workers, verdict)
        return _FORM.format(
            self.emission, f"{self.asked:,.0f}", *figures, self.failed, *client, *counts
        )


def heading() -> str:
    """Above `Row.line`."""
    words = (
        "emission",
        "asked/s",
        "got/s",
        "TTFT +p50",
        "TTFT +p99",
        "ITL p99",
        "true",
        "failed",
        "core",
        "delay",
    )
    return _FORM.format(*words, "lag p99", "send delay", "worker", "verdict")


def measure(pool: Workers, options: argparse.Namespace, rate: float, emission: Emission) -> Row:
    """Send one load as a measurement does, through worker processes."""
    requests = _requests(options.streams, options.seconds, rate)
    with PacedServer(rate, options.streams, emission) as server:
        share = WorkerTask(
            server.target, Prompts("m"), requests, PromptKey("self-test", 0, 0), RequestTimeouts()
        )
        log, workers = pool.send(share, options.workers or workers_for(options.streams))
        bias = Bias.between(Seen.of(log), server.truth())
    worst = ClientHealth.of_all(workers)
    return Row(
        emission=emission,
        asked=rate,
        bias=bias,
        failed=len(requests) - (bias.requests if bias else 0),
        health={name: getattr(worst, name) for name in _FIGURES},
        excess=worst.excess(),
        workers=len(workers),
    )


def _requests(streams: int, seconds: float, rate: float) -> Requests:
    """Most of them at once, as in a burst; the last ones by and by while the others stream: they
    have a planned time, and show what a request sees that comes in the middle of a load. Lengths
    differ, so that ends are spread too."""
    late = int(streams * _LATE_SHARE)
    send_s = np.zeros(streams)
    send_s[streams - late :] = np.linspace(0, seconds * _SPREAD_SHARE, late + 1)[1:]
    lengths = (
        seconds * rate / streams * np.linspace(1 - _LENGTH_SPREAD, 1 + _LENGTH_SPREAD, streams)
    )
    return Requests(
        input_tokens=np.full(streams, _PROMPT_TOKENS),
        output_tokens=np.maximum(
            np.random.default_rng(0).permutation(lengths.round().astype(int)), 2
        ),
        send_s=send_s,
        group=np.full(streams, -1),
        prefix_tokens=0,
        concurrency=streams,
    )


def main() -> None:
    """Print a row per load, the slowest first, and what follows from them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        default=_RATES,
        help="tokens per second, all streams together",
    )
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument(
        "--emissions", nargs="+", choices=("even", "lockstep"), default=("even", "lockstep")
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="for which a stream goes on in the mean"
    )
    parser.add_argument("--workers", type=int, help="default: as many as a measurement would take")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    options = parser.parse_args()
    allow_open_files(options.streams)  # the server inherits it
    print(heading(), file=sys.stderr if options.json else sys.stdout)
    rows: list[Row] = []
    with Workers() as pool:
        for rate in sorted(options.rates):
            for emission in options.emissions:
                rows.append(measure(pool, options, rate, emission))
                print(rows[-1].line(), file=sys.stderr if options.json else sys.stdout, flush=True)
    undetected = sum(row.undetected for row in rows)
    if options.json:
        print(json.dumps([{**asdict(row), "accurate": row.accurate} for row in rows], indent=2))
    else:
        print(
            f"{undetected} of {len(rows)} loads were measured wrong while the client was within its limits"
        )
    sys.exit(4 if undetected else 0)


if __name__ == "__main__":
    main()
