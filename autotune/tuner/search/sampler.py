"""`CandidateSampler`: suggest candidates, each once, by our Gaussian process or Optuna's samplers."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.base import BadInput, FloatDict, FloatMap, frozen
from autotune.engines import Scalar

from .acquisition import Suggestion, suggest
from .entry import Entry
from .front import suggest_front
from .gp.kernels import Kernels
from .history import History

STARTS = "starts"
"""Constraint that a failed trial violates, by which Optuna's samplers learn from it."""

_OPTUNA: Mapping[str, Callable[..., BaseSampler]] = {
    "tpe": TPESampler,
    "nsgaii": NSGAIISampler,
    "optuna-gp": partial(GPSampler, deterministic_objective=False),
    "random": RandomSampler,
}


@frozen
class CandidateSampler:
    """Suggest enumerated candidates: by our Gaussian process, or the nearest one to the suggestion
    of an Optuna sampler.

    Attributes:
        kernels: the candidates, and the priors on them.
        name: one of `autotune.tuner.search.SAMPLERS`.
        seed: with the number of launches it fixes every choice of Optuna's samplers.
    """

    kernels: Kernels
    name: str = "gp"
    seed: int = 0

    def suggest(self, history: History) -> Suggestion | None:
        """Return the next candidate, a pure function of the history; None if none remains."""
        if history.exhausted:
            return None
        if self.name == "gp":
            criterion = suggest if len(history.spec.goals) == 1 else suggest_front
            return criterion(self.kernels, history.adjusted(), len(history))
        encoding = self.kernels.encoding
        # Give every trial the same space: a knob that is not set has the value None.
        space: dict[str, BaseDistribution] = {
            n: CategoricalDistribution(encoding.choices[n]) for n in encoding.names
        }
        seed = int(np.random.default_rng([self.seed, len(history)]).integers(2**31))
        study = optuna.create_study(direction="maximize", sampler=_OPTUNA[self.name](seed=seed))
        scored = [entry for entry in history if entry.measured]
        worst = min(scored, key=lambda entry: entry.score or 0.0, default=None)
        for entry in history:
            params = {name: encoding.params(entry.position).get(name) for name in space}
            # GPSampler learns from COMPLETE trials alone: a failure counts as the worst launch.
            outcome = worst if worst and entry.broke else entry
            study.add_trial(_trial(outcome, [str(slo) for slo in history.spec.slos], params, space))
        return Suggestion(encoding.nearest(study.ask(space).params, history.searchable), None)


def _trial(
    entry: Entry,
    slos: Sequence[str],
    params: dict[str, Scalar],
    space: dict[str, BaseDistribution],
) -> FrozenTrial:
    """Return a launch as a trial of Optuna, with the violations of these SLOs in their order, by
    which GPSampler pairs them."""
    violations = {slo: entry.violations.get(slo, math.inf) for slo in slos}
    state, constraints = outcome_for_optuna(entry.broke, entry.measured, violations)
    return create_trial(
        state=TrialState.RUNNING if entry.pending else state,
        value=entry.score,
        constraints=constraints,
        params=params,
        distributions=space,
    )


def outcome_for_optuna(
    broke: bool, measured: bool, violations: FloatMap
) -> tuple[TrialState, FloatDict]:
    """Return a finished launch's state and constraints in Optuna.

    A configuration that failed is PRUNED with a violated constraint, as Optuna's samplers learn
    nothing from FAIL. FAIL is a launch without information about its configuration.
    """
    if broke:
        return TrialState.PRUNED, {STARTS: 1.0}
    return (TrialState.COMPLETE, {**violations}) if measured else (TrialState.FAIL, {})


def check_installed(name: str) -> None:
    """Raise `BadInput` if a sampler needs a missing package."""
    if name == "optuna-gp":
        try:
            import torch  # noqa: F401
        except ImportError:
            raise BadInput(
                "--sampler optuna-gp: Optuna's Gaussian process needs PyTorch; install it with `pip install torch`, "
                "or use --sampler gp, which is our own"
            ) from None
