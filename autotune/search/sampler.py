"""`CandidateSampler`: the sampler of a study, of valid candidates alone, none twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, create_trial

from autotune.errors import BadInput
from autotune.search.acquisition import Suggestion, suggest
from autotune.search.front import suggest_front
from autotune.search.gp.kernels import Kernels
from autotune.search.history import History

_OPTUNA: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed),
    "nsgaii": lambda seed: NSGAIISampler(seed=seed),
    "optuna-gp": lambda seed: GPSampler(seed=seed, deterministic_objective=False),
    "random": lambda seed: RandomSampler(seed=seed),
}


class CandidateSampler(BaseSampler):
    """Samples enumerated candidates: by our Gaussian process, or the ones nearest to what a sampler of Optuna's asks.

    The Gaussian process learns from the launches themselves (`suggest`), which tell more than the value that Optuna
    keeps of each; what Optuna asks for next is the candidate of the latest suggestion. Parameters that are no knobs of
    the candidates are drawn at random.

    Args:
        kernels: the candidates, and the priors on them.
        name: one of `autotune.search.SAMPLERS`.
        seed: with a trial's number it fixes every choice.

    Attributes:
        encoding: of the candidates.
        position: of the candidate that was suggested or sampled last; None where there was none.
    """

    def __init__(self, kernels: Kernels, name: str = "gp", seed: int = 0) -> None:
        self.encoding = kernels.encoding
        self._kernels, self._name, self._seed = kernels, name, seed
        self._independent = RandomSampler(seed=seed)
        self._free = np.ones(len(kernels.encoding), dtype=np.bool_)
        self.position: int | None = None

    def suggest(self, history: History) -> Suggestion | None:
        """Compute what is to be launched after a history: a function of its launches and the study's seed alone.

        Returns:
            None where nothing is left to try, or where a sampler of Optuna's chooses, which expects nothing.
        """
        self._free[:] = True
        self._free[list(history.done_with)] = False
        criterion = suggest if len(history.spec.goals) == 1 else suggest_front
        chosen = None
        if self._name == "gp" and not history.exhausted:
            chosen = criterion(self._kernels, history.adjusted(), len(history))
        self.position = chosen.position if chosen else None
        return chosen

    def reseed_rng(self) -> None:
        """Reseed what draws parameters that are no knobs, as parallel workers need it."""
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return all knobs, each with the values that candidates have."""
        values = self._kernels.encoding.values
        return {name: CategoricalDistribution(choices) for name, choices in values.items()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample the knobs of a candidate that was not tried, without those that it leaves unset.

        Raises:
            ValueError: the study has several objectives.
        """
        self._raise_error_if_multi_objective(study)
        if search_space.keys() - self._kernels.encoding.values.keys():
            return {n: self.sample_independent(study, trial, n, one) for n, one in search_space.items()}
        if self._name != "gp":
            self.position = self._kernels.encoding.nearest(self._proposal(study, trial), self._free)
        return {} if self.position is None else self._kernels.encoding.params(self.position)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a random value, of a parameter that is no knob of the candidates."""
        self._raise_error_if_multi_objective(study)
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _proposal(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """What a sampler of Optuna's would try next: usually no candidate.

        It samples a space that is the same for every trial, so that a knob that is left unset has the value None.
        """
        encoding = self._kernels.encoding
        space: dict[str, BaseDistribution] = {n: CategoricalDistribution(encoding.choices[n]) for n in encoding.names}
        seed = int(np.random.default_rng([self._seed, trial.number]).integers(2**31))
        flat = optuna.create_study(direction=study.direction, sampler=_OPTUNA[self._name](seed))
        for one in study.get_trials(deepcopy=False)[: trial.number]:
            if one.params:
                params = {name: one.params.get(name) for name in space}
                seen = create_trial(
                    state=one.state, value=one.value, constraints=one.constraints, params=params, distributions=space
                )
                flat.add_trial(seen)
        return flat.ask(space).params


def check_installed(name: str) -> None:
    """Raise `BadInput` where a sampler needs a package that is not there."""
    if name == "optuna-gp":
        try:
            import torch  # noqa: F401
        except ImportError:
            raise BadInput(
                "--sampler optuna-gp: Optuna's Gaussian process needs PyTorch; install it with `pip install torch`, "
                "or use --sampler gp, which is our own"
            ) from None
