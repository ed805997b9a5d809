"""Prefix cache of a server around a load: emptied before it, its hits counted during it, judged
after it.

Two loads of the same prompts differ by more than any flag does when the second finds the first's in
the cache (vllm#54227: throughput x 2.32). So the cache is emptied before a load, the prompts are
new, and the server's own counters are the proof. The same pages have the number of accepted drafted
tokens, which speculative decoding gains.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import NamedTuple, TypeVar

import numpy as np

from autotune.base import FloatDict, FloatMap, Json, frozen
from autotune.engines import EngineCard
from autotune.engines.serving import CacheMetrics, DraftGauges, DraftMetrics, Serving

from .client.messages import RequestLog
from .metrics.table import Metrics
from .requests import Content, Requests, shared_tokens
from .server_client import CacheReset, ResetOutcome, ServerClient

TOLERATED = 0.05
"""Tolerated excess of the hit rate over that of the prompts: chat templates and texts have common
starts."""
_ALL_COUNTED = 0.9
"""Least share of the sent prompt tokens that a server counts: more servers share the load else."""

_Metrics = TypeVar("_Metrics")
_SAMPLE = re.compile(
    r'[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})[ \t]*|[ \t])[ \t]*([^ \t#{]+)'
)
"""A sample's name, labels and value; a timestamp or an exemplar after them is ignored."""

_BOUND = re.compile(r'\ble="([^"]+)"')


class CacheUse(NamedTuple):
    """Prompt tokens found and looked up in a load, or since the server's start; `source` names the
    counters.

    vLLM looks up none where prefix caching is off; `prompts` are all prompt tokens, if counted
    apart.
    """

    hits: float
    queries: float
    source: str
    prompts: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the looked-up prompt tokens that were found; 0 for none."""
        return self.hits / self.queries if self.queries else 0.0

    @classmethod
    def between(cls, before: CacheUse | None, after: CacheUse | None) -> CacheUse | None:
        """Return the difference of two readings; None if one is missing, or the server was
        restarted in between."""
        if before is None or after is None or before.source != after.source:
            return None
        hits = round(after.hits - before.hits)
        queries = round(after.queries - before.queries)
        prompts = round(after.prompts - before.prompts)
        return cls(hits, queries, after.source, prompts) if hits >= 0 and queries >= 0 else None

    @classmethod
    def of_answers(cls, log: RequestLog) -> CacheUse | None:
        """Sum the ``cached_tokens`` of the answers; None unless every answer has them."""
        ok = log.records.ok
        cached = log.cached_tokens[ok]
        read = log.records.input_tokens[ok]
        if not len(cached) or np.isnan(cached).any() or not read.sum():
            return None
        return cls(int(cached.sum()), int(read.sum()), "the answers' usage")

    @classmethod
    def total(cls, uses: Sequence[CacheUse | None]) -> CacheUse | None:
        """Return the sum over several loads; None if one of them is unknown, or there is none."""
        known = [use for use in uses if use is not None]
        if not known or len(known) < len(uses):
            return None
        sources = " and ".join(dict.fromkeys(use.source for use in known))
        return cls(sum(use.hits for use in known), sum(use.queries for use in known), sources)


class CacheReport(NamedTuple):
    """Prefix cache figures of one load.

    Attributes:
        use: None when the server does not publish it.
        expected: the highest hit rate that the prompts allow on an empty cache.
        reset: whether the cache was emptied before; None when that was not tried.
        stale: why the hits are an earlier load's as well; empty when they are not, or that is not
            judged.
        partial: why the server's counters are left out; empty when they cover the load.
    """

    use: CacheUse | None = None
    expected: float = 0.0
    reset: CacheReset | None = None
    stale: str = ""
    partial: str = ""

    @classmethod
    def joined(cls, reports: Sequence[CacheReport]) -> CacheReport:
        """Return the report of several loads; a failed reset represents all."""
        resets = [report.reset for report in reports]
        reset = next((reset for reset in resets if not reset), resets[0] if resets else None)
        use = CacheUse.total([report.use for report in reports])
        partial = next((report.partial for report in reports if report.partial), "")
        expected = max((report.expected for report in reports), default=0.0)
        return cls(use, expected, reset, partial=partial)

    def to_json(self) -> Json:
        reset = self.reset
        counts = ("hit_rate", "hits", "queries", "source")
        return {
            **{name: getattr(self.use, name, None) for name in counts},
            "expected_at_most": self.expected,
            "reset": None if reset is None else reset.outcome.value,
            "reset_reason": None if reset is None else reset.reason or None,
            "left_out": self.partial or None,
        }


def counters(metrics: CacheMetrics, page: FloatMap) -> CacheUse | None:
    """Return the counters of a metrics page; None for another page, or one without hits."""
    has_hits = metrics.hits[0] in page or metrics.hits_zero_with in page
    if metrics.queries not in page or not has_hits:
        return None
    hits = sum(page.get(name, 0.0) for name in metrics.hits)
    queries = page[metrics.queries]
    hit_names = " + ".join(metrics.hits)
    source = f"{hit_names} of {metrics.queries}"
    if metrics.queries_without_hits:
        queries += hits
        source += f" + {hit_names}"
    return CacheUse(hits, queries, source)


def known_metrics(card: EngineCard, version: str | None = None) -> list[CacheMetrics]:
    """Return the counters that an engine's card names for a version; None = for any."""
    return [m for m in card.serving.cache_metrics if version is None or m.is_for(version)]


class CounterReader:
    """Read a server's prefix cache counters; `engine` names the engine whose counter names matched.

    The cards are those of every engine where it is unknown. The first whose counters the pages have
    is taken, and kept.
    """

    def __init__(
        self, client: ServerClient, cards: Iterable[EngineCard], version: str | None = None
    ) -> None:
        self._client = client
        self._sources = [
            (card, metrics) for card in cards for metrics in known_metrics(card, version)
        ]
        self.engine: str | None = None

    def __call__(self) -> CacheUse | None:
        """Return hits and lookups since the server's start; None if the server has no such
        counters."""
        for card, metrics, page in read_pages(self._client, self._sources):
            use = counters(metrics, {name: sum(values) for name, values in page.items()})
            if use is not None:
                # Keep this source: another one that fits, too, would count from another zero.
                self._sources = [(card, metrics)]
                self.engine = card.engine
                prompts = page.get(card.serving.metrics.get("prompt_tokens", ""), ())
                return use._replace(prompts=sum(prompts))
        return None


@frozen
class PrefixCache:
    """Access to a server's prefix cache.

    Attributes:
        reset: empties it; None = it is left as it is.
        read: reads the server's counters; without them only the answers' own usage has hits.
        judged: whether more hits than the prompts allow are a fault.
    """

    reset: Callable[[], CacheReset] | None = None
    read: Callable[[], CacheUse | None] = lambda: None
    judged: bool = True

    @classmethod
    def for_engines(
        cls, client: ServerClient, cards: Iterable[EngineCard], version: str | None = None
    ) -> PrefixCache:
        """Return the cache of a server of one of these engines; its metrics page identifies the
        engine."""
        by_engine = {card.engine: card for card in cards}
        read = CounterReader(client, by_engine.values(), version)
        read()
        engine = next(iter(by_engine)) if len(by_engine) == 1 else read.engine
        reset = partial(reset_cache, client, by_engine[engine].serving) if engine else None
        return cls(reset, read)

    def begin(self) -> tuple[CacheUse | None, CacheReset | None]:
        """Empty the cache before a load, and read its counters."""
        emptied = self.reset() if self.reset is not None else None
        return self.read(), emptied

    def report(
        self,
        requests: Requests,
        log: RequestLog,
        before: CacheUse | None,
        emptied: CacheReset | None,
    ) -> CacheReport:
        """Evaluate a finished load, with the values of `begin` before it."""
        after = self.read()
        counted = CacheUse.between(before, after)
        partial = ""
        if before is not None and after is not None:
            partial = uncounted(counted, log)
        use = (None if partial else counted) or CacheUse.of_answers(log)
        expected = expected_hit_rate(requests)
        if partial and emptied:
            emptied = CacheReset(ResetOutcome.UNKNOWN, partial)
        old = stale(use, expected) if self.judged else ""
        return CacheReport(use, expected, emptied, old, partial)


def uncounted(counted: CacheUse | None, log: RequestLog) -> str:
    """Return a sentence if a server counted fewer prompt tokens than its answers have, as one of
    several behind a router does, or counts backwards; empty if not."""
    sent = float(log.records.input_tokens[log.records.ok].sum())
    found = -1.0 if counted is None else max(counted.queries, counted.prompts)
    if found >= _ALL_COUNTED * sent:
        return ""
    grew = "went backwards" if counted is None else f"grew by {found:,.0f}"
    return (
        f"the server's counters {grew} while {sent:,.0f} prompt tokens were answered: behind this "
        "address are several servers, of which one reports, or it was restarted"
    )


def reset_cache(client: ServerClient, serving: Serving) -> CacheReset:
    """Empty a server's prefix cache by the engine's endpoint."""
    if serving.reset_cache is None:
        return CacheReset(
            ResetOutcome.NOT_OFFERED, "the engine has no endpoint that empties the prefix cache"
        )
    reset = client.reset_cache(serving.reset_cache)
    if reset.outcome is ResetOutcome.NOT_OFFERED and serving.reset_cache_needs:
        return CacheReset(reset.outcome, f"{reset.reason}; it needs {serving.reset_cache_needs}")
    return reset


def read_pages(
    client: ServerClient, sources: Iterable[tuple[EngineCard, _Metrics]]
) -> Iterator[tuple[EngineCard, _Metrics, dict[str, list[float]]]]:
    """Yield engines and names of metrics with the `samples` of the engine's page; each page is
    fetched once."""
    pages = {}
    for card, metrics in sources:
        path = card.serving.metrics_path
        if path not in pages:
            pages[path] = samples(client.metrics_text(path) or "")
        yield card, metrics, pages[path]


def samples(text: str) -> dict[str, list[float]]:
    """Return the samples of each metric of a Prometheus page, of a histogram's bucket under its name
    and bound; other lines are skipped.

    The format is that of https://prometheus.io/docs/instrumenting/exposition_formats/ (and of
    OpenMetrics).
    """
    page: dict[str, list[float]] = {}
    for sample in filter(None, map(_SAMPLE.match, text.split("\n"))):
        with suppress(ValueError):
            if math.isfinite(value := float(sample[3])):
                name = "".join([sample[1], *_BOUND.findall(sample[2] or "")])
                page.setdefault(name, []).append(value)
    return page


def sums(text: str) -> FloatDict:
    """Return the sum of the samples of each metric of a page, 0 for others."""
    return defaultdict(float, {name: sum(values) for name, values in samples(text).items()})


def expected_hit_rate(requests: Requests) -> float:
    """Return the highest hit rate of one load of new prompts on an empty cache; 0 if no two have a
    common start.

    A shared prefix is looked up by all and computed by the first. Whole blocks, several replicas
    and requests that come before the first is computed make it less. The shared part of texts is
    counted in characters.
    """
    tokens = requests.input_tokens.astype(np.float64)
    alone = requests.contents if requests.turns is None else ()
    texts = [_characters(content) for content in alone] or [""] * len(tokens)
    random = np.array([not text for text in texts], bool)
    shared = np.where(
        (requests.group >= 0) & random, np.minimum(requests.prefix_tokens, tokens), 0.0
    )
    groups = np.unique(requests.group[random])
    computed = sum(float(shared[random & (requests.group == group)].max()) for group in groups)
    hits = float(shared.sum()) - computed + shared_tokens(requests)
    total = float(tokens.sum())
    # Sorted, each text stands behind the one it shares the most with.
    before = ""
    for text, count in sorted(zip(texts, tokens.tolist(), strict=True)):
        if text:
            hits += count * _common_characters(before, text) / len(text)
            before = text
    return hits / total if total else 0.0


def _common_characters(one: str, other: str) -> int:
    """Count the common leading characters of two texts, by bisection: comparing slices is fast."""
    common = 0
    most = min(len(one), len(other))
    while common < most:
        middle = (common + most + 1) // 2
        if one[common:middle] == other[common:middle]:
            common = middle
        else:
            most = middle - 1
    return common


def _characters(content: Content | None) -> str:
    """Return a prompt of a file as a string of equal length; token ids become characters."""
    if not content:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [*content["tools"], *content["messages"]]
    return "".join(
        chr(part % 0x110000) if isinstance(part, int) else json.dumps(part) for part in content
    )


def stale(use: CacheUse | None, expected: float) -> str:
    """Return a sentence if more came from the cache than `expected_hit_rate`; empty if not, or
    unknown."""
    if use is None or use.hit_rate <= expected + TOLERATED:
        return ""
    prompts = f"the prompts share at most {expected:.0%}" if expected else "every prompt was new"
    return (
        f"{use.hit_rate:.0%} of the prompt tokens came from the prefix cache though {prompts}: "
        "the cache held earlier prompts, or the server has other users; send new prompts (another seed)"
    )


class DraftUse(NamedTuple):
    """Drafts of a server: counted since its start, or recent ones for a gauge.

    Attributes:
        drafts: how often tokens were drafted for a sequence.
        drafted, accepted: drafted tokens, and the accepted ones; NaN drafted tokens are unknown.
        counted: True for counters, whose difference over a load counts; False for means of the
            latest steps.
    """

    drafts: float
    drafted: float
    accepted: float
    counted: bool = True

    @classmethod
    def between(cls, before: DraftUse | None, after: DraftUse | None) -> DraftUse | None:
        """Return the counts of a load; None for no drafts, or if the server was restarted in
        between."""
        if after is None:
            return None
        if before is None or not before.counted or not after.counted:
            before = cls(0.0, 0.0, 0.0)
        drafts = after.drafts - before.drafts
        drafted = before.drafted
        if drafts <= 0:
            return None
        # Tokens per draft may be known only after the load, as the first steps set that gauge.
        if math.isnan(drafted):
            drafted = before.drafts * after.drafted / after.drafts
        return cls(drafts, after.drafted - drafted, after.accepted - before.accepted, after.counted)


ReadDrafts = Callable[[], DraftUse | None]


def acceptance(uses: Sequence[DraftUse | None]) -> Metrics:
    """Return the metrics of some loads under the names of ``vllm bench serve``; none without
    drafts.

    The rate is drafted tokens that were kept, in percent; the length is tokens per step of a
    sequence, with the one that comes without drafting.
    """
    known = [use for use in uses if use is not None]
    metrics: Metrics = {}
    if known:
        accepted = sum(use.accepted for use in known)
        drafted = sum(use.drafted for use in known)
        if not math.isnan(drafted):
            metrics["spec_decode_acceptance_rate"] = 100 * accepted / drafted
        length = 1 + accepted / sum(use.drafts for use in known)
        metrics["spec_decode_acceptance_length"] = length
    return metrics


def accepted_by_events(logs: Sequence[RequestLog]) -> Metrics:
    """Return the length from the events of the answers: one per step of a sequence, and a first one
    of prefill."""
    requests = sum(len(log) for log in logs)
    tokens = sum(int(log.records.output_tokens.sum()) for log in logs)
    steps = sum(int(log.chunks.sum()) for log in logs) - requests
    return {"spec_decode_acceptance_length": (tokens - requests) / steps} if steps > 0 else {}


def drafts_of_page(metrics: DraftMetrics, page: Mapping[str, Sequence[float]]) -> DraftUse | None:
    """Read a page: counters are summed over ranks and servers, gauges averaged; None without
    drafts."""
    if (counts := metrics.counters) is not None:
        names = (counts.drafts, counts.drafted, counts.accepted)
        if not all(name in page for name in names):
            return None
        drafts, drafted, accepted = (sum(page[name]) for name in names)
        return DraftUse(drafts, drafted, accepted)
    if (served := metrics.requests) is not None:
        if served.drafts not in page:
            return None
        drafts, generated, requests = (
            sum(page.get(name, ())) for name in (served.drafts, served.generated, served.requests)
        )
        verified = [tokens for tokens in page.get(served.verified, ()) if tokens > 1]
        drafted = drafts * (fmean(verified) - 1) if verified else math.nan
        return DraftUse(drafts, drafted, generated - requests - drafts)
    assert metrics.gauges is not None
    return _of_gauges(metrics.gauges, page)


def _of_gauges(names: DraftGauges, page: Mapping[str, Sequence[float]]) -> DraftUse | None:
    lengths = page.get(names.length, ())
    rates = page.get(names.rate or "", ())
    # Leave out ranks that have not decoded yet, whose length is 0: every step gains a token.
    rates = [rate for length, rate in zip(lengths, rates, strict=False) if length >= 1]
    lengths = [length for length in lengths if length >= 1]
    if not lengths:
        return None
    accepted = fmean(lengths) - 1
    rate = fmean(rates) if rates else math.nan
    if not rate:
        drafted = 1.0  # A rate of 0 is 0 of any number of drafted tokens.
    elif names.rate_of == "verified":
        drafted = (1 + accepted) / rate - 1
    else:
        drafted = accepted / rate
    return DraftUse(1.0, drafted, accepted, counted=False)


class DraftReader:
    """Read a server's metrics of its drafts at each call; the arguments are those of
    `CounterReader`."""

    def __init__(
        self, client: ServerClient, cards: Iterable[EngineCard], version: str | None = None
    ) -> None:
        self._client = client
        self._sources = [
            (card, metrics)
            for card in cards
            for metrics in card.serving.draft_metrics
            if version is None or metrics.is_for(version)
        ]

    def __call__(self) -> DraftUse | None:
        gauges = []
        for _, metrics, page in read_pages(self._client, self._sources):
            if (use := drafts_of_page(metrics, page)) is not None:
                if use.counted:
                    return use
                gauges.append(use)
        if not gauges:
            return None
        # Versions of an engine mean different things by one gauge; where the version is not known,
        # neither is the rate.
        known = len({use.drafted for use in gauges}) == 1
        return gauges[0] if known else gauges[0]._replace(drafted=math.nan)
