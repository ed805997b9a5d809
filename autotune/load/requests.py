"""Requests of one load point: lengths, send times, prefixes; without HTTP, so that the simulator
shares them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from autotune.base import Json, frozen
from autotune.base.arrays import Floats, Ints

Content: TypeAlias = str | list[int] | list[Json] | Json
"""A prompt of a file: text, token ids, the messages of a chat, or `messages` with `tools`."""


def spoken(content: Content | None) -> list[str]:
    """Return the texts of a prompt whose tokens count: tools, messages, and the calls of tools."""
    if isinstance(content, dict):
        return [json.dumps(content["tools"]), *spoken(content["messages"])]
    texts = [content] if isinstance(content, str) else []
    for message in () if texts else content or ():
        if isinstance(message, dict):
            calls = message.get("tool_calls")
            texts += [message["content"] or "", json.dumps(calls) if calls else ""]
    return [*filter(None, texts)]


class Turns(NamedTuple):
    """Order of dependent requests of a load: the turns of sessions, one session after the other.

    Attributes:
        after: the request whose answer each continues, shape (n,); -1 = it begins a session.
        think_s: how long after that answer it is sent, shape (n,).
        own_tokens: tokens that each adds to the history, without the previous answer, shape (n,).
        system: number of the preamble of each session, shape (n,); -1 = it has none.
        systems: system prompt and tools by that number.
    """

    after: Ints
    think_s: Floats
    own_tokens: Ints
    system: Ints
    system_tokens: Ints
    systems: Sequence[tuple[str, Sequence[object]]] = ()

    @property
    def session(self) -> Ints:
        """Return the number of each request's session, from 0, shape (n,)."""
        numbers: Ints = np.cumsum(self.after < 0) - 1
        return numbers


@frozen
class Requests:
    """The requests of one load point, in the order of sending; arrays have the shape (n,).

    Attributes:
        send_s: when an open-loop request is sent, seconds since the start; zeros otherwise.
        group: which shared prefix it has; -1 = none.
        concurrency: how many may be in flight; n where there is no limit.
        ramp_s: seconds in which the streams of a closed loop begin, evenly; 0 = all at once.
        contents: the prompts, n entries with None where only the length is given; empty = lengths
            only.
        blocks: hash ids of the blocks of random prompts, n entries: each of `block_tokens`, the
            last one of the rest; equal ids are equal blocks. None: a prompt shares nothing;
            empty = none of them does.
        turns: of sessions, whose requests are sent when the previous answer is there; None = each
            stands alone. Then the contents are the user's texts, and `concurrency` is the number of
            sessions that are open together.
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
    turns: Turns | None = None
    ramp_s: float = 0.0

    @property
    def begins_s(self) -> Floats:
        """Return each closed-loop stream's first request, seconds after the load's start, shape
        (concurrency,)."""
        return np.arange(float(self.concurrency)) * (self.ramp_s / max(self.concurrency, 1))

    def __len__(self) -> int:
        return len(self.input_tokens)

    def dealt(self, number: int, parts: int) -> Ints:
        """Return the positions of every n-th request, ascending; of sessions all turns of every
        n-th."""
        own = np.arange(len(self)) if self.turns is None else self.turns.session
        places: Ints = np.flatnonzero(own % parts == number)
        return places

    def part(self, number: int, parts: int) -> Requests:
        """Return the requests at `dealt`, with an even share of the concurrency."""
        places = self.dealt(number, parts)
        turns = self.turns
        if turns is not None:
            after = turns.after[places]
            after = np.where(after < 0, -1, np.searchsorted(places, after))
            columns = (column[places] for column in turns[1:-1])
            turns = Turns._make([after, *columns, turns.systems])
        chosen = {name: getattr(self, name)[places] for name in _COLUMNS}
        return replace(
            self,
            **chosen,
            concurrency=self.concurrency // parts + (number < self.concurrency % parts),
            contents=[self.contents[place] for place in places] if self.contents else (),
            blocks=[self.blocks[place] for place in places] if self.blocks else (),
            turns=turns,
        )


_COLUMNS = ("input_tokens", "output_tokens", "send_s", "group")


class Segment(NamedTuple):
    """A piece of a prompt: prompts with the same piece of `chain` are equal up to its end."""

    chain: int
    tokens: int


def prompt_segments(requests: Requests) -> Iterator[tuple[Segment, ...]]:
    """Yield the pieces of each prompt of a trace or of sessions, in order; nothing for other
    prompts.

    A prompt without blocks shares nothing and has no segments. A turn begins with the segments of
    the previous turn and its answer.
    """
    turns = requests.turns
    segments: list[Segment] = []
    if turns is None:
        lengths = requests.input_tokens.tolist()
        for hashes, tokens in zip(requests.blocks, lengths, strict=bool(requests.blocks)):
            start = 0
            left = tokens
            segments = []
            for block in hashes or ():
                start = hash((start, block))
                segments.append(Segment(start, min(requests.block_tokens, left)))
                left -= requests.block_tokens
            yield tuple(segments)
        return
    for request, after in enumerate(turns.after.tolist()):
        if after >= 0:
            answer = hash((segments[-1].chain, "answer"))
            segments.append(Segment(answer, int(requests.output_tokens[after])))
        else:
            segments = []
            if (system := int(turns.system[request])) >= 0:
                tokens = int(turns.system_tokens[request])
                segments.append(Segment(hash((system, "system")), tokens))
        segments.append(Segment(hash((request, "user")), int(turns.own_tokens[request])))
        yield tuple(segments)


def shared_tokens(requests: Requests) -> int:
    """Return the prompt tokens shared with the start of earlier prompts of a trace, or their
    answers."""
    turns = requests.turns
    if turns is None:
        longest: dict[int, int] = {}
        shared = 0
        for piece, length in chain.from_iterable(prompt_segments(requests)):
            known = longest.get(piece, 0)
            shared += min(length, known)
            longest[piece] = max(length, known)
        return shared
    # A turn shares the previous prompt and answer, a session's first turn the common preamble.
    later = turns.after >= 0
    history = (requests.input_tokens + requests.output_tokens)[turns.after[later]]
    begins = turns.system[~later]
    _, firsts = np.unique(begins, return_index=True)
    tokens = turns.system_tokens[~later]
    return int(history.sum() + tokens.sum() - tokens[firsts].sum())
