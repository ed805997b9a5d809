"""Which configuration has won, and whether that can be told from the baseline.

Evidence is the launches of the finals, of the baseline also its first one: all were chosen before they
were measured. Measurements of the search decided who is a finalist, so they are biased upwards and do
not count. Gains are ratios of geometric means. Their intervals take the spread of one launch from all
finalists and the baseline together (noise is a property of the node) and are widened by Bonferroni for
the number of finalists, so that picking one of them does not overstate its gain. Of the finalists that
beat the baseline and cannot be told from the best one, the one with the fewest settings wins: a flag
that only rode on noise should not be recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.recommendation import Verdict
from autotune.search.estimate import Spread, mean
from autotune.search.history import History
from autotune.trial import Configuration, Role

MIN_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Gain:
    """A gain over the baseline in score units, with its 95 % interval (None: nothing was repeated)."""

    log: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome.

    Attributes:
        winner: position of the recommended configuration, None when nothing is feasible.
        gain: of the winner over the baseline; None without either.
        challenger: position of the best finalist other than the baseline, with its own gain.
        spread: of one launch.
        decided: whether there were launches enough to tell anything.
    """

    verdict: Verdict
    winner: int | None
    gain: Gain | None
    challenger: int | None
    challenger_gain: Gain | None
    spread: Spread
    comparisons: int
    decided: bool


def evidence(history: History, position: int) -> list[float]:
    """The scores of a configuration that count (see above); those of the search where there are no others."""
    baseline = history.canonical(position) == history.candidates.baseline
    roles = (Role.BASELINE, Role.FINAL) if baseline else (Role.FINAL,)
    return history.scores(position, *roles) or history.scores(position)


def finalists(history: History) -> list[int]:
    """The finalists other than the baseline, in order of appearance; before any finals all that were measured.

    A configuration launched only once in the finals was there to show a knob's contribution, unless nothing
    was launched twice.
    """
    finals = dict.fromkeys(e.position for e in history.of_role(Role.FINAL))
    finals.pop(history.candidates.baseline, None)
    repeated = [p for p in finals if len(history.scores(p, Role.FINAL)) >= MIN_REPEATS]
    measured = [p for p in finals if history.scores(p, Role.FINAL)]
    return repeated or measured or [p for p in history.by_position if p != history.candidates.baseline]


def judge(history: History) -> Judgement:
    """The verdict on what has been measured so far."""
    base = history.candidates.baseline
    contenders = finalists(history)
    feasible = [p for p in contenders if history.feasible(p, Role.FINAL)]
    groups = {p: evidence(history, p) for p in [*contenders, base]}
    spread = Spread.pooled(groups.values())
    comparisons = max(1, len(contenders) if history.of_role(Role.FINAL) else 1)
    best = max(feasible, key=lambda p: mean(groups[p]), default=None)
    ran = bool(groups[base])
    gain = _gain(groups[best], groups[base], spread, comparisons) if best is not None and ran else None
    # One launch of the finalist will do where the baseline was repeated: they share the spread of a launch.
    told = gain is not None and gain.interval is not None if ran else best is not None
    decided = told and bool(history.of_role(Role.FINAL))
    verdict, winner = _verdict(history, feasible, best, gain if decided else None, spread)
    if verdict is Verdict.BETTER:
        gains = {p: _gain(groups[p], groups[base], spread, comparisons) for p in feasible}
        winner = _simplest(history, [p for p in feasible if _certain(gains[p])], spread)
        own: Gain | None = gains[winner]
    else:
        own = gain if winner == best else Gain(0.0, None)
    return Judgement(
        verdict, winner, own if ran and winner is not None else None, best, gain, spread, comparisons, decided
    )


def _gain(mine: Sequence[float], baseline: Sequence[float], spread: Spread, comparisons: int) -> Gain:
    difference = mean(mine) - mean(baseline)
    half = spread.half_width((len(mine), len(baseline)), comparisons)
    return Gain(difference, None if half is None else (difference - half, difference + half))


def _certain(gain: Gain) -> bool:
    """Whether the whole interval lies above zero."""
    return gain.interval is not None and gain.interval[0] > 0


def _verdict(
    history: History, feasible: list[int], best: int | None, gain: Gain | None, spread: Spread
) -> tuple[Verdict, int | None]:
    base = history.candidates.baseline
    baseline_stands = history.feasible(base)
    if best is None:
        return (Verdict.INDISTINGUISHABLE, base) if baseline_stands else (Verdict.INFEASIBLE, None)
    if not history.scores(base):
        return Verdict.UNOPPOSED, best
    if gain is not None and _certain(gain):
        return Verdict.BETTER, best
    if not baseline_stands:
        # It breaks an SLO that the best keeps: it cannot be recommended however simple it is.
        return Verdict.INDISTINGUISHABLE, best
    # Undecided, only the best is worth comparing: among single measurements a bad but simple one would pass.
    return Verdict.INDISTINGUISHABLE, _simplest(history, [base, *(feasible if gain else [best])], spread, base)


def _simplest(history: History, equals: list[int], spread: Spread, kept: int | None = None) -> int:
    """Of those that cannot be told from the best the one with the fewest settings; the earlier one of equals.

    Args:
        kept: one of them that counts as close: a baseline that the caller could not tell from the best.
    """
    means = {p: mean(evidence(history, p)) for p in equals}
    best = max(equals, key=lambda p: means[p])

    def close(position: int) -> bool:
        counts = (len(evidence(history, position)), len(evidence(history, best)))
        half = spread.half_width(counts)
        return half is None or means[best] - means[position] <= half

    return min((p for p in equals if p == kept or close(p)), key=lambda p: settings(history, p))


def settings(history: History, position: int) -> int:
    """How many knobs differ from the engine's default, of the one of its twins that has fewest."""
    items, canonical = history.candidates.items, history.canonical(position)
    group = {position, *(p for p, counts_as in history.counts_as.items() if counts_as == canonical)}
    return min(settings_of(history, items[p].configuration) for p in group)


def settings_of(history: History, mine: Configuration) -> int:
    """How many of a configuration's knobs differ from its engine's default; from None where that is no candidate."""
    items = history.candidates.items
    named = (*history.candidates.defaults, history.candidates.baseline)
    default = next((items[p].configuration for p in named if items[p].configuration.engine == mine.engine), None)
    reference = default.knobs if default is not None else {}
    return sum(1 for name, value in mine.knobs.items() if value != reference.get(name))
