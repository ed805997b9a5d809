"""What each setting adds to a command: the command against the same one without it.

A setting is put back to what the engine does by itself, all others stay; where it cannot go alone, with the smallest
group of settings that makes a candidate (`simplify.ablations`). The engine cannot be put back alone either: it is
compared with the best command of the baseline's engine that ran. Settings overlap, so the rows need not multiply to
the gain.

Differences come from fresh launches where both commands were repeated, else from the process that models all launches:
scores are logarithms, and the process gives the joint covariance of winner and ablation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from autotune.arrays import descending
from autotune.search.decide import promises
from autotune.search.decide.estimate import CONFIDENCE, LAUNCH_NOISE, Spread, Z, percent, percents
from autotune.search.decide.simplify import LEAST_EFFECT, ablations, own_default
from autotune.search.decide.verdict import roles_of
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.search.nodes import contrast
from autotune.study.recommendation import Contribution
from autotune.trial import Scalar

ENGINE = "engine"
LEAST_NARROWING = 0.005
"""The least by which a launch must narrow a standard deviation to be worth making: half a percent."""
LEAST_DEGREES = 3
"""Of freedom: what the posterior is taken to know of the noise where nothing was repeated."""
_REPEATED = 1.0
"""Information of `contrast` from which on fresh launches speak for themselves: two of either command."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """What a command has over another one, score units.

    Attributes:
        half: of the 95 % interval.
        odds: that it is more than `LEAST_EFFECT`.
        measured_on: what tells it.
    """

    mean: float
    half: float
    odds: float
    measured_on: str


def ablated(history: History, winner: int) -> dict[int, frozenset[str]]:
    """Position to the settings put back there, for each in which a command differs from its engine's default."""
    return ablations(history.candidates, winner, own_default(history.candidates, winner))


def contributions(history: History, model: Posterior, winner: int, spread: Spread) -> list[Contribution]:
    """A row for each of the winner's settings, and for its engine where the baseline has another one.

    What is needed to start comes first, then the largest gain.

    Args:
        spread: of one launch.
    """
    items, base = history.candidates.items, history.candidates.baseline
    mine = items[winner].configuration
    rows = []
    for position, names in ablated(history, winner).items():
        settings, without = sorted(names), items[position].configuration.knobs
        before, after = [without.get(name) for name in settings], [mine.knobs.get(name) for name in settings]
        rows.append(_row(history, model, (winner, position), spread, ("+".join(settings), before, after)))
    theirs = items[base].configuration.engine
    rival = None if theirs == mine.engine else _best_of_engine(history, model, theirs, winner)
    if rival is not None:
        row = _row(history, model, (winner, rival), spread, (ENGINE, [theirs], [mine.engine]))
        best = f"{theirs}'s best command (launch {history.at(rival)[0].number})"
        on = f"against {'the baseline' if rival == base else best}: {row.measured_on}"
        rows.append(row.model_copy(update={"measured_on": on}))
    return sorted(rows, key=lambda row: -math.inf if row.gain_percent is None else -row.gain_percent)


def most_telling(history: History, model: Posterior, winner: int, spread: float) -> int | None:
    """The winner without a setting whose fresh launch narrows the rows' intervals most, or None.

    Only the settings that may matter count: those whose interval reaches beyond `LAUNCH_NOISE`. None when no launch
    would narrow them by anything to speak of.

    Args:
        spread: standard deviation of one launch.
    """
    rows = [p for p in ablated(history, winner) if not history.broke(p)]
    if not rows:
        return None
    mean, covariance = model.joint(np.array([winner, *rows], dtype=np.int64))
    shared = covariance[0] - covariance[1:]  # Of each row's difference with each command's score.
    widths = np.sqrt(np.maximum(shared[:, 0] - np.diag(shared[:, 1:]), 0.0))
    matters = np.abs(mean[0] - mean[1:]) + Z * widths > LAUNCH_NOISE
    narrowing = shared**2 / (np.diag(covariance) + spread**2)
    worth = narrowing[matters].sum(axis=0)[1:]
    worth[[history.spent(p) for p in rows]] = 0.0
    best = int(descending(worth)[0])
    return rows[best] if math.sqrt(worth[best]) > LEAST_NARROWING else None


def _row(
    history: History,
    model: Posterior,
    commands: tuple[int, int],
    spread: Spread,
    change: tuple[str, list[Scalar], list[Scalar]],
) -> Contribution:
    """One row.

    Args:
        commands: positions of the winner and of what it is compared with.
        change: what differs, its values there, and the winner's.
    """
    name, before, after = change
    cells = {"knob": name, "from_": _one(before), "to": _one(after)}
    other = history.at(commands[1])
    if failed := next((e for e in other if e.broke), None):
        kind = failed.cause.partition(":")[0] or "failed"
        on = f"launch {failed.number} without it: {kind}"
        return Contribution(**cells, gain_percent=None, ci95=None, needed_to="start", measured_on=on)
    found = _difference(history, model, commands, spread)
    breaks = any(e.measured for e in other) and not history.keeps_slos(commands[1])
    return Contribution(
        **cells,
        gain_percent=percent(found.mean),
        ci95=percents(found.mean, found.half),
        odds=found.odds,
        needed_to="keep the limits" if breaks else None,
        measured_on=found.measured_on,
    )


def _difference(history: History, model: Posterior, commands: tuple[int, int], spread: Spread) -> _Difference:
    """What the first of two commands has over the second."""
    if history.canonical(commands[0]) == history.canonical(commands[1]):
        return _Difference(0.0, 0.0, 0.0, "the engine runs both alike")
    fresh = [history.node_scores(p, *roles_of(history, p)) for p in commands]
    if all(fresh):
        mean, information = contrast(*fresh)
        half = spread.half_width([information])
        if information >= _REPEATED and half is not None:
            shown = (mean - LEAST_EFFECT) * math.sqrt(information) / max(spread.sd, 1e-9)
            on = f"fresh launches of both ({len(fresh[0])} and {len(fresh[1])})"
            return _Difference(mean, half, float(stdtr(spread.degrees, shown)), on)
    means, covariance = model.joint(np.array(commands, dtype=np.int64))
    mean = float(means[0] - means[1])
    sd = math.sqrt(max(0.0, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]))
    wide = float(stdtrit(max(spread.degrees, LEAST_DEGREES), (1 + CONFIDENCE) / 2))
    launched = len(history.scores(commands[1]))
    on = f"the model of all launches ({launched or 'none'} without it)"
    # The odds are those by which settings leave the command (`simplify.odds_shown`).
    return _Difference(mean, wide * sd, float(ndtr((mean - LEAST_EFFECT) / max(sd, 1e-9))), on)


def _best_of_engine(history: History, model: Posterior, engine: str, winner: int) -> int | None:
    """The best that ran of an engine, kept the limits and breaks no promise that the winner keeps.

    Where there is none the best that ran, else what failed.
    """
    items, may = history.candidates.items, promises.broken(history, winner)
    launched = [p for p in history.by_position if items[p].configuration.engine == engine]
    ran = [p for p in launched if history.scores(p) and not history.broke(p)]
    kept = [p for p in ran if history.feasible(p) and promises.broken(history, p) <= may] or ran
    if not kept:
        return next((p for p in launched if history.broke(p)), None)
    return kept[int(model.mean(np.array(kept, dtype=np.int64)).argmax())]


def _one(values: list[Scalar]) -> Scalar:
    """One value as it is, several as text."""
    return values[0] if len(values) == 1 else " + ".join("none" if v is None else str(v) for v in values)
