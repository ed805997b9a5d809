"""The prefix cache of one replica, as its scheduler sees it.

What a cache holds counts as used in the replica's KV pool, whether or not a running sequence uses it.
"""

from __future__ import annotations

from typing import Protocol

from autotune.client.requests import Requests
from autotune.simulate.server import Server


class PrefixCache(Protocol):
    """Which beginnings of prompts are in a replica's pool; counts are tokens, in whole blocks of the pool."""

    @property
    def keeps(self) -> bool:
        """Whether anything is there."""
        ...

    def match(self, request: int) -> int:
        """How much of a prompt's beginning is there."""
        ...

    def hold(self, request: int) -> None:
        """A request is admitted and uses what it matched."""
        ...

    def keep(self, request: int) -> int:
        """A prompt is computed: how many of the request's own tokens belong to the cache from now on."""
        ...

    def release(self, request: int) -> None:
        """A request needs its beginning no more."""
        ...

    def evict(self, tokens: float) -> float:
        """Throw out what nobody uses, at least so much if there is so much; returns how much it was."""
        ...


class GroupCache:
    """The cache of a workload whose prompts share beginnings by group; such a beginning stays once it is there.

    Args:
        capacity: tokens of the pool; it keeps so many beginnings that the longest request still fits beside them.
    """

    def __init__(self, server: Server, requests: Requests, capacity: int) -> None:
        block = server.block_tokens
        self._group, self._tokens = requests.group, requests.prefix_tokens // block * block
        self._cached: set[int] = set()
        self._most = 0
        if server.prefix_caching and self._tokens:
            longest = float((requests.input_tokens + requests.output_tokens).max()) + server.tokens_per_step + block
            room = capacity * (1.0 - server.coefficients.watermark) - longest
            self._most = int(max(0.0, room) / self._tokens)

    @property
    def keeps(self) -> bool:
        """Whether any beginning is there."""
        return bool(self._cached)

    def match(self, request: int) -> int:
        """All of the group's beginning, or nothing."""
        return self._tokens if int(self._group[request]) in self._cached else 0

    def hold(self, request: int) -> None:
        """Nothing to note: a beginning is never evicted while something runs."""

    def keep(self, request: int) -> int:
        """The first of a group leaves its beginning to the cache."""
        group = int(self._group[request])
        if group < 0 or group in self._cached or len(self._cached) >= self._most:
            return 0
        self._cached.add(group)
        return self._tokens

    def release(self, request: int) -> None:
        """Nothing to note."""

    def evict(self, tokens: float) -> float:
        """Nothing: beginnings stay."""
        del tokens
        return 0.0
