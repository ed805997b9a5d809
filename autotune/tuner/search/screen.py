"""Screen candidates by launches with random weights, which start sooner and give only a rank.

A candidate's score with random weights differs from its score with real weights. The model takes
this difference as a mean over all candidates plus an effect of each engine and each layout, and
learns it as a covariance among the launches with random weights (`shared`). So these launches rank
candidates; the level comes from the launches with real weights.

The first launches are a control: the baseline and one candidate of another layout run with random
and with real weights. If the baseline starts quickly anyway, nothing is screened. Later, every few
launches, a screened candidate is checked with real weights: one of each layout, then the best one.
Screening ends for good if layouts differ too much for a ranking, or if the starts save too little.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

import numpy as np

from autotune.base import frozen
from autotune.base.arrays import Floats, floats
from autotune.engines import Candidate, CandidateSet, Scalar

from ..trial import Role
from .entry import Entries, Entry, by_position
from .spread import LAUNCH_NOISE

CONTROLS = 2
"""Candidates with both kinds of launches before random weights are trusted."""
CHECKS, KNOWN = (2, 4), 0.06
"""Launches with random weights between two checks; the second value if `Screen.layouts` <
`KNOWN`."""
START_S = 120.0
"""Seconds of a start without the reading of weights; vLLM's and SGLang's ``start_s`` in their
simulator.yaml."""
BADLY, FEW = (0.12, 0.095), 4
"""Largest `Screen.layouts` with which ranks are used; the second value from `FEW` candidates with
both kinds of launches on."""
WORTH, FAILED = 0.85, 2
"""Largest duration of a launch with random weights, as a ratio to one with real weights; and the
failures after which an engine gets no more random weights, of candidates that ran with real ones."""
RESERVE = 1
"""Launches kept before the finals to check the best candidate that had only random weights."""
_OVERALL, _EXPERTS, _ENGINE, _OWN = 0.3, 0.2, 0.05, 0.01
"""Standard deviations of the difference: of its mean over all candidates; of the effect of experts
on many GPUs, where real tokens are routed unevenly; of the effects of an engine and of a candidate.
They are choices."""
_LAYOUT = {0.03: 0.3, 0.06: 0.3, 0.12: 0.2, 0.24: 0.1, 0.48: 0.1}
"""Prior of the standard deviation of a layout's effect: value to probability. It is a choice."""


@frozen
class Screen:
    """Results of the launches with random weights so far.

    Attributes:
        layouts: standard deviation of the layouts' effects; 0 until random weights are `trusted`.
        over: why screening has ended; empty while it goes on.
    """

    layouts: float = 0.0
    over: str = ""

    @property
    def trusted(self) -> bool:
        return self.layouts > 0.0


def screen_of(candidates: Sequence[Candidate], entries: Entries, screened: Entries) -> Screen:
    """Compare the launches with random weights, `screened`, with those of the same candidates with
    real weights."""
    entries, screened = ([e for e in rows if e.measured] for rows in (entries, screened))
    full = by_position(entries)
    random_weights = by_position(screened)
    both = [p for p in random_weights if p in full]
    # Prefer pairs whose first launch had random weights: the second start of a command is shorter,
    # because its kernels are compiled.
    timed = [p for p in both if random_weights[p][0].number < full[p][0].number] or both
    took = [[fmean(e.seconds for e in rows[p]) for rows in (full, random_weights)] for p in timed]
    # Before the control take the first launch, and the same without the reading of its weights.
    took = took or [[e.seconds, e.seconds - max(0.0, e.start_s - START_S)] for e in entries][:1]
    full_s, random_s = map(fmean, zip(*took, strict=True)) if took else (0.0, 0.0)
    if random_s > WORTH * full_s:
        times = f"{random_s:.0f} s instead of {full_s:.0f} s"
        return Screen(over=f"a launch with random weights is not much shorter ({times})")
    if len(both) < CONTROLS:
        return Screen()
    rank, score = (
        np.array([fmean(e.score for e in rows[p] if e.score is not None) for p in both])
        for rows in (random_weights, full)
    )
    noise = LAUNCH_NOISE**2 * np.diag([1 / len(random_weights[p]) + 1 / len(full[p]) for p in both])
    odds = []
    for layouts, before in _LAYOUT.items():
        covariance = noise + shared(
            [Ranked(p, 0.0, candidates[p].configuration.layout, layouts) for p in both]
        )
        distance = (rank - score) @ np.linalg.solve(covariance, rank - score)
        odds.append(math.log(before) - (distance + np.linalg.slogdet(covariance)[1]) / 2)
    learned = float(np.average(list(_LAYOUT), weights=np.exp(np.array(odds) - max(odds))))
    if learned > BADLY[len(both) >= FEW]:
        return Screen(
            over=f"random weights rank badly: their effect on a layout varies by {100 * learned:.0f} %"
        )
    return Screen(learned)


class Ranked(NamedTuple):
    """One measured launch with random weights, its configuration's layout, and the `Screen.layouts`
    of the study."""

    position: int
    score: float
    layout: tuple[Scalar, ...]
    layouts: float


def shared(rows: Sequence[Ranked]) -> Floats:
    """Return the covariance of the effect of random weights on scores, shape ``(rows, rows)``."""

    def equal(values: Sequence[object]) -> Floats:
        return floats([[a == b for b in values] for a in values])

    remote_experts = np.array([1.0 - 1.0 / max(1.0, float(one.layout[-1] or 1)) for one in rows])
    return floats(
        _OVERALL**2
        + _EXPERTS**2 * np.outer(remote_experts, remote_experts)
        + _ENGINE**2 * equal([one.layout[0] for one in rows])
        + _OWN**2 * equal([one.position for one in rows])
        + rows[0].layouts ** 2 * equal([one.layout for one in rows])
    )


class Observations(NamedTuple):
    """The scores from which the model learns.

    Attributes:
        measured: candidate's position and score of each launch with real weights.
        ranked: launches with random weights, which only rank candidates.
    """

    measured: tuple[tuple[int, float], ...]
    ranked: tuple[Ranked, ...]

    @property
    def positions(self) -> list[int]:
        return [*(p for p, _ in self.measured), *(one.position for one in self.ranked)]

    @property
    def scores(self) -> list[float]:
        return [*(s for _, s in self.measured), *(one.score for one in self.ranked)]

    def extra_covariance(self, step: float) -> Floats:
        """Return the covariance in addition to the launch noise, shape ``(rows, rows)``: of a load
        search's `step`, and of random weights."""
        known = len(self.measured)
        extra = step**2 * np.eye(known + len(self.ranked))
        if self.ranked:
            extra[known:, known:] = shared(self.ranked)
        return floats(extra)


@dataclass(frozen=True)
class Screening:
    """The screening of one study: which launches get random weights, and their results.

    Attributes:
        engines: whose launches may have random weights.
        entries: launches with real weights.
        screened: launches with random weights.
    """

    engines: Collection[str]
    candidates: CandidateSet
    entries: Entries
    screened: Entries

    @cached_property
    def result(self) -> Screen:
        """Return the results so far; `Screen.over` if the study screens nothing."""
        if not self.engines:
            return Screen(over="not asked for")
        last = max((e.number for e in self.screened if e.measured), default=-1)
        later = (e.number for e in self.entries if e.measured and e.number > last)
        found = Screen()
        # Once screening has ended it stays ended.
        for number in (last, *later):
            known = [e for e in self.entries if e.number <= number]
            found = found if found.over else screen_of(self.candidates.items, known, self.screened)
        return found

    @property
    def ended(self) -> str:
        """Return why screening has ended after it had begun; else empty."""
        return self.result.over if self.screened else ""

    @property
    def useless(self) -> int:
        """Return the number of launches without a usable rank, which do not count for the budget."""
        return len(self.screened) if self.result.over else 0

    @property
    def reserve(self) -> int:
        """Return the number of launches to keep for `unchecked` candidates before the finals."""
        return RESERVE if self.result.trusted else 0

    @property
    def share(self) -> str:
        """Return in brackets how many launches had random weights; empty for none."""
        if not self.screened:
            return ""
        count = len(self.screened)
        which = f"and {count} more" if self.result.over else f"{count} of them"
        return f" ({which} with random weights)"

    @cached_property
    def ranked(self) -> tuple[Ranked, ...]:
        """Return the launches with random weights whose ranks the search uses."""
        return tuple(
            Ranked(e.position, e.score, self._layout(e.position), self.result.layouts)
            for e in self.screened
            if e.score is not None and self.result.trusted
        )

    @property
    def used(self) -> frozenset[int]:
        """Return the candidates that get no further launch with random weights."""
        running = (e.position for e in self.screened if e.pending)
        return frozenset((*running, *(one.position for one in self.ranked)))

    def role(self, position: int, usual: Role) -> Role:
        """Return the role of a candidate's launch in the search: to be screened, or the usual one."""
        return Role.RANDOM_WEIGHTS if self.result.trusted and self._may(position) else usual

    def unchecked(self, but: Collection[object] = ()) -> list[int]:
        """Return the candidates that were launched with random weights only: those of layouts that
        are not in `but`, if there are any."""
        new = [one for one in self.ranked if one.position not in self._full]
        new = [one for one in new if one.layout not in but] or new
        return [one.position for one in new]

    def next(
        self, challengers: Sequence[int], best: Callable[[list[int]], int]
    ) -> tuple[Role, int] | None:
        """Return role and candidate of the next launch that checks the ranking by random weights:
        the control, or the `best` screened candidate with its own weights."""
        base = self.candidates.baseline
        full = self._full
        random_weights = {e.position: e for e in self.screened}
        # A failure may come from the random weights: try the real ones.
        for position, entry in random_weights.items():
            if not (entry.pending or entry.measured or position in full):
                return Role.SEARCH, position
        if self.result.over or any(e.pending for e in (*self.entries, *self.screened)):
            return None
        if base not in random_weights and self._ran(base) and self._may(base):
            return Role.RANDOM_WEIGHTS, base
        # The layouts that had both kinds of launches, failed ones included.
        both = {self._layout(p) for p in random_weights if p in full}
        if not self.result.trusted:
            others = (p for p in challengers if self._may(p) and self._layout(p) not in both)
            return next(((Role.RANDOM_WEIGHTS, other) for other in others), None)
        last = max(e.number for e in self.entries)
        sure = self.result.layouts < KNOWN
        due = sum(e.number > last for e in self.screened) >= CHECKS[sure]
        unchecked = self.unchecked(() if sure else both) if due else []
        return (Role.SEARCH, best(unchecked)) if unchecked else None

    @cached_property
    def _full(self) -> Mapping[int, list[Entry]]:
        return by_position(self.entries)

    def _ran(self, position: int) -> bool:
        return any(e.measured for e in self._full.get(position, ()))

    def _layout(self, position: int) -> tuple[Scalar, ...]:
        return self.candidates.items[position].configuration.layout

    def _may(self, position: int) -> bool:
        """Return whether a candidate may have random weights: its engine supports them, and failed
        with them fewer than `FAILED` times."""
        failed = [
            self._layout(e.position)[0]
            for e in self.screened
            if not (e.pending or e.measured) and self._ran(e.position)
        ]
        engine = self._layout(position)[0]
        return engine in self.engines and failed.count(engine) < FAILED
