"""How much of what a server drafts it keeps, by its own metrics: speculative decoding is worth what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.loadgen.prefix_cache import samples
from autotune.loadgen.server_client import ServerClient
from autotune.space.entry import in_range
from autotune.space.schema import EngineCard
from autotune.space.serving import DraftMetrics
from autotune.trial import Metrics


@dataclass(frozen=True, slots=True)
class DraftUse:
    """Drafts of a server: counted since its start, or of late where it counts none.

    Attributes:
        drafts: how often tokens were drafted for a sequence.
        drafted, accepted: drafted tokens, and those of them that were kept.
        counted: whether these are counters, whose differences are those of a load; else means of the latest steps.
    """

    drafts: float
    drafted: float
    accepted: float
    counted: bool = True

    @classmethod
    def between(cls, before: DraftUse | None, after: DraftUse | None) -> DraftUse | None:
        """Return the counts of a load; None where none was drafted, or the server was started anew meanwhile."""
        if after is None or (before is not None and before.drafts > after.drafts and after.counted):
            return None
        start = before if before is not None and after.counted else cls(0.0, 0.0, 0.0)
        use = cls(
            after.drafts - start.drafts, after.drafted - start.drafted, after.accepted - start.accepted, after.counted
        )
        return use if use.drafted > 0 and use.drafts > 0 else None


ReadDrafts = Callable[[], DraftUse | None]


def acceptance(uses: Sequence[DraftUse | None]) -> Metrics:
    """Metrics of some loads under the names of ``vllm bench serve``; none where nothing was drafted.

    The rate is drafted tokens that were kept, in percent; the length is tokens per step of a sequence, with the one
    that comes without drafting.
    """
    drafted = [use for use in uses if use is not None]
    if not drafted:
        return {}
    accepted = sum(use.accepted for use in drafted)
    return {
        "spec_decode_acceptance_rate": 100 * accepted / sum(use.drafted for use in drafted),
        "spec_decode_acceptance_length": 1 + accepted / sum(use.drafts for use in drafted),
    }


def of_page(metrics: DraftMetrics, page: Mapping[str, Sequence[float]]) -> DraftUse | None:
    """Read the counters of a metrics page; None when it is a page of something else, or nothing is drafted."""
    if metrics.counters is not None:
        names = metrics.counters
        if not all(name in page for name in (names.drafts, names.drafted, names.accepted)):
            return None
        return DraftUse(sum(page[names.drafts]), sum(page[names.drafted]), sum(page[names.accepted]))
    assert metrics.gauges is not None
    length, rate = (fmean(page.get(name) or [0.0]) for name in (metrics.gauges.length, metrics.gauges.rate))
    if length < 1 or rate <= 0:
        return None
    # Tokens per step over tokens verified per step, of which one is not drafted.
    return DraftUse(1.0, max(length / rate - 1, length - 1, 1e-9), length - 1, counted=False)


class DraftReader:
    """Reads what a server says of its drafts, each time it is called; None when it says nothing.

    Args:
        cards: of the engine that serves, or of every engine where that is not known.
        version: of the engine, where it is known and there is one.
    """

    def __init__(self, client: ServerClient, cards: Iterable[EngineCard], version: str | None = None) -> None:
        self._client = client
        self._sources = [
            (card.serving.metrics_path, metrics)
            for card in cards
            for metrics in card.serving.draft_metrics
            if version is None or in_range(version, metrics.versions)
        ]

    def __call__(self) -> DraftUse | None:
        pages: dict[str, Mapping[str, Sequence[float]]] = {}
        for path, metrics in self._sources:
            if path not in pages:
                pages[path] = samples(self._client.metrics_text(path) or "")
            use = of_page(metrics, pages[path])
            if use is not None:
                return use
        return None
