"""Requests of one load point: lengths, send times, prefixes; no HTTP, so that the simulator shares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

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
        blocks: what random prompts are made of, n entries: hash ids, each of a block of `block_tokens`, the last one
            of what is left; equal ids are equal blocks. None: a prompt shares nothing; empty = none of them does.
        block_tokens: tokens of such a block.
        is_text: whether the prompts are text as people write it, whose continuation can be guessed.
    """

    input_tokens: Ints
    output_tokens: Ints
    send_s: Floats
    group: Ints
    prefix_tokens: int
    concurrency: int
    contents: Sequence[Content | None] = ()
    blocks: Sequence[tuple[int, ...] | None] = ()
    block_tokens: int = 0
    is_text: bool = False

    def __len__(self) -> int:
        return len(self.input_tokens)


class Segment(NamedTuple):
    """A piece of a prompt that other prompts may have at the same place.

    Attributes:
        chain: number of the piece and all before it: prompts that have it begin alike up to its end.
        tokens: how long the piece is.
    """

    chain: int
    tokens: int


def prompt_segments(requests: Requests) -> Iterator[tuple[Segment, ...]]:
    """The blocks of each prompt of a trace, in order; nothing where no prompt has blocks.

    A prompt without blocks shares nothing and has no segments.
    """
    for hashes, tokens in zip(requests.blocks, requests.input_tokens.tolist(), strict=bool(requests.blocks)):
        chain, segments = 0, []
        for position, one in enumerate(hashes or ()):
            chain = hash((chain, one))
            segments.append(Segment(chain, min(requests.block_tokens, tokens - position * requests.block_tokens)))
        yield tuple(segments)


def shared_tokens(requests: Requests) -> int:
    """Prompt tokens that earlier prompts of a trace begin with, too."""
    longest: dict[int, int] = {}
    shared = 0
    for segment in (segment for segments in prompt_segments(requests) for segment in segments):
        shared += min(segment.tokens, longest.get(segment.chain, 0))
        longest[segment.chain] = max(segment.tokens, longest.get(segment.chain, 0))
    return shared
