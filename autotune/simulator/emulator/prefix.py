"""Prefix caching by the tokens themselves: a prompt's blocks, and the cache that looks them up.

A block's hash covers everything before it, so that two prompts share a block exactly when they begin alike up to its
end (vLLM: v1/core/kv_cache_utils.py). Only prompts are cached, not answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def block_hashes(tokens: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """One hash per full block, each covering all tokens up to its end."""
    hashes: list[int] = []
    before = 0
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        before = hash((before, *tokens[end - block_tokens : end]))
        hashes.append(before)
    return tuple(hashes)


class BlockCache:
    """The blocks of one replica's pool, least recently used out first; implements `node.prefix.PrefixCache`.

    Args:
        blocks: hashes of each request's prompt; requests come and go.
    """

    def __init__(self, block_tokens: int, enabled: bool, blocks: dict[int, tuple[int, ...]]) -> None:
        self._block_tokens, self._enabled = block_tokens, enabled
        self._blocks = blocks
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, list[int]] = {}

    @property
    def idle_tokens(self) -> int:
        """Tokens that nobody uses now."""
        return len(self._idle) * self._block_tokens

    @property
    def keeps(self) -> bool:
        """Whether anything is there."""
        return bool(self._users or self._idle)

    def match(self, request: int) -> int:
        """Whole blocks from the prompt's beginning."""
        return len(self._matched(request)) * self._block_tokens

    def _matched(self, request: int) -> list[int]:
        found: list[int] = []
        for block in self._blocks[request]:
            if block not in self._users and block not in self._idle:
                break
            found.append(block)
        return found

    def hold(self, request: int) -> None:
        """What it matched cannot be evicted until it is released."""
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
        added = [b for b in self._blocks[request][len(held) :] if b not in self._users and b not in self._idle]
        self._users.update(dict.fromkeys(added, 1))
        held += added
        return len(added) * self._block_tokens

    def release(self, request: int) -> None:
        """Its blocks may be evicted once nobody else uses them, the prompt's end before its beginning."""
        for block in reversed(self._held.pop(request, [])):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._idle[block] = None

    def evict(self, tokens: float) -> float:
        """Throw out blocks that nobody uses, until so many tokens are free."""
        freed = 0
        while freed < tokens and self._idle:
            self._idle.popitem(last=False)
            freed += self._block_tokens
        return float(freed)
