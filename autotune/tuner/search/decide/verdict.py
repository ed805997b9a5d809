"""Decide the winner, and whether it differs from the baseline.

One finalist was tested (`finals`), so no interval is widened for a choice among several. Where the
test crossed its upper bound the finalist is better; else it is indistinguishable from the baseline,
which is recommended: a change in production without a shown gain has a risk only. A shorter command
that its fresh launches do not show to be worse replaces the finalist (`simplify.drop_unproven`). A
configuration that breaks a promise is no challenger (`History.ineligible`).
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.base import Interval, frozen
from autotune.engines import CandidateSet, Configuration

from ...study.recommendation import Verdict
from ...study.spec import StudySpec
from ...trial import Launch
from ..history import History
from ..nodes import contrast
from ..objective import value_of
from ..spread import Spread, mean, percents
from . import finals, simplify
from .sequential_test import Look, Outcome, estimate, outcome


@frozen
class Gain:
    """Gain over the baseline in score units, with its 95 % interval (None: it was not tested)."""

    log: float
    interval: Interval | None

    @classmethod
    def within(cls, log: float, half: float | None) -> Gain:
        """Return a gain with half of its interval; None: not known."""
        return cls(log, None if half is None else (log - half, log + half))

    @property
    def percents(self) -> Interval | None:
        """Return the interval in percent."""
        return percents(self.interval) if self.interval else None


@frozen
class Judgement:
    """Outcome of the decision.

    Attributes:
        winner: position of the recommended configuration, None when nothing is feasible.
        gain: of the winner over the baseline; None without either.
        challenger: position of the finalist, before the finals of the leader, with its own gain.
        spread: of one launch.
        outcome: of the finals' test; None where there was none.
        change: of the baseline's score during the study, beyond noise; see `finals.change`.
    """

    verdict: Verdict
    winner: int | None
    gain: Gain | None
    challenger: int | None
    challenger_gain: Gain | None
    spread: Spread
    outcome: Outcome | None
    change: float | None


def evidence(history: History, position: int) -> list[float]:
    """Return the scores that count: those of the finals, all of the baseline; without finals, the
    search's."""
    return [e.score for e in history.deciding(position) if e.score is not None]


def leader(history: History) -> int | None:
    """Return the feasible candidate with the best mean score; None while there is none.

    Fresh launches replace those of the search, which may have been lucky: once a challenger has
    some, a candidate without any is compared no more.
    """
    kept = [position for position in history.by_position if history.feasible(position)]
    fresh = [p for p in kept if history.deciding_scores(p)]
    # The finals may begin with the baseline, which has not won by running alone.
    among = fresh if any(p != history.baseline for p in fresh) else kept
    return max(among, key=lambda position: mean(evidence(history, position)), default=None)


def best_so_far(spec: StudySpec, launches: Sequence[Launch]) -> list[tuple[int, float]]:
    """Return the number of each launch with an objective within the limits, and the leader's mean
    after it."""
    reached = list[tuple[int, float]]()
    if not launches:
        return reached
    history = History.from_launched_only(spec, launches)
    for count, entry in enumerate(history, start=1):
        before = history.upto(count)
        best = leader(before)
        if best is not None and entry.measured and history.within_limits([entry]):
            score = mean(evidence(before, best))
            reached.append((entry.number, value_of(spec.objective, score)))
    return reached


def judge(history: History) -> Judgement:
    """Return the verdict on the measurements so far."""
    history = history.adjusted()
    base = history.baseline
    challenger = finals.finalist(history)
    if challenger is None:
        # Judge limits by measured nodes only.
        challenger = max(
            history.challengers, key=lambda p: mean(evidence(history, p)), default=None
        )
    gain, ended = _tested(history, challenger) if challenger is not None else (None, None)
    verdict, winner = _verdict(history, challenger, gain, ended)
    own = gain if winner == challenger else Gain(0.0, None)
    if winner == challenger is not None and verdict in (Verdict.BETTER, Verdict.UNOPPOSED):
        winner = simplify.drop_unproven(history, challenger)
        if winner != challenger:
            own = _over_baseline(history, winner) if gain else None
    return Judgement(
        verdict,
        winner,
        own if winner is not None and history.scores(base) else None,
        challenger,
        gain,
        history.spread,
        ended,
        finals.change(history),
    )


def _tested(history: History, challenger: int) -> tuple[Gain | None, Outcome | None]:
    """Return the challenger's gain, and the end of its test."""
    base = history.baseline
    both = [history.deciding_scores(p) or history.node_scores(p) for p in (challenger, base)]
    if not both[1]:
        return None, None
    # The ratio of what stands in the tables; the median-unbiased estimate differs by less than a
    # tenth of the interval.
    gain, _ = contrast(*both)
    seen = finals.looks_at_end(history, challenger)
    if not seen:
        return Gain(gain, None), None
    _, (low, high) = estimate(tuple(seen))
    return Gain(gain, (min(low, gain), max(high, gain))), outcome(seen)[0]


def _over_baseline(history: History, position: int) -> Gain:
    """Return the gain of a configuration tested against another one that was tested against the
    baseline."""
    both = [history.deciding_scores(p) for p in (position, history.baseline)]
    (gain, information) = contrast(*both)
    spread = history.spread
    if not information:
        return Gain(gain, None)
    return Gain(gain, estimate((Look(1.0, information, gain, spread.sd, spread.degrees),))[1])


def _verdict(
    history: History, challenger: int | None, gain: Gain | None, ended: Outcome | None
) -> tuple[Verdict, int | None]:
    base = history.baseline
    stands = base if history.feasible(base) else None
    if challenger is None:
        return (Verdict.INFEASIBLE if stands is None else Verdict.INDISTINGUISHABLE), stands
    if gain is None:
        return Verdict.UNOPPOSED, challenger
    if ended is Outcome.BETTER:
        return Verdict.BETTER, challenger
    # A baseline that breaks an SLO cannot be recommended: the challenger keeps it.
    return Verdict.INDISTINGUISHABLE, challenger if stands is None else stands


def settings_of(candidates: CandidateSet, mine: Configuration) -> int:
    """Count the knobs that differ from the engine's default; from None if that is not a
    candidate."""
    default = simplify.default_knobs(candidates, mine.engine)
    return sum(value != default.get(name) for name, value in mine.knobs.items())
