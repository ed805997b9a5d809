"""The prefix cache of one replica, as its scheduler sees it.

What a cache holds counts as used in the replica's KV pool, whether or not a running sequence uses it.
"""

from __future__ import annotations

from typing import Protocol

from autotune.loadgen.requests import Requests
from autotune.simulator.node.server import Server


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
    """The cache of a workload whose prompts share beginnings by group.

    A beginning that nobody uses stays until the pool needs its room; the one that was used longest ago goes first.
    """

    def __init__(self, server: Server, requests: Requests) -> None:
        block = server.block_tokens
        self._group, self._tokens = requests.group, requests.prefix_tokens // block * block
        self._on = server.prefix_caching and self._tokens > 0
        self._users: dict[int, set[int]] = {}  # group -> requests that use its beginning; the latest used is last

    @property
    def keeps(self) -> bool:
        """Whether any beginning is there."""
        return bool(self._users)

    def match(self, request: int) -> int:
        """All of the group's beginning, or nothing."""
        return self._tokens if int(self._group[request]) in self._users else 0

    def hold(self, request: int) -> None:
        """The group's beginning, if it is there, cannot be thrown out meanwhile."""
        users = self._used(int(self._group[request]))
        if users is not None:
            users.add(request)

    def keep(self, request: int) -> int:
        """The first of a group leaves its beginning to the cache."""
        group = int(self._group[request])
        if not self._on or group < 0 or group in self._users:
            return 0
        self._users[group] = {request}
        return self._tokens

    def release(self, request: int) -> None:
        """The request uses the group's beginning no more."""
        users = self._used(int(self._group[request]))
        if users is not None:
            users.discard(request)

    def evict(self, tokens: float) -> float:
        """Throw out beginnings that nobody uses."""
        evicted = 0.0
        for group in [group for group, users in self._users.items() if not users]:
            if evicted >= tokens:
                break
            del self._users[group]
            evicted += self._tokens
        return evicted

    def _used(self, group: int) -> set[int] | None:
        """A beginning's users, after noting that it was used now; None where it is not there."""
        users = self._users.pop(group, None)
        if users is not None:
            self._users[group] = users
        return users
