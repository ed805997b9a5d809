"""The prefix cache of one replica, as its scheduler sees it.

What a cache holds counts as used in the replica's KV pool, whether or not a running sequence uses it.
"""

from __future__ import annotations

from typing import Protocol

from autotune.loadgen.requests import Requests
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
