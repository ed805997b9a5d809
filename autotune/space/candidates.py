"""The valid configurations of a study, enumerated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.trial import Configuration


@dataclass(frozen=True, slots=True)
class Candidate:
    """One effective configuration that may be tried."""

    configuration: Configuration
    engine_version: str

    @property
    def fingerprint(self) -> str:
        return self.configuration.fingerprint


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """What a study chooses from, in a fixed order.

    Attributes:
        items: the candidates; no two have the same fingerprint.
        baseline: position of the baseline.
        defaults: positions of the engines' defaults on all GPUs.
        starts: positions of configurations that somebody found good.
        monotone_memory: knobs of which a larger value never needs less GPU memory.
    """

    items: Sequence[Candidate]
    baseline: int
    defaults: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    monotone_memory: frozenset[str] = frozenset()
    _positions: dict[str, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self._positions.update({candidate.fingerprint: i for i, candidate in enumerate(self.items)})

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, fingerprint: object) -> bool:
        return fingerprint in self._positions

    def position(self, fingerprint: str) -> int:
        """Where a configuration stands; raises ``KeyError`` when it is none of the candidates."""
        return self._positions[fingerprint]
