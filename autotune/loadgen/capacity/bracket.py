"""Which load comes next: doubled until one breaks, halved until one keeps, then bisected.

Bisection is geometric: a load is known within a share of itself, at 8 in flight as at 800.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TOLERANCE = 0.1
"""How far the lightest load that breaks may lie above the heaviest one that keeps, as a share of that."""


@dataclass
class Bracket:
    """The loads between which the capacity lies.

    Attributes:
        lightest, heaviest: no load beyond them is tried.
        start: the first load.
        whole: whether loads are whole numbers.
        verdicts: load to whether it kept every limit.
    """

    lightest: float
    heaviest: float
    start: float
    whole: bool
    verdicts: dict[float, bool] = field(default_factory=dict)

    def tell(self, load: float, kept: bool) -> None:
        """Take up a verdict."""
        self.verdicts[load] = kept

    @property
    def kept(self) -> float | None:
        """The heaviest load that kept every limit; None while none did."""
        return max((load for load, kept in self.verdicts.items() if kept), default=None)

    @property
    def broken(self) -> float | None:
        """The lightest load above it that broke one; None while none did."""
        floor = self.kept or 0.0
        return min((load for load, kept in self.verdicts.items() if not kept and load > floor), default=None)

    @property
    def not_monotone(self) -> tuple[float, float] | None:
        """A load that broke a limit, and a heavier one that kept them all."""
        lower = [load for load, kept in self.verdicts.items() if not kept and load < (self.kept or 0.0)]
        return (max(lower), self.kept) if lower and self.kept is not None else None

    def next(self, hint: float | None = None) -> float | None:
        """The next load to try; None when the capacity is known.

        Args:
            hint: what a load that was too heavy came to: no load above it is carried.
        """
        kept, broken = self.kept, self.broken
        if not self.verdicts or (kept is None and self.start not in self.verdicts):
            return self.start
        if broken is None:
            assert kept is not None
            return None if kept >= self.heaviest else self._between(min(2 * kept, self.heaviest))
        if kept is None:
            if broken <= self.lightest:
                return None
            lower = broken / 2 if hint is None else min(broken / 2, hint)
            return self._between(max(lower, self.lightest))
        if broken <= kept * (1 + TOLERANCE) or (self.whole and broken - kept <= 1):
            return None
        middle = math.sqrt(kept * broken)
        if hint is not None:
            middle = min(middle, (1 + TOLERANCE) * max(hint, kept))
        middle = self._between(middle)
        # Rounded to whole numbers the middle may be an end.
        return min(max(middle, kept + 1), broken - 1) if self.whole else middle

    def _between(self, load: float) -> float:
        """A load that can be asked for: a whole number, or one of three digits."""
        return float(max(1, round(load))) if self.whole else float(f"{load:.3g}")
