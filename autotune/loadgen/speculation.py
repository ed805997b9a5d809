"""Acceptance of drafted tokens by the server's own metrics: speculative decoding is worth the tokens it accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.loadgen.prefix_cache import read_pages
from autotune.loadgen.server_client import ServerClient
from autotune.space.entry import in_range
from autotune.space.schema import EngineCard
from autotune.space.serving import DraftGauges, DraftMetrics
from autotune.trial import Metrics


@dataclass(frozen=True, slots=True)
class DraftUse:
    """Drafts of a server: counted since its start, or of late where it counts none.

    Attributes:
        drafts: how often tokens were drafted for a sequence.
        drafted, accepted: drafted tokens, and those of them that were kept; NaN drafted tokens are not known.
        counted: whether these are counters, whose differences are those of a load; else means of the latest steps.
    """

    drafts: float
    drafted: float
    accepted: float
    counted: bool = True

    @classmethod
    def between(cls, before: DraftUse | None, after: DraftUse | None) -> DraftUse | None:
        """Return the counts of a load; None where none was drafted, or the server was started anew meanwhile."""
        if after is None:
            return None
        start = before if before is not None and before.counted and after.counted else cls(0.0, 0.0, 0.0)
        drafts = after.drafts - start.drafts
        if drafts <= 0:
            return None
        # Tokens per draft may be known only after the load, as the first steps set that gauge.
        known = start.drafts * after.drafted / after.drafts if math.isnan(start.drafted) else start.drafted
        return cls(drafts, after.drafted - known, after.accepted - start.accepted, after.counted)


ReadDrafts = Callable[[], DraftUse | None]


def acceptance(uses: Sequence[DraftUse | None]) -> Metrics:
    """Return the metrics of some loads under the names of ``vllm bench serve``; none where nothing was drafted.

    The rate is drafted tokens that were kept, in percent; the length is tokens per step of a sequence, with the one
    that comes without drafting.
    """
    drafted = [use for use in uses if use is not None]
    if not drafted:
        return {}
    accepted, proposed = sum(use.accepted for use in drafted), sum(use.drafted for use in drafted)
    rate = {} if math.isnan(proposed) else {"spec_decode_acceptance_rate": 100 * accepted / proposed}
    return {**rate, "spec_decode_acceptance_length": 1 + accepted / sum(use.drafts for use in drafted)}


def of_page(metrics: DraftMetrics, page: Mapping[str, Sequence[float]]) -> DraftUse | None:
    """Read a metrics page; None where it is of something else, or nothing is drafted.

    Counters are summed over data-parallel ranks and servers; gauges are averaged over those that have drafted.
    """
    if (counts := metrics.counters) is not None:
        if not all(name in page for name in (counts.drafts, counts.drafted, counts.accepted)):
            return None
        return DraftUse(sum(page[counts.drafts]), sum(page[counts.drafted]), sum(page[counts.accepted]))
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
    lengths, rates = page.get(names.length, ()), page.get(names.rate or "", ())
    # A rank that has not decoded yet tells 0; every step of a sequence gains at least one token.
    rates = [rate for length, rate in zip(lengths, rates, strict=False) if length >= 1]
    lengths = [length for length in lengths if length >= 1]
    if not lengths:
        return None
    accepted, rate, drafted = fmean(lengths) - 1, fmean(rates) if rates else math.nan, 1.0
    if rate and names.rate_of == "verified":
        drafted = (1 + accepted) / rate - 1
    elif rate:  # one that is 0 is 0 of any number of drafted tokens
        drafted = accepted / rate
    return DraftUse(1.0, drafted, accepted, counted=False)


class DraftReader:
    """Reads a server's metrics of its drafts, each time it is called; the arguments are those of `CounterReader`."""

    def __init__(self, client: ServerClient, cards: Iterable[EngineCard], version: str | None = None) -> None:
        self._client = client
        self._sources = [
            (card, metrics)
            for card in cards
            for metrics in card.serving.draft_metrics
            if version is None or in_range(version, metrics.versions)
        ]

    def __call__(self) -> DraftUse | None:
        told: list[DraftUse] = []
        for _, metrics, page in read_pages(self._client, self._sources):
            if (use := of_page(metrics, page)) is not None:
                if use.counted:
                    return use
                told.append(use)
        if not told:
            return None
        # Versions of an engine mean different things by one gauge; where the version is not known, neither is the rate.
        known = len({use.drafted for use in told}) == 1
        return told[0] if known else replace(told[0], drafted=math.nan)
