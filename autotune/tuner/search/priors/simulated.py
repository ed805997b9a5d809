"""Compute priors by the simulator's fast prediction, with coefficients fitted to measurements and
with nothing fitted.

The simulator's uncertain figures are drawn from their distributions, and each draw predicts all
candidates. The covariance of these predictions is that of the candidates' errors: candidates that
exchange tokens over the same links have a common error if the links are slower than assumed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from packaging.version import InvalidVersion

from autotune.base import BadInput
from autotune.base.arrays import Floats
from autotune.engines import Candidate, Configuration, engine
from autotune.engines.entry import spaces_file
from autotune.engines.schema import PublishedEffect, holding
from autotune.load.metrics.table import DERIVED, GOODPUT, HEADLINE, METRICS, PER_USER
from autotune.load.workloads import Workload, load_workload
from autotune.node.calibration import (
    Calibration,
    Factor,
    ServerSetup,
    calibration_of,
    composed,
    drawn_factors,
    factors_of,
    groups_of,
    nothing_learned,
    packaged_physics,
)
from autotune.node.steady import Limits, SteadyNode, SteadyPrediction
from autotune.node.unread import with_unread

from ...prepare.candidates import Prepared
from ...replay.table import VERSION
from ...study.spec import StudySpec
from ..gp.kernels import Prior, UnsureFigure
from ..objective import score_of, weights
from ..reach import times

DRAWS = 32
SHARE_ELSEWHERE = 0.5
"""Mean of the share of a published effect, a logarithm, that holds on another node, model or load,
and its standard deviation."""
MOST_DRAWN = 200_000
"""Largest number of candidates with draws, those with the best means: 32 draws of them are 51 MB.
The others get the median draw."""
_EFFECT_ERRORS: Mapping[str, float] = {
    knob: kind["sd"]
    for kind in spaces_file("effect_errors.yaml").values()
    for knob in kind["knobs"]
}
"""Standard deviation of the error of a knob's predicted effect on real servers, a logarithm."""
_SEED = 20
"""Seed of the draws, the same in every study."""


Groups = dict[str, str]
"""Group of each of an engine's figures (`groups_of`)."""


def _groups_of_engines(candidates: Sequence[Candidate], spec: StudySpec) -> dict[str, Groups]:
    """Return the groups of the figures of each engine of the candidates (`groups_of`)."""
    versions = {one.configuration.engine: one.engine_version for one in candidates}
    engines: dict[str, Groups] = {}
    for name in sorted(versions):
        # An engine or a model without speed figures, or an unknown version, is not predicted.
        with suppress(BadInput, InvalidVersion):
            node = spec.model.assumed, spec.hardware, spec.gpus
            setup = ServerSetup(name, versions[name], {}, *node)
            engines[name] = groups_of(setup)
    return engines


def _figures(
    calibration: Calibration, engines: Mapping[str, Groups], offsets: Mapping[Factor, Floats]
) -> tuple[UnsureFigure, ...]:
    """Return each engine's figures, and the additions of the draws to their logarithms."""
    physics = packaged_physics()
    found = []
    for owner, groups in engines.items():
        own = list(factors_of(physics, groups))
        for name, value in composed(physics, calibration, groups).items():
            rows = [offsets[which] for which in own if which.figure == name]
            if rows:
                found.append(UnsureFigure(name, owner, value, sum(rows[1:], rows[0])))
    return tuple(found)


_LATENCIES = ("tpot", "ttft", "e2el")

Shares = Sequence[tuple[Workload, float]]
"""The objective's workloads, each with its share of it."""
Setups = Sequence[Candidate | None]
"""All candidates, in their order, with every knob of their engine; None: not predictable."""


def physical(prepared: Prepared) -> list[Prior]:
    """Return the prior of the calibrated simulator, where trials are measured, and of physics with
    nothing fitted.

    Where trials are simulated, the calibrated simulator is the truth and gives no prior
    (``docs/decisions/0003``). A model of an unknown architecture is predicted as a plain decoder of
    its size. A workload without a known name, e.g. of a replayed table, has no prior.
    """
    spec = prepared.spec
    try:
        loads = [
            (load_workload(name, prepared.library), share) for name, share in weights(spec).items()
        ]
    except BadInput:
        return []
    setups = [_setup(prepared, candidate) for candidate in prepared.candidates.items]
    if not any(setups):
        return []
    measured = not prepared.backend.predicted and spec.hardware.vendor != "cpu"
    sources = {"the simulator": calibration_of(prepared.library)} if measured else {}
    priors = (
        _prior(prepared, *source, setups, loads)
        for source in {**sources, "physics": nothing_learned()}.items()
    )
    return [prior for prior in priors if prior is not None]


def _setup(prepared: Prepared, candidate: Candidate) -> Candidate | None:
    """Return a candidate with all its engine's knobs; None for a replayed row with values that the
    engine's card does not know."""
    spec = prepared.spec
    configuration = candidate.configuration
    if not prepared.backend.recorded:
        return candidate
    try:
        kind = engine(configuration.engine, prepared.library)
    except BadInput:
        return None
    row = kind.card.in_own_words(configuration.knobs)
    version = kind.known_version(candidate.engine_version)
    row.pop(VERSION, None)
    if not row or any(
        name not in kind.card.knobs or kind.card.knobs[name].refuses(row[name]) for name in row
    ):
        return None
    context = spec.context(version or kind.version()).as_read(kind.card)
    return Candidate(Configuration(kind.name, kind.default_knobs(context, row)), context.version)


def _prior(
    prepared: Prepared, name: str, calibration: Calibration, setups: Setups, loads: Shares
) -> Prior | None:
    """Return a calibration's prediction, and that of draws of its figures; None without one."""
    spec = prepared.spec
    limits = Limits(
        capacity=() if spec.load.fixed else spec.slos,
        request=spec.request_limits if spec.objective == GOODPUT else None,
    )
    engines = _groups_of_engines([one for one in setups if one is not None], spec)
    # One draw of a factor for all engines that share it.
    offsets = drawn_factors(calibration, engines.values(), DRAWS, _SEED)
    more = calibration, offsets, limits
    # An engine's options may change the model.
    models = {one.configuration.engine: spec.model for one in setups if one is not None}
    models |= {
        name: space.context.model for name, space in prepared.spaces.items() if name in models
    }
    nodes = [
        {
            name: SteadyNode(model.assumed, spec.hardware, spec.gpus, load, *more)
            for name, model in models.items()
        }
        for load, _ in loads
    ]
    predicted = [
        [_predicted(node[one.configuration.engine], one) if one else None for one in setups]
        for node in nodes
    ]
    mean = _means(spec, predicted, setups, loads)
    if not np.isfinite(mean).any():
        return None
    rows = list(zip(*predicted, strict=True))
    draws = _drawn(spec, predicted, loads, mean)
    figures = _figures(calibration, engines, offsets)
    guessed = prepared.backend.predicted or _latency(spec.objective)
    published = {} if guessed else _published(prepared, setups)
    for (owner, knob, effect), where in published.items():
        log = SHARE_ELSEWHERE * math.log(effect.ratio)
        said = f"{knob} ×{effect.ratio:g} ({owner}, {effect.load}; {effect.source})"
        # An effect's draws do not depend on the other effects.
        random = np.random.default_rng([_SEED, zlib.crc32(said.encode())])
        logs = log * random.standard_normal(DRAWS)
        mean = mean + log * where
        draws = draws + (log + logs)[:, None] * where
        figure = UnsureFigure(f"effect of {knob}", owner, math.exp(log), logs, said)
        figures = (*figures, figure)
    return Prior(
        name,
        mean,
        p_starts=np.array([min((one.starts for one in row if one), default=1.0) for row in rows]),
        doubts=tuple(next((one.doubt for one in row if one and one.doubt), "") for row in rows),
        launch_s=np.array([_launch_s(row) for row in rows]),
        draws=draws,
        figures=figures,
        limit_ratios=_limit_ratios(spec, predicted[0], setups)
        if spec.load.fixed and len(loads) == 1
        else None,
        effect_errors={} if prepared.backend.predicted else _EFFECT_ERRORS,
    )


def _published(
    prepared: Prepared, setups: Setups
) -> dict[tuple[str, str, PublishedEffect], Floats]:
    """Return each published effect of a knob that the simulator does not read, with an indicator of
    the setups that have it, shape ``(setups,)``."""
    found: dict[tuple[str, str, PublishedEffect], Floats] = {}
    for name, space in prepared.spaces.items():
        unread = with_unread(space, [space.effective({})]).unread
        knobs = [(k, one) for k, one in space.card.knobs.items() if one.published and k in unread]
        for place, setup in enumerate(setups if knobs else ()):
            if setup is None or setup.configuration.engine != name:
                continue
            scope = space.context.scope(setup.configuration.knobs)
            for knob, about in knobs:
                for effect in holding(about.published, scope, space.context.version)[:1]:
                    found.setdefault((name, knob, effect), np.zeros(len(setups)))[place] = 1.0
    return found


def _limit_ratios(
    spec: StudySpec, predicted: Sequence[SteadyPrediction | None], setups: Setups
) -> Floats | None:
    """Return ln(metric / limit) of each limited metric, shape ``(SLOs, setups)``; NaN: unknown."""
    pairs = list(zip(predicted, setups, strict=True))
    rows = [
        [times(slo, _value(spec, slo.metric, *pair)) for pair in pairs]
        for slo in spec.with_goodput_floor.slos
    ]
    return np.log(np.maximum(rows, 1e-9)) if rows else None


def _drawn(
    spec: StudySpec,
    predicted: Sequence[Sequence[SteadyPrediction | None]],
    loads: Shares,
    mean: Floats,
) -> Floats:
    """Return the prediction for every setup with each draw of the figures, shape ``(draws,
    setups)``.

    NaN without a prediction, and of all but the `MOST_DRAWN` best. The draws of a latency's quantiles are
    those of its mean, and of every other metric those of the total throughput.
    """
    order = np.argsort(np.where(np.isfinite(mean), -mean, np.inf), kind="stable")
    places = [place for place in order[:MOST_DRAWN].tolist() if np.isfinite(mean[place])]
    latency = _latency(spec.objective)
    name, sign = (HEADLINE, 1.0) if latency is None else (f"mean_{latency}_ms", -1.0)
    drawn = np.full((DRAWS, len(mean)), np.nan)
    drawn[:, places] = 0.0
    unknown = np.full(DRAWS, np.nan)
    for column, (_, share) in zip(predicted, loads, strict=True):
        ones = (column[place] for place in places)
        rows = [unknown if one is None else one.drawn.get(name, unknown) for one in ones]
        drawn[:, places] += share * sign * np.reshape(rows, (-1, DRAWS)).T
    return drawn


def _means(
    spec: StudySpec,
    predicted: Sequence[Sequence[SteadyPrediction | None]],
    setups: Setups,
    loads: Shares,
) -> Floats:
    """Return the logarithm of the objective, more is better, shape ``(setups,)``; NaN without a
    prediction."""
    metric = METRICS[spec.objective].predicted_as or spec.objective
    mean = np.zeros(len(predicted[0]))
    for column, (_, share) in zip(predicted, loads, strict=True):
        values = (
            _value(spec, metric, one, setup) for one, setup in zip(column, setups, strict=True)
        )
        mean += [
            math.nan if (score := score_of(metric, value)) is None else share * score
            for value in values
        ]
    return mean


def _value(
    spec: StudySpec, metric: str, one: SteadyPrediction | None, setup: Candidate | None
) -> float:
    """Return a predicted metric; NaN without a prediction."""
    if one is None or setup is None:
        return math.nan
    if metric not in DERIVED:
        return one.metrics.get(metric, math.nan)
    return float(spec.derived(one.metrics, setup.configuration).get(metric, math.nan))


def _latency(metric: str) -> str | None:
    """Return the metric as a latency; None for a throughput or a cost per token."""
    return (
        "tpot"
        if metric == PER_USER
        else next((name for name in _LATENCIES if f"_{name}_" in metric), None)
    )


def _launch_s(row: Sequence[SteadyPrediction | None]) -> float:
    """Return the seconds of a launch: its start and its loads; NaN: not predicted."""
    known = [one for one in row if one is not None]
    durations = [one.metrics.get("duration", math.nan) for one in known]
    return known[0].startup_s + sum(durations) if len(known) == len(row) else math.nan


def _predicted(node: SteadyNode, setup: Candidate) -> SteadyPrediction | None:
    try:
        return node.predict(
            setup.configuration.engine, setup.engine_version, setup.configuration.knobs
        )
    except (BadInput, ArithmeticError, ValueError, TypeError):
        # An engine without figures, or a row of impossible values.
        return None
