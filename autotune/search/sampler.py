"""Optuna samplers over the enumerated candidates: ours, and Optuna's own projected to what is valid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.search.acquisition import Observations, Suggestion, suggest
from autotune.search.process import Kernels, one_thread
from autotune.spec import Slo

_STARTS = "starts"

Criterion = Callable[[Kernels, Observations, int, int], Suggestion | None]
"""Given what is known, the seed and the trial's number: what to try."""


class CandidateSampler(BaseSampler):
    """A Gaussian process over enumerated candidates, for any Optuna study whose parameters are the candidates'.

    Trials may carry constraints (feasible <= 0): ``starts`` is that the configuration ran; the names of
    `slos` are compared on the scale of their metrics, any other on its own scale. The objective must be
    positive: it is modelled by its logarithm.

    Args:
        kernels: the candidates, and the prior.
        seed: ties are broken by it and the trial's number.
        slos: the limits behind constraints.
    """

    def __init__(self, kernels: Kernels, seed: int = 0, slos: Sequence[Slo] = ()) -> None:
        self._kernels, self._seed = kernels, seed
        self._slos = {str(slo): slo for slo in slos}
        self._fallback = RandomSampler(seed=seed)

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """All knobs at once."""
        encoding = self._kernels.encoding
        return {name: CategoricalDistribution(encoding.choices[name]) for name in encoding.names}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The parameters of the most promising candidate that was not tried; none when all were."""
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        found = self.propose(trials, study.direction is StudyDirection.MAXIMIZE, trial.number)
        return {} if found is None else self._kernels.encoding.params(found.position)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value: only for parameters that are no knob of the candidates."""
        return self._fallback.sample_independent(study, trial, param_name, param_distribution)

    def propose(
        self,
        trials: Sequence[FrozenTrial],
        maximise: bool,
        number: int,
        done_with: Set[int] = frozenset(),
        criterion: Criterion = suggest,
    ) -> Suggestion | None:
        """The most promising candidate after these trials, or None when all were tried.

        Args:
            done_with: candidates that are not to be tried, besides those that these trials have settled.
            criterion: what chooses among the candidates.
        """
        observations = self._observations(trials, maximise)
        with one_thread():
            spent = observations.spent | done_with
            return criterion(self._kernels, replace(observations, spent=spent), self._seed, number)

    def _observations(self, trials: Sequence[FrozenTrial], maximise: bool) -> Observations:
        placed = [(p, t) for t in trials if (p := self._kernels.encoding.position(t.params)) is not None]
        done = [(p, t) for p, t in placed if t.state is TrialState.COMPLETE and t.value is not None and t.value > 0]
        sign = 1.0 if maximise else -1.0
        slos: dict[str, list[tuple[int, float]]] = {}
        for position, trial in done:
            for name, violation in trial.constraints.items():
                slos.setdefault(name, []).append((position, violation))
        return Observations(
            measured=[(p, sign * math.log(t.value)) for p, t in done if t.value is not None],
            feasible=[all(c <= 0 for c in t.constraints.values()) for _, t in done],
            slos={name: self._scaled(name, points) for name, points in slos.items() if name != _STARTS},
            broken=[p for p, t in placed if t.state is TrialState.PRUNED],
            pending=[p for p, t in placed if t.state is TrialState.RUNNING],
            spent=_spent(placed),
        )

    def _scaled(self, name: str, points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """Violations as logarithms of metric over limit where that exists, else over their typical size."""
        slo = self._slos.get(name)
        if slo is not None and slo.limit > 0:
            sign = 1.0 if slo.sense == "<=" else -1.0
            ratios = [(p, 1 + sign * v / slo.limit) for p, v in points]
            if all(r > 0 for _, r in ratios):
                return [(p, sign * math.log(r)) for p, r in ratios]
        size = float(np.median([abs(v) for _, v in points])) or 1.0
        return [(p, v / size) for p, v in points]


def _spent(placed: Sequence[tuple[int, FrozenTrial]]) -> frozenset[int]:
    """What ran or failed, and what twice came back without saying anything."""
    mute = [p for p, t in placed if t.state is TrialState.FAIL]
    told = {p for p, t in placed if t.state in (TrialState.COMPLETE, TrialState.PRUNED)}
    return frozenset(told | {p for p in mute if mute.count(p) >= 2})


def propose_flat(
    name: str, trials: Sequence[FrozenTrial], kernels: Kernels, direction: StudyDirection, seed: int
) -> Mapping[str, Any]:
    """What one of Optuna's samplers would try, knob by knob: usually no candidate."""
    sampler = TPESampler(seed=seed) if name == "tpe" else RandomSampler(seed=seed)
    study = optuna.create_study(direction=direction, sampler=sampler)
    study.add_trials(trials)
    encoding = kernels.encoding
    trial = study.ask({n: CategoricalDistribution(encoding.choices[n]) for n in encoding.names})
    return trial.params
