"""Explain a study: contribution of each knob, knobs without effect, regret, and learned figures of
the node.

All of it comes from one posterior after all launches. A knob did nothing where a rule or the engine
itself says so.

A setting of the recommended command is put back to what the engine does by itself, all others stay;
where it cannot go alone, with the smallest group of settings that makes a candidate
(`simplify.ablations`). The engine cannot be put back alone either: it is compared with the best
command of the baseline's engine that ran. Settings overlap, so the rows need not multiply to the
gain. Differences come from fresh launches where both commands were repeated, else from the process
that models all launches: scores are logarithms, and the process gives the joint covariance of
winner and ablation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from pydantic import TypeAdapter
from scipy.special import stdtrit

from autotune.base import Json
from autotune.base.arrays import Ints, descending, ints
from autotune.engines import Entry, Scalar
from autotune.engines.entry import spaces_file

from ..study.recommendation import (
    LEAST_EFFECT,
    Contribution,
    Explanation,
    LearnedFigure,
    NoEffect,
    NotTried,
    Regret,
)
from ..trial import Launch, Trial
from . import equivalents
from .acquisition import expected_improvement, model_of, p_feasible, shortlist
from .decide.simplify import ablations, default_knobs
from .decide.verdict import Gain, Judgement
from .gp.kernels import Kernels
from .gp.posterior import THOROUGH, Posterior
from .history import History
from .nodes import contrast
from .spread import LAUNCH_NOISE, Effect, Spread, percent, percents

KnownNoEffects = Callable[[Trial], Sequence[NoEffect]]

LIKELY = 0.5
"""Least odds of starting and meeting the limits for a command launched to show a setting's gain."""
_NAMED = 8
"""Launch numbers named in a sentence."""


def explain(
    history: History,
    launches: Sequence[Launch],
    model: Posterior,
    judgement: Judgement,
    no_effect_of: KnownNoEffects,
) -> Explanation:
    """Compute contributions, and find the knobs that had no effect in the launches of the
    history."""
    winner = judgement.winner
    numbers = {entry.number for entry in history}
    launches = [launch for launch in launches if launch.number in numbers]
    inert = [
        *no_effect_by_rule(history, launches, winner, no_effect_of),
        *no_effect_by_engine(history, launches),
    ]
    if winner is None:
        return Explanation(inert=inert)
    rows = contributions(history, model, winner, judgement.spread, judgement.gain)
    return Explanation(contributions=rows, inert=inert)


def no_effect_by_rule(
    history: History, launches: Sequence[Launch], winner: int | None, no_effect_of: KnownNoEffects
) -> list[NoEffect]:
    """Return the settings in the commands of winner and baseline, with equivalents, without a known
    effect."""
    positions = {history.baseline, *([] if winner is None else [winner])}
    where = {entry.number: entry.position for entry in history}
    rows_of = [row.trial for row in launches if where[row.number] in positions]
    trials = {trial.configuration.fingerprint: trial for trial in rows_of}
    rows = [
        row.model_copy(update={"reason": f"{row.reason} ({trial.configuration.engine})"})
        for trial in trials.values()
        for row in no_effect_of(trial)
    ]
    return list({(row.knob, row.reason, *row.values): row for row in rows}.values())


def no_effect_by_engine(history: History, launches: Sequence[Launch]) -> list[NoEffect]:
    """Return the knobs without effect by the engines' reports: they ran with another value than
    set."""
    candidates = history.candidates
    joined = equivalents.canonical_of(
        launches, candidates, candidates.baseline_candidate.fingerprint
    )
    rows: dict[str, NoEffect] = {}
    for found in equivalents.differences(launches, joined):
        if found.asked in (None, default_knobs(candidates, found.engine).get(found.knob)):
            continue
        numbers = ", ".join(map(str, found.launches[:_NAMED])) + (
            " …" if len(found.launches) > _NAMED else ""
        )
        got = str(found.got).lower() if isinstance(found.got, bool) else found.got
        ran = "as without it" if got is None else f"with `{got}`"
        reason = f"the engine ran {ran} (launch{'es' if len(found.launches) > 1 else ''} {numbers})"
        row = NoEffect(
            knob=found.knob, values=[found.asked], reason=reason, launches=len(found.launches)
        )
        if earlier := rows.get(found.knob):
            values = list(dict.fromkeys([*earlier.values, found.asked]))
            row = earlier.model_copy(
                update={"values": values, "launches": earlier.launches + row.launches}
            )
        rows[found.knob] = row
    return list(rows.values())


ENGINE = "engine"
_FRESH = "fresh launches"
_REPEATED = 1.0
"""Information of `contrast` from which on new launches are sufficient: two of either command."""


def contributions(
    history: History, model: Posterior, winner: int, spread: Spread, gain: Gain | None = None
) -> list[Contribution]:
    """Return a row for each of the winner's settings, and for its engine if the baseline has
    another one.

    What is needed to start comes first, then the largest gain. The spread is that of one launch;
    the gain is that over the baseline.
    """
    base = history.baseline
    mine = history.configuration(winner)
    rows = []
    for position, names in ablations(history.candidates, winner).items():
        settings = sorted(names)
        without = history.configuration(position).knobs
        before = [without.get(name) for name in settings]
        after = [mine.knobs.get(name) for name in settings]
        rows.append(
            _row(history, model, (winner, position), spread, ("+".join(settings), before, after))
        )
    theirs = history.configuration(base).engine
    rival = None if theirs == mine.engine else _best_of_engine(history, model, theirs, winner)
    if rival is not None:
        row = _row(history, model, (winner, rival), spread, (ENGINE, [theirs], [mine.engine]))
        best = f"{theirs}'s best command without a further trade-off (launch {history.at(rival)[0].number})"
        on = f"against {'the baseline' if rival == base else best}: {row.measured_on}"
        if rival == base and gain is not None and row.measured_on.startswith(_FRESH):
            # One gain has one interval.
            row = row.model_copy(update={"gain_percent": percent(gain.log), "ci95": gain.percents})
        rows.append(row.model_copy(update={"measured_on": on}))
    return sorted(
        rows, key=lambda row: -math.inf if row.gain_percent is None else -row.gain_percent
    )


_Change = tuple[str, list[Scalar], list[Scalar]]
"""Difference of two commands, its values, and the winner's."""


def _row(
    history: History, model: Posterior, commands: tuple[int, int], spread: Spread, change: _Change
) -> Contribution:
    """Compare the winner with another command."""
    name, before, after = change
    cells = {"knob": name, "from_": _one(before), "to": _one(after)}
    other = history.at(commands[1])
    if failed := next((e for e in other if e.broke), None):
        kind = failed.cause.partition(":")[0] or "failed"
        on = f"launch {failed.number} without it: {kind}"
        return Contribution(
            **cells, gain_percent=None, ci95=None, needed_to="start", measured_on=on
        )
    found, on = _difference(history, model, commands, spread)
    breaks = any(e.measured for e in other) and not history.keeps_slos(commands[1])
    less = history.forbidden_trade_offs(commands[1]) - history.forbidden_trade_offs(commands[0])
    return Contribution(
        **cells,
        gain_percent=percent(found.mean),
        ci95=percents(found.interval),
        odds=found.odds(LEAST_EFFECT),
        needed_to="keep the limits" if breaks else "keep what it promises" if less else None,
        measured_on=on,
    )


def _difference(
    history: History, model: Posterior, commands: tuple[int, int], spread: Spread
) -> tuple[Effect, str]:
    """Return the lead of the first of two commands over the second, and where it was seen."""
    if history.canonical(commands[0]) == history.canonical(commands[1]):
        return Effect(np.ones(1), np.zeros(1), np.zeros(1)), "the engine runs both alike"
    fresh = [history.deciding_scores(p) for p in commands]
    if all(fresh):
        mean, information = contrast(*fresh)
        if information >= _REPEATED:
            on = f"{_FRESH} of both ({len(fresh[0])} and {len(fresh[1])})"
            return Effect.of_launches(mean, information, spread), on
    launched = len(history.scores(commands[1]))
    (found,) = model.leads(commands[0], commands[1:])
    return found, f"the model of all launches ({launched or 'none'} without it)"


def _best_of_engine(history: History, model: Posterior, engine: str, winner: int) -> int | None:
    """Return an engine's best command within limits and the winner's promises, else one that ran,
    else a failed one."""
    may = history.forbidden_trade_offs(winner)
    launched = [p for p in history.by_position if history.configuration(p).engine == engine]
    ran = [p for p in launched if history.scores(p) and not history.broke(p)]
    kept = [p for p in ran if history.feasible(p) and history.forbidden_trade_offs(p) <= may] or ran
    if not kept:
        return next((p for p in launched if history.broke(p)), None)
    return kept[int(model.mean(ints(kept)).argmax())]


def _one(values: list[Scalar]) -> Scalar:
    """Return one value unchanged, several as text."""
    return (
        values[0]
        if len(values) == 1
        else " + ".join("none" if v is None else str(v) for v in values)
    )


ODDS = 0.9
"""Odds stated with a regret."""
MOVED = 0.75
"""Share of its standard deviation by which a figure must move to be reported; also at least a tenth
of it."""
_LEAST_SHIFT = 0.1
_MOST_FIGURES = 5
_UNITS = {"us": "us", "ms": "ms", "share": "of the peak"}


class Learned(Entry, extra="ignore"):
    """A kind of evidence in ``search_spaces/regret.yaml``.

    Attributes:
        factor: of the regret on `left_to_gain`; None: not learned.
        studies: of known truth, behind the factor.
        launches: the fewest that one of these had.
    """

    factor: float | None
    studies: int
    launches: int


@cache
def learned() -> dict[str, Learned]:
    return TypeAdapter(dict[str, Learned]).validate_python(spaces_file("regret.yaml"))


def kind_of(history: History, kernels: Kernels) -> str:
    """Return the kind of a study's evidence: ``random weights`` (with a prior), ``prior`` or
    ``none``."""
    if len(kernels.alternatives) == 1:
        return "none"
    return "random weights" if history.observed.ranked else "prior"


def left_to_gain(history: History, model: Posterior, kernels: Kernels, winner: int) -> float:
    """Return the largest improvement on the winner that one launch is expected to bring, with
    priors or without; a logarithm."""
    tried = [
        position
        for position in history.by_position
        if position != winner and history.feasible(position)
    ]
    rows = shortlist(kernels, model, history, (history.spec.seed, len(history)))
    rows = np.concatenate([rows, ints(tried)])
    chance = p_feasible(kernels, history, rows)
    most = 0.0
    for one in (model, model.without_priors()):
        level = float(one.mean(ints([winner]))[0])
        worth = expected_improvement(one.predict(rows), level) * chance
        most = max(most, float(worth.max(initial=0.0)))
    return most


def regret(history: History, model: Posterior, kernels: Kernels, winner: int) -> Regret | None:
    """Return how much better another candidate may be than the winner, with the odds that none is
    better by more; None where no studies of known truth teach it.

    It goes with what one more launch is expected to bring; the model's own quantiles of
    the best of thousands of candidates are several times what is left. The factor is learned for
    each kind of evidence (``benchmarks/tuner/regret.py``), at the usual spread of a launch. Goals
    with limits, with two metrics or of a load search are not among what it is learned on.
    """
    spec, known = history.spec, learned().get(kind_of(history, kernels))
    other_goal = spec.with_goodput_floor.slos or len(spec.goals) > 1
    if known is None or known.factor is None or other_goal or len(history) < known.launches:
        return None
    left = known.factor * left_to_gain(history, model, kernels, winner)
    spread = history.spread
    unusual = max(0.0, spread.sd**2 - LAUNCH_NOISE**2) / max(1, len(history.deciding(winner)))
    level_off = float(stdtrit(spread.degrees, ODDS)) * math.sqrt(unusual)
    return Regret(
        percent=percent(math.hypot(left, level_off)),
        odds=ODDS,
        learned_on=f"{known.studies} simulated studies whose best is known",
    )


def not_tried(history: History, model: Posterior, kernels: Kernels, winner: int) -> list[NotTried]:
    """Return the values that no launch of the winner's engine had, each with the gain expected of
    the nearest command that has it, the largest first."""
    encoding, codes = kernels.encoding, kernels.encoding.codes
    mine = codes[:, 0] == codes[winner, 0]
    launched = codes[ints([*history.by_position, *history.observed.positions])]
    launched = launched[launched[:, 0] == codes[winner, 0]]
    changes = (codes != codes[winner]).sum(axis=1)
    free = mine & history.searchable
    nearest: dict[tuple[str, Scalar], Ints] = {}
    for column in encoding.varying:
        name = encoding.names[column]
        for code in sorted({*codes[free, column].tolist()} - {*launched[:, column].tolist()}):
            has = np.flatnonzero(free & (codes[:, column] == code))
            key = name, encoding.choices[name][code]
            nearest[key] = has[changes[has] == changes[has].min()]
    if not nearest:
        return []
    rows = np.unique(np.concatenate([*nearest.values()]))
    level = float(model.mean(ints([winner]))[0])
    worth = expected_improvement(model.predict(rows), level) * p_feasible(kernels, history, rows)
    found = [
        NotTried(
            knob=knob,
            value=value,
            expected_percent=percent(float(worth[np.searchsorted(rows, own)].max())),
        )
        for (knob, value), own in nearest.items()
    ]
    return sorted(found, key=lambda one: -one.expected_percent)


def search_gain(history: History, kernels: Kernels, winner: int) -> Json:
    """Return fields of an `Explanation`: the winner's gain as estimated by the search before its
    finals.

    By the model, in which lucky launches are shrunk, and which knows of a command that only the
    finals launched.
    """
    before = history.before_finals()
    base = history.baseline
    if winner == base or len(before) == len(history) or not before.scores(base):
        return {}
    (gain,) = model_of(kernels, before, THOROUGH).leads(winner, [base])
    return {"search_gain_percent": percent(gain.mean), "search_gain_ci95": percents(gain.interval)}


def learned_figures(model: Posterior, kernels: Kernels) -> list[LearnedFigure]:
    """Return the figures changed by the launches, of the source with most support, the largest
    change first."""
    which = int(model.belief.argmax())
    figures = kernels.figures[which]
    if not figures:
        return []
    shift, before, after = model.figures(which, np.array([one.logs for one in figures]))
    moved = np.abs(shift) / np.maximum(before, 1e-12)
    shown = (moved >= MOVED) & (np.abs(shift) >= _LEAST_SHIFT) & (after < before)
    rows = [(figures[i], float(shift[i])) for i in descending(moved) if shown[i]]
    found: dict[tuple[str, str | None], LearnedFigure] = {}
    for one, by in rows:
        same = [other for other in figures if other.name == one.name]
        alike = len(same) > 1 and all(
            math.isclose(other.value, one.value)
            and any(o is other and abs(s - by) < _LEAST_SHIFT for o, s in rows)
            for other in same
        )
        engine = None if alike else one.engine
        was, now = (float(f"{value:.3g}") for value in (one.value, one.value * math.exp(by)))
        unit = _UNITS.get(one.name.rpartition("_")[2], "")
        row = LearnedFigure(figure=one.name, engine=engine, from_=was, to=now, unit=unit)
        found.setdefault((one.name, engine), row)
    return list(found.values())[:_MOST_FIGURES]
