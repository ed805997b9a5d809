"""What the fast prediction knows of a load point: means and a few quantiles of its requests' lengths, in tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats
from autotune.loadgen.requests import Requests, shared_tokens

EDGES = np.array([0.0, 0.25, 0.5, 0.7, 0.85, 0.94, 0.985, 1.0])
"""Shares of a batch that have ended where the drain is looked at: close where few are left, which takes long."""
SHARES = (np.arange(12) + 0.5) / 12
"""Quantiles of the answers' lengths at which TPOT is predicted: short answers end before the drain."""


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Means and quantiles of the requests of one load point.

    Attributes:
        in_flight: at most.
        read: mean tokens of a prompt.
        longest_prompt: tokens of the longest.
        written: mean tokens of an answer.
        answers: tokens of an answer at `EDGES` of the distribution.
        lengths: the same at `SHARES`.
        residuals: as `answers`, of what is left to write of a running answer, at a random moment.
        alike: how far the answers are of one length, 0 to 1.
        held: mean tokens of a running sequence at a random moment.
        span_s: seconds in which the requests arrive; 0 = as many in flight as may be, all the time.
        shared: tokens that the prompts of a group have in common; of a trace, that one shares with earlier ones, mean.
        groups: how many groups; 0 = nothing is shared.
    """

    requests: int
    in_flight: int
    read: float
    longest_prompt: int
    written: float
    answers: Floats
    lengths: Floats
    residuals: Floats
    alike: float
    held: float
    span_s: float
    shared: int
    groups: int
    is_text: bool = False

    @classmethod
    def of(cls, requests: Requests) -> LoadSummary:
        """Summarise the requests drawn for a load point."""
        read, written = requests.input_tokens.astype(float), requests.output_tokens.astype(float)
        # Who is met running is met the likelier the longer it runs, at any moment of it alike.
        odds = written / written.sum()
        order = np.argsort(written)
        ended = np.concatenate([[0.0], np.cumsum(np.full(len(written), 1.0 / len(written)))])
        lengths = np.concatenate([[0.0], written[order]])
        steps = np.diff(lengths)
        alive = 1.0 - ended[:-1]
        residual = np.concatenate([[0.0], np.cumsum(steps * alive)])
        left = np.interp(EDGES, residual / residual[-1], lengths)
        return cls(
            requests=len(read),
            in_flight=min(len(read), int(requests.concurrency)),
            read=float(read.mean()),
            longest_prompt=int(read.max()),
            written=float(written.mean()),
            answers=np.quantile(written, EDGES),
            lengths=np.quantile(written, SHARES),
            residuals=left,
            alike=max(0.0, 1.0 - 2.0 * float(written.std() / written.mean())),
            held=float((odds * (read + written / 2)).sum()),
            span_s=float(requests.send_s.max()),
            shared=requests.prefix_tokens or shared_tokens(requests) // len(read),
            groups=len(np.unique(requests.group[requests.group >= 0])) or int(bool(requests.blocks or requests.turns)),
            is_text=requests.is_text,
        )
