"""`CandidateSampler`: our process behind Optuna's interface, for any single-objective study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import intersection_search_space
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.metrics.formulas import Slo
from autotune.search.acquisition import Observations, Suggestion, suggest
from autotune.search.discretised import Discretised
from autotune.search.gp.kernels import Kernels, one_thread
from autotune.search.observations import scaled

_STARTS = "starts"
_TYPICAL = 0.3
"""Standard deviation, in the process's units, that scores get which are no logarithms."""


class CandidateSampler(BaseSampler):
    """A Gaussian process over enumerated candidates.

    Trials may carry constraints (feasible <= 0): ``starts`` is that the configuration ran; the names of
    `slos` are compared on the scale of their metrics, any other on its own scale. Positive objectives are modelled by
    their logarithm, others by their standardised value.

    Args:
        kernels: the candidates, and the priors on them. None: the study's own search space, made discrete.
        seed: ties are broken by it and the trial's number.
        slos: the limits behind constraints.
    """

    def __init__(self, kernels: Kernels | None = None, seed: int = 0, slos: Sequence[Slo] = ()) -> None:
        self._kernels, self._seed = kernels, seed
        self._slos = {str(slo): slo for slo in slos}
        self._independent = RandomSampler(seed=seed)

    def reseed_rng(self) -> None:
        """Another stream for parameters that are sampled by themselves, as parallel workers need it."""
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self,
        study: optuna.Study,
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """All knobs at once; without candidates what all trials so far have had."""
        if self._kernels is None:
            space = intersection_search_space(study.get_trials(deepcopy=False))
            return {name: distribution for name, distribution in space.items() if not distribution.single()}
        encoding = self._kernels.encoding
        return {name: CategoricalDistribution(encoding.choices[name]) for name in encoding.names}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the most promising candidate that was not tried; none when all were.

        Raises:
            ValueError: the study has several objectives.
        """
        self._raise_error_if_multi_objective(study)
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        maximise = study.direction is StudyDirection.MAXIMIZE
        if self._kernels is not None:
            found = self.propose(trials, maximise, trial.number)
            return {} if found is None else self._kernels.encoding.params(found.position)
        if not search_space:
            return {}
        space = Discretised.of(search_space, [t.params for t in trials], [self._seed, trial.number])
        positions = [space.position(t.params) for t in trials]
        found = self._suggest(space.kernels, trials, positions, maximise, trial.number)
        return {} if found is None else space.params(found.position)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value: only for parameters that are no knob of the candidates, or before anything is known."""
        self._raise_error_if_multi_objective(study)
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def propose(self, trials: Sequence[FrozenTrial], maximise: bool, number: int) -> Suggestion | None:
        """The most promising candidate after these trials, or None when all were tried.

        Raises:
            ValueError: the sampler was made without candidates.
        """
        if self._kernels is None:
            raise ValueError("a sampler without candidates proposes parameters of a study, not candidates")
        positions = [self._kernels.encoding.position(t.params) for t in trials]
        return self._suggest(self._kernels, trials, positions, maximise, number)

    def _suggest(
        self,
        kernels: Kernels,
        trials: Sequence[FrozenTrial],
        positions: Sequence[int | None],
        maximise: bool,
        number: int,
    ) -> Suggestion | None:
        placed = [(p, t) for p, t in zip(positions, trials, strict=True) if p is not None]
        with one_thread():
            return suggest(kernels, self._observations(placed, maximise), self._seed, number)

    def _observations(self, placed: Sequence[tuple[int, FrozenTrial]], maximise: bool) -> Observations:
        done = [(p, t) for p, t in placed if t.state is TrialState.COMPLETE and _finite(t.value)]
        values = [t.value for _, t in done if t.value is not None]
        scores = _scores(values, maximise)
        slos: dict[str, list[tuple[int, float]]] = {}
        for position, trial in done:
            for name, violation in trial.constraints.items():
                slos.setdefault(name, []).append((position, violation))
        return Observations(
            measured=[(p, s) for (p, _), s in zip(done, scores, strict=True)],
            feasible=[all(c <= 0 for c in t.constraints.values()) for _, t in done],
            slos={name: scaled(self._slos.get(name), points) for name, points in slos.items() if name != _STARTS},
            broken=[p for p, t in placed if t.state is TrialState.PRUNED],
            pending=[p for p, t in placed if t.state is TrialState.RUNNING],
            spent=_spent(placed),
        )


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _scores(values: Sequence[float], maximise: bool) -> list[float]:
    sign = 1.0 if maximise else -1.0
    if all(value > 0 for value in values):
        return [sign * math.log(value) for value in values]
    spread = float(np.std(values)) or 1.0
    return [sign * _TYPICAL * value / spread for value in values]


def _spent(placed: Sequence[tuple[int, FrozenTrial]]) -> frozenset[int]:
    """What ran or failed, and what twice came back without saying anything."""
    mute = [p for p, t in placed if t.state is TrialState.FAIL]
    told = {p for p, t in placed if t.state in (TrialState.COMPLETE, TrialState.PRUNED)}
    return frozenset(told | {p for p in mute if mute.count(p) >= 2})
