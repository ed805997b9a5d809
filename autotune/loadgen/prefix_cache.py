"""A server's prefix cache around a load: emptied before it, its hits counted during it, judged after it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.requests import Content, Requests
from autotune.loadgen.server_client import CacheReset, ResetOutcome, ServerClient
from autotune.space.entry import in_range
from autotune.space.schema import EngineCard
from autotune.space.serving import CacheMetrics, Serving


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


TOLERATED = 0.05
"""By how much the hit rate may exceed what the prompts allow: chat templates and texts begin alike, too."""

_SAMPLE = re.compile(
    r'[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}[ \t]*|[ \t])[ \t]*([^ \t#{]+)'
)
"""A sample's name and value; what follows them, a timestamp or an exemplar, does not matter."""


@dataclass(frozen=True, slots=True)
class CachePattern:
    """Where an engine of some versions tells of its prefix cache.

    Attributes:
        path: of the metrics page, below the server's URL.
    """

    engine: str
    path: str
    metrics: CacheMetrics

    def read(self, page: Mapping[str, float]) -> CacheCounters | None:
        """The counters on a page that holds them; None when it is a page of something else, or does not tell hits."""
        known, zero_with = self.metrics.hits, self.metrics.hits_zero_with
        tells = known[0] in page or (zero_with is not None and zero_with in page)
        if self.metrics.queries not in page or not tells:
            return None
        hits = sum(page.get(name, 0.0) for name in known)
        looked_up = page[self.metrics.queries] + (hits if self.metrics.queries_without_hits else 0.0)
        return CacheCounters(self, looked_up, hits)


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """One reading: prompt tokens that were looked up in the prefix cache since the server's start, and those found."""

    pattern: CachePattern
    queries: float
    hits: float


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The prefix cache's part in a load.

    Attributes:
        hits, queries: prompt tokens found and looked up; vLLM looks up none where prefix caching is off.
        source: the counters that tell.
    """

    hits: int
    queries: int
    source: str

    @property
    def hit_rate(self) -> float:
        """WorkerTask of the prompt tokens looked up that were found; 0 when none was looked up."""
        return self.hits / self.queries if self.queries else 0.0

    @classmethod
    def between(cls, before: CacheCounters | None, after: CacheCounters | None) -> CacheUse | None:
        """What happened between two readings; None when one is missing, or the server was started anew meanwhile."""
        if before is None or after is None or before.pattern != after.pattern:
            return None
        hits, queries = round(after.hits - before.hits), round(after.queries - before.queries)
        if hits < 0 or queries < 0:
            return None
        metrics = after.pattern.metrics
        found = " + ".join(metrics.hits)
        looked_up = f"{metrics.queries} + {found}" if metrics.queries_without_hits else metrics.queries
        return cls(hits, queries, f"{found} of {looked_up}")

    @classmethod
    def total(cls, uses: Sequence[CacheUse | None]) -> CacheUse | None:
        """Of several loads together; None when one of them is not known, or there is none."""
        known = [use for use in uses if use is not None]
        if not known or len(known) < len(uses):
            return None
        sources = " and ".join(dict.fromkeys(use.source for use in known))
        return cls(sum(use.hits for use in known), sum(use.queries for use in known), sources)


class CacheProbe:
    """Reads the counters of a server, whose engine it may have to find out; `cache_probe` makes one.

    Attributes:
        engine: the engine whose counters the server has; None before the first reading that found any.
    """

    def __init__(self, client: ServerClient, patterns: Iterable[CachePattern]) -> None:
        self._client, self._patterns = client, tuple(patterns)
        self.engine: str | None = None

    def __call__(self) -> CacheCounters | None:
        """A reading; None when the server does not tell."""
        pages: dict[str, Mapping[str, float]] = {}
        for pattern in self._patterns:
            if pattern.path not in pages:
                pages[pattern.path] = sums(self._client.metrics_text(pattern.path) or "")
            counters = pattern.read(pages[pattern.path])
            if counters is not None:
                # A server stays what it is: another pattern that fits, too, would count from another beginning.
                self._patterns, self.engine = (pattern,), pattern.engine
                return counters
        return None


def cache_probe(client: ServerClient, patterns: Iterable[CachePattern]) -> CacheProbe:
    """Reads a server's prefix cache counters, as `CacheCounters` or None, each time it is called.

    Args:
        patterns: of the engine that serves, or of every engine where that is not known: the first that the server's
            metrics pages have is taken, and kept.
    """
    return CacheProbe(client, patterns)


def cache_patterns(cards: Iterable[EngineCard], version: str | None = None) -> tuple[CachePattern, ...]:
    """What the engines' cards know of their counters.

    Args:
        version: of the engine, where it is known and there is one; None = of any version.
    """
    return tuple(
        CachePattern(card.engine, card.serving.metrics_path, metrics)
        for card in cards
        for metrics in card.serving.cache_metrics
        if version is None or in_range(version, metrics.versions)
    )


def cache_reset(client: ServerClient, serving: Serving) -> Callable[[], CacheReset]:
    """Empties a server's prefix cache, each time it is called, by the engine's endpoint."""

    def reset() -> CacheReset:
        if serving.reset_cache is None:
            return CacheReset(ResetOutcome.NOT_OFFERED, "the engine has no endpoint that empties the prefix cache")
        done = client.reset_cache(serving.reset_cache)
        if done.outcome is ResetOutcome.NOT_OFFERED and serving.reset_cache_needs:
            return CacheReset(done.outcome, f"{done.reason}; it needs {serving.reset_cache_needs}")
        return done

    return reset


def sums(text: str) -> dict[str, float]:
    """Every metric of a Prometheus page, added up over its label sets; lines that are no samples are passed over.

    The format is that of https://prometheus.io/docs/instrumenting/exposition_formats/ (and of OpenMetrics).
    """
    page: dict[str, float] = {}
    for line in text.split("\n"):
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        try:
            value = float(sample[2])
        except ValueError:
            continue
        if math.isfinite(value):
            page[sample[1]] = page.get(sample[1], 0.0) + value
    return page


def expected_hit_rate(requests: Requests) -> float:
    """The highest hit rate that one load of new prompts can have on an empty cache; 0 where no two begin alike.

    A shared beginning is looked up by all and computed by the first. Whole blocks, several replicas and requests that
    come before the first is computed make it less. Of texts the shared part is that of their characters.
    """
    read = requests.input_tokens.astype(np.float64)
    given = [_characters(content) for content in requests.contents] or [""] * len(read)
    drawn = np.array([not text for text in given], dtype=bool)
    shared = np.where((requests.group >= 0) & drawn, np.minimum(requests.prefix_tokens, read), 0.0)
    computed = sum(float(shared[drawn & (requests.group == group)].max()) for group in np.unique(requests.group[drawn]))
    found = float(shared.sum()) - computed + _found_in_texts(given, read.tolist())
    total = float(read.sum())
    return found / total if total else 0.0


def _characters(content: Content | None) -> str:
    """What a file says, as a string that is as long as it is; token ids are characters."""
    if not content:
        return ""
    if isinstance(content, str):
        return content
    return "".join(chr(part % 0x110000) if isinstance(part, int) else json.dumps(part) for part in content)


def _found_in_texts(texts: Sequence[str], tokens: Sequence[float]) -> float:
    """Tokens of texts that begin as another does: sorted, each text's nearest relative stands before it."""
    said = sorted((text, count) for text, count in zip(texts, tokens, strict=True) if text)
    found, before = 0.0, ""
    for text, count in said:
        found += count * _alike(before, text) / len(text)
        before = text
    return found


def _alike(one: str, other: str) -> int:
    """Characters that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def stale(use: CacheUse | None, expected: float) -> str:
    """One sentence when more came from the cache than the prompts allow; empty when not, or when nobody knows.

    Args:
        expected: as `expected_hit_rate` gives it.
    """
    if use is None or use.hit_rate <= expected + TOLERATED:
        return ""
    prompts = f"the prompts share no more than {expected:.0%}" if expected else "every prompt was new"
    return (
        f"{use.hit_rate:.0%} of the prompt tokens came from the prefix cache though {prompts}: "
        "the cache held an earlier load's prompts, or somebody else uses the server"
    )
