"""Explain a study: what each knob adds, which had no effect, and what is predicted of untried candidates.

All of it comes from one posterior after all launches. A knob did nothing where the engine says so, or where its effect,
averaged over some of the launched configurations, lies within `LAUNCH_NOISE` of zero with 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autotune.arrays import descending
from autotune.search import equivalents
from autotune.search.acquisition import p_keeps_slos, p_runs, shortlist
from autotune.search.decide.estimate import LAUNCH_NOISE, Z, percent, percents
from autotune.search.decide.verdict import Judgement, default_of
from autotune.search.explain.attribution import ENGINE, contributions
from autotune.search.gp.kernels import Kernels
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.space.enumeration import Candidate
from autotune.study.recommendation import Explanation, NoEffect, Prediction
from autotune.trial import Command, Launch, Scalar, Trial

KnownNoEffects = Callable[[Trial], Sequence[NoEffect]]

BASES = 3
"""Launched configurations over which a knob's effect is averaged, the winner first."""
UNTRIED = 3
"""Candidates that are reported."""
LIKELY = 0.5
"""Odds of starting and keeping the limits below which a candidate is not worth telling of, while others are."""
_NAMED = 8
"""Launch numbers named in a sentence."""


def explain(
    history: History, launches: Sequence[Launch], model: Posterior, judgement: Judgement, no_effect_of: KnownNoEffects
) -> Explanation:
    """Contributions and knobs that did nothing; what is believed of untried candidates is `predictions`.

    Args:
        launches: those of the history.
    """
    winner = judgement.winner
    inert = [*no_effect_by_rule(history, launches, winner, no_effect_of), *no_effect_by_engine(history, launches)]
    if winner is None:
        return Explanation(inert=inert)
    inert += no_effect_by_data(history, model, winner, {row.knob for row in inert})
    rows = contributions(history, model, winner, judgement.spread)
    return Explanation(contributions=rows, inert=inert)


def no_effect_by_rule(
    history: History, launches: Sequence[Launch], winner: int | None, no_effect_of: KnownNoEffects
) -> list[NoEffect]:
    """What on the commands of winner and baseline, their equivalents included, is known to do nothing."""
    positions = {history.candidates.baseline, *([] if winner is None else [winner])}
    where = {entry.number: entry.position for entry in history}
    rows_of = [row.trial for row in launches if where[row.trial.number] in positions]
    trials = {trial.configuration.fingerprint: trial for trial in rows_of}
    rows = [row for trial in trials.values() for row in no_effect_of(trial)]
    return list({(row.knob, *row.values): row for row in rows}.values())


def no_effect_by_engine(history: History, launches: Sequence[Launch]) -> list[NoEffect]:
    """The knobs that did nothing by the engines' own word: set, and the engine ran with another value all the same."""
    candidates = history.candidates
    joined = equivalents.canonical_of(launches, candidates, candidates.items[candidates.baseline].fingerprint)
    rows: dict[str, NoEffect] = {}
    for found in equivalents.differences(launches, joined):
        if found.asked in (None, default_of(history, found.engine).get(found.knob)):
            continue
        numbers = ", ".join(map(str, found.launches[:_NAMED])) + (" …" if len(found.launches) > _NAMED else "")
        got = str(found.got).lower() if isinstance(found.got, bool) else found.got
        ran = "as without it" if got is None else f"with `{got}`"
        reason = f"the engine ran {ran} (launch{'es' if len(found.launches) > 1 else ''} {numbers})"
        earlier = rows.get(found.knob)
        values = [*(earlier.values if earlier else []), found.asked]
        count = len(found.launches) + (earlier.launches if earlier else 0)
        rows[found.knob] = NoEffect(
            knob=found.knob,
            values=list(dict.fromkeys(values)),
            reason=earlier.reason if earlier else reason,
            launches=count,
        )
    return list(rows.values())


def no_effect_by_data(history: History, model: Posterior, winner: int, but: set[str]) -> list[NoEffect]:
    """The knobs of the winner's engine that were launched at several values, and made no difference.

    Args:
        but: knobs to leave out.
    """
    items = history.candidates.items
    engine = items[winner].configuration.engine
    measured = np.array([p for p in history.by_position if history.scores(p)], dtype=np.int64)
    means = dict(zip(measured.tolist(), model.mean(measured).tolist(), strict=True))
    ran = [p for p in history.by_position if p in means and items[p].configuration.engine == engine]
    names = {name for p in ran for name in items[p].configuration.knobs} - but
    values = {n: dict.fromkeys(items[p].configuration.knobs.get(n) for p in [winner, *ran]) for n in sorted(names)}
    several = {n: list(found) for n, found in values.items() if len(found) > 1}
    bases = [winner, *sorted((p for p in ran if p != winner), key=lambda p: -means[p])][:BASES]
    rows = []
    for name, found in several.items():
        effect = _effect(history, model, bases, name, found)
        if effect is not None:
            rows.append(
                NoEffect(
                    knob=name,
                    values=found,
                    reason=f"its effect is below {percent(LAUNCH_NOISE):.0f} % with 95 %",
                    effect_percent=percent(effect[0]),
                    ci95=percents(effect[0], Z * effect[1]),
                    launches=sum(len(history.scores(p)) for p in ran),
                )
            )
    return rows


def predictions(
    history: History, model: Posterior, kernels: Kernels, winner: int, command_of: Callable[[Candidate], Command]
) -> list[Prediction]:
    """The untried candidates of which most is expected, of those that are likely to start and keep the limits."""
    rows = shortlist(kernels, model, history, (len(history),))
    if not len(rows):
        return []
    odds, keeps = p_runs(kernels, history, rows), p_keeps_slos(kernels, history, rows)
    likely = odds * keeps >= LIKELY
    allowed = likely if likely.any() else np.ones(len(rows), dtype=np.bool_)
    order = descending(np.where(allowed, model.mean(rows), -np.inf))
    places = [int(i) for i in order[:UNTRIED] if allowed[i]]
    best = [int(rows[i]) for i in places]
    mean, covariance = model.joint(np.array([winner, *best], dtype=np.int64))
    best_of = history.candidates.items[winner].configuration
    told = []
    for i, (place, position) in enumerate(zip(places, best, strict=True), start=1):
        gain, candidate = float(mean[i] - mean[0]), history.candidates.items[position]
        sd = math.sqrt(max(0.0, covariance[i, i] + covariance[0, 0] - 2 * covariance[0, i]))
        mine = candidate.configuration
        engine = {} if mine.engine == best_of.engine else {ENGINE: mine.engine}
        told.append(
            Prediction(
                engine=mine.engine,
                config=dict(mine.knobs),
                changes=engine | {k: value for k, value in mine.knobs.items() if best_of.knobs.get(k) != value},
                command=command_of(candidate).shell(),
                predicted_gain_percent=percent(gain),
                ci95=percents(gain, Z * sd),
                starts=float(odds[place]),
                keeps_slos=float(keeps[place]),
            )
        )
    return told


def _effect(
    history: History, model: Posterior, bases: list[int], name: str, values: list[Scalar]
) -> tuple[float, float] | None:
    """A knob's largest effect against the winner's value, mean and deviation, if no value's matters; else None."""
    usual, others = values[0], values[1:]
    effects = []
    for other in others:
        pairs = [pair for base in bases if (pair := _pair(history, base, name, usual, other)) is not None]
        if not pairs:
            return None
        effects.append(_mean_difference(model, pairs))
    mean, sd = max(effects, key=lambda effect: abs(effect[0]) + Z * effect[1])
    return (mean, sd) if abs(mean) + Z * sd <= LAUNCH_NOISE else None


def _pair(history: History, base: int, name: str, usual: Scalar, other: Scalar) -> tuple[int, int] | None:
    """A launched configuration with the one value of a knob and with the other, where both are candidates."""
    candidates = history.candidates
    configuration = candidates.items[base].configuration
    names = [configuration.with_knobs(**{name: value}).fingerprint for value in (usual, other)]
    if any(fingerprint not in candidates for fingerprint in names):
        return None
    one, two = (history.canonical(candidates.position(fingerprint)) for fingerprint in names)
    return one, two


def _mean_difference(model: Posterior, pairs: list[tuple[int, int]]) -> tuple[float, float]:
    """The second against the first, averaged over pairs: mean and standard deviation."""
    rows = sorted({position for pair in pairs for position in pair})
    weights = np.zeros(len(rows))
    for one, two in pairs:
        weights[rows.index(two)] += 1 / len(pairs)
        weights[rows.index(one)] -= 1 / len(pairs)
    mean, covariance = model.joint(np.array(rows, dtype=np.int64))
    return float(weights @ mean), math.sqrt(max(0.0, float(weights @ covariance @ weights)))
