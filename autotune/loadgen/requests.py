"""Requests of one load point: lengths, send times, prefixes; no HTTP, so that the simulator shares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.arrays import Floats, Ints

Content: TypeAlias = str | list[int] | list[dict[str, str]]
"""A prompt of a file: text, token ids, or the messages of a chat."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one load point, in the order in which they are sent.

    Attributes:
        input_tokens: shape (n,).
        output_tokens: shape (n,).
        send_s: when an open-loop request is sent, seconds since the start, shape (n,); zeros otherwise.
        group: which shared prefix it has, shape (n,); -1 = none.
        prefix_tokens: length of the shared prefix.
        concurrency: how many may be in flight; n where there is no limit.
        contents: the prompts, n entries with None where only the length is given; empty = lengths only.
    """

    input_tokens: Ints
    output_tokens: Ints
    send_s: Floats
    group: Ints
    prefix_tokens: int
    concurrency: int
    contents: Sequence[Content | None] = ()

    def __len__(self) -> int:
        return len(self.input_tokens)
