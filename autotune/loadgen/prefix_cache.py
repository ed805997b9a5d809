"""A server's prefix cache around a load: emptied before it, its hits counted during it, judged after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from autotune.loadgen.cache_use import (
    CacheCounters,
    CacheUse,
    cache_patterns,
    cache_probe,
    cache_reset,
    expected_hit_rate,
    stale,
)
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.control import CacheReset, ServerClient
from autotune.space.schema import EngineCard


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The prefix cache's part in one load.

    Attributes:
        use: None when the server does not tell.
        expected: the highest hit rate that the prompts allow on an empty cache.
        reset: whether the cache was emptied before; None when that was not tried.
        stale: why the numbers are an earlier load's as well; empty when they are not, or that is not judged.
    """

    use: CacheUse | None = None
    expected: float = 0.0
    reset: CacheReset | None = None
    stale: str = ""

    def to_json(self) -> dict[str, Any]:
        use = self.use
        return {
            "hit_rate": use.hit_rate if use else None,
            "hits": use.hits if use else None,
            "queries": use.queries if use else None,
            "source": use.source if use else None,
            "expected_at_most": self.expected,
            "reset": self.reset.outcome.value if self.reset is not None else None,
            "reset_reason": (self.reset.reason or None) if self.reset is not None else None,
        }


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """What can be done with a server's prefix cache.

    Attributes:
        reset: empties it; None = it is left as it is, and more hits than the prompts allow are no fault.
        probe: reads the server's counters; None = only the answers' own usage can tell.
    """

    reset: Callable[[], CacheReset] | None = None
    probe: Callable[[], CacheCounters | None] = field(default=lambda: None)
    judged: bool = True

    @classmethod
    def of(cls, client: ServerClient, cards: Iterable[EngineCard], version: str | None = None) -> PrefixCache:
        """Of a server whose engine is one of these; which one, its metrics page tells.

        Args:
            version: of the engine, where there is only one and it is known.
        """
        known = {card.engine: card for card in cards}
        probe = cache_probe(client, cache_patterns(known.values(), version))
        probe()
        engine = next(iter(known)) if len(known) == 1 else probe.engine
        return cls(cache_reset(client, known[engine].serving) if engine else None, probe)

    def kept(self) -> PrefixCache:
        """The same cache, watched but left as it is."""
        return PrefixCache(None, self.probe, judged=False)

    def empty(self) -> CacheReset | None:
        """Before a load; None when it is left as it is."""
        return self.reset() if self.reset is not None else None

    def report(
        self, requests: Requests, log: RequestLog, before: CacheCounters | None, emptied: CacheReset | None
    ) -> CacheReport:
        """After a load.

        Args:
            before: the reading at its begin.
        """
        use = CacheUse.between(before, self.probe()) or _by_usage(log)
        expected = expected_hit_rate(requests)
        return CacheReport(use, expected, emptied, stale(use, expected) if self.judged else "")


def _by_usage(log: RequestLog) -> CacheUse | None:
    rate = log.cache_hit_rate
    if rate is None:
        return None
    read = int(log.records.input_tokens[log.records.ok].sum())
    return CacheUse(round(rate * read), read, "the answers' usage")
