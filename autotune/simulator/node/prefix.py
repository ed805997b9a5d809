"""The prefix cache of one replica, as its scheduler sees it.

What a cache holds counts as used in the replica's KV pool, whether or not a running sequence uses it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from autotune.arrays import Ints
from autotune.loadgen.requests import Requests, Segment, prompt_segments
from autotune.simulator.node.server import SimulatedServer


class PrefixCache(Protocol):
    """Which prompt prefixes are in a replica's pool; counts are tokens, in whole blocks of the pool."""

    @property
    def keeps(self) -> bool:
        """Whether it holds any prefix."""

    def match(self, request: int) -> int:
        """Tokens of the longest cached prefix of a request's prompt."""

    def hold(self, request: int) -> None:
        """Pin the prefix that an admitted request matched, until it is released."""

    def keep(self, request: int) -> int:
        """Cache the prefix of a computed prompt; returns the request's own tokens that the cache owns from now on."""

    def keep_answer(self, request: int) -> int:
        """Cache what a request that ended has generated; returns its tokens that the cache owns from now on."""

    def release(self, request: int) -> None:
        """Unpin the prefix of a request."""

    def evict(self, tokens: float) -> float:
        """Evict unpinned prefixes until so many tokens are free, or none is left; returns the tokens freed."""


class GroupCache(PrefixCache):
    """The prefix cache of a workload whose prompts share a prefix by group; evicts the least recently used."""

    def __init__(self, server: SimulatedServer, requests: Requests) -> None:
        block = server.block_tokens
        self._group, self._tokens = requests.group, requests.prefix_tokens // block * block
        self._on = server.prefix_caching and self._tokens > 0
        self._users: dict[int, set[int]] = {}  # group -> requests that use its prefix; the latest used is last

    @property
    def keeps(self) -> bool:
        return bool(self._users)

    def match(self, request: int) -> int:
        return self._tokens if int(self._group[request]) in self._users else 0

    def hold(self, request: int) -> None:
        self._used(request).add(request)

    def keep(self, request: int) -> int:
        group = int(self._group[request])
        if not self._on or group < 0 or group in self._users:
            return 0
        self._users[group] = {request}
        return self._tokens

    def keep_answer(self, request: int) -> int:  # noqa: ARG002  nobody sends an answer again
        return 0

    def release(self, request: int) -> None:
        self._used(request).discard(request)

    def evict(self, tokens: float) -> float:
        evicted = 0.0
        for group in [group for group, users in self._users.items() if not users]:
            if evicted >= tokens:
                break
            del self._users[group]
            evicted += self._tokens
        return evicted

    def _used(self, request: int) -> set[int]:
        """The users of a request's prefix, which becomes the most recently used; an empty set where it is not there."""
        group = int(self._group[request])
        users = self._users.pop(group, None)
        if users is None:
            return set()
        self._users[group] = users
        return users


class BlockCache(PrefixCache):
    """The blocks of one replica's pool, least recently used out first.

    Args:
        blocks: hashes of each request's prompt, each covering all tokens up to its block's end; requests come and go.
        answers: the same of prompt and answer, for requests whose answer somebody may send again.
    """

    def __init__(
        self,
        block_tokens: int,
        enabled: bool,
        blocks: Mapping[int, Sequence[int]],
        answers: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._block_tokens, self._enabled = block_tokens, enabled
        self._blocks = blocks
        self._answers: Mapping[int, Sequence[int]] = {} if answers is None else answers
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, list[int]] = {}

    @property
    def idle_tokens(self) -> int:
        """Tokens that nobody uses now."""
        return self._tokens(self._idle)

    @property
    def keeps(self) -> bool:
        return bool(self._users or self._idle)

    def match(self, request: int) -> int:
        return self._tokens(self._matched(request))

    def _tokens(self, blocks: Collection[int]) -> int:
        return len(blocks) * self._block_tokens

    def _matched(self, request: int) -> list[int]:
        """Whole blocks from the prompt's beginning."""
        return list(takewhile(lambda block: block in self._users or block in self._idle, self._blocks[request]))

    def hold(self, request: int) -> None:
        held = self._matched(request)
        for block in held:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        self._held[request] = held

    def keep(self, request: int) -> int:
        """Its computed blocks go into the cache; one that another request has put there meanwhile stays its own."""
        if not self._enabled:
            return 0
        held = self._held.setdefault(request, [])
        return self._add(held, self._blocks[request][len(held) :])

    def keep_answer(self, request: int) -> int:
        """The blocks that it has filled while it decoded, as the engines keep them."""
        if not self._enabled or request not in self._answers:
            return 0
        return self._add(self._held.setdefault(request, []), self._answers[request])

    def _add(self, held: list[int], blocks: Sequence[int]) -> int:
        """Those that are not there yet go into the cache, held by a request; returns their tokens."""
        added = [block for block in blocks if block not in self._users and block not in self._idle]
        self._users.update(dict.fromkeys(added, 1))
        held += added
        return self._tokens(added)

    def release(self, request: int) -> None:
        """Its blocks may be evicted once nobody else uses them, the prompt's end before its beginning."""
        for block in reversed(self._held.pop(request, [])):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._idle[block] = None

    def evict(self, tokens: float) -> float:
        freed = 0
        while freed < tokens and self._idle:
            block, _ = self._idle.popitem(last=False)
            freed += self._tokens((block,))
        return float(freed)


class SegmentCache(BlockCache):
    """The prefix cache of a load whose prompts are made of blocks of a trace, or of the turns of sessions.

    Args:
        sizes: tokens of each block, whole ones of the pool.
        read: tokens of the prompts.
    """

    def __init__(
        self,
        server: SimulatedServer,
        blocks: Mapping[int, Sequence[int]],
        answers: Mapping[int, Sequence[int]],
        sizes: Mapping[int, int],
        read: Ints,
    ) -> None:
        super().__init__(server.block_tokens, server.prefix_caching, blocks, answers)
        self._sizes, self._read = sizes, read

    def match(self, request: int) -> int:
        # At least the prompt's last token is computed anew, as its successor comes from it.
        return min(super().match(request), (int(self._read[request]) - 1) // self._block_tokens * self._block_tokens)

    def _tokens(self, blocks: Collection[int]) -> int:
        return sum(self._sizes[block] for block in blocks)


def load_caches(server: SimulatedServer, requests: Requests) -> list[PrefixCache]:
    """The prefix caches of the replicas, for a load whose requests are known beforehand."""
    segments = list(prompt_segments(requests))
    if not segments:
        return [GroupCache(server, requests) for _ in range(server.data_parallel)]
    sizes: dict[int, int] = {}
    blocks: dict[int, list[int]] = {}
    for request, pieces in enumerate(segments):
        cut = _whole_blocks(pieces, server.block_tokens)
        sizes.update(cut)
        blocks[request] = list(cut)
    answers: dict[int, list[int]] = {}
    if requests.turns is not None:
        # The next turn of the session begins with them.
        after = requests.turns.after.tolist()
        said = {before: segments[request][:-1] for request, before in enumerate(after) if before >= 0}
        answers = {before: list(_whole_blocks(pieces, server.block_tokens)) for before, pieces in said.items()}
    read = requests.input_tokens
    return [SegmentCache(server, blocks, answers, sizes, read) for _ in range(server.data_parallel)]


def _whole_blocks(pieces: Sequence[Segment], block: int) -> dict[int, int]:
    """The segments of a prompt, cut to whole blocks of the pool: tokens by a number of each."""
    end = 0
    cut: dict[int, int] = {}
    for piece in pieces:
        begin, end = end // block * block, end + piece.tokens
        tokens = end // block * block - begin
        if tokens > 0:
            # A piece that is cut shorter in one prompt than in another is another one.
            cut[hash((piece.chain, tokens))] = tokens
    return cut
