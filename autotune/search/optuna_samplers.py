"""Optuna's own samplers, for who wants them: asked knob by knob, since they know nothing of what is valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from autotune.errors import BadInput
from autotune.search.gp.encoding import Encoding


def _sampler(name: str, seed: int) -> BaseSampler:
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    if name == "nsgaii":
        return optuna.samplers.NSGAIISampler(seed=seed)
    if name == "optuna-gp":
        return optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)
    return optuna.samplers.RandomSampler(seed=seed)


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


def propose(
    name: str, trials: Sequence[FrozenTrial], encoding: Encoding, direction: StudyDirection, seed: int
) -> Mapping[str, Any]:
    """What one of Optuna's samplers would try next: usually no candidate."""
    study = optuna.create_study(direction=direction, sampler=_sampler(name, seed))
    study.add_trials(trials)
    return study.ask({n: CategoricalDistribution(encoding.choices[n]) for n in encoding.names}).params
