"""The samplers that `search.py` compares, each as a loop of launches on one landscape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import optuna
from landscape import Landscape, command_of
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

from autotune.recommend import recommend
from autotune.search import open_study
from autotune.search.gp.encoding import ENGINE, Encoding
from autotune.search.gp.kernels import Kernels
from autotune.search.sampler import CandidateSampler

LEAD = ("engine", "tensor_parallel", "data_parallel", "expert_parallel")
"""What people change first: the documents begin with the engine, then the layout."""


@dataclass(frozen=True)
class Run:
    """What one sampler did.

    Attributes:
        visited: positions in the order of their launches; the baseline is the first.
        recommended: launches to the position that would be served after so many; None = nothing ran.
    """

    visited: list[int]
    recommended: dict[int, int | None] = field(default_factory=dict)


def product(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """The product's own path: one study per budget, finals included; `visited` is that of the largest."""
    visited: list[int] = []
    recommended: dict[int, int | None] = {}
    for budget in sorted(budgets):
        visited, recommended[budget] = _study(landscape, seed, budget)
    return Run(visited, recommended)


def _study(landscape: Landscape, seed: int, budget: int) -> tuple[list[int], int | None]:
    changes = {"launches": budget, "seed": seed, "noise": landscape.noise}
    spec, candidates = landscape.spec.model_copy(update=changes), landscape.candidates
    with (
        TemporaryDirectory(prefix="autotune-search-") as folder,
        closing(open_study(Path(folder), spec, candidates, command_of, landscape.priors)) as study,
    ):
        while (trial := study.ask()) is not None:
            study.tell(landscape.launch(trial, seed))
        found = recommend(spec, candidates, study.launches, (), study.stop_reason).recommended
        visited = [candidates.position(launch.trial.configuration.fingerprint) for launch in study.launches]
    return visited, None if found is None else candidates.position(found.fingerprint)


def bare(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """Ours without a plan around it: the baseline, then the sampler's suggestions; no finals, no repeats."""
    sampler = CandidateSampler(Kernels(Encoding(landscape.candidates), landscape.priors), seed)
    return optimised(landscape, seed, budgets, sampler)


def tpe(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """Optuna's default sampler over one flat space of categories."""
    return optimised(landscape, seed, budgets, TPESampler(seed=seed))


def gp(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """Optuna's Gaussian process. It reads no pruned trials: a failure is told as the worst value that was seen."""
    import torch

    torch.set_num_threads(1)  # the benchmark's own processes share the cores
    return optimised(landscape, seed, budgets, GPSampler(seed=seed), pruned=False)


def at_random(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """Valid candidates, none twice."""
    base = landscape.candidates.baseline
    order = np.random.default_rng(seed).permutation(len(landscape.candidates)).tolist()
    visited = [base, *(p for p in order if p != base)][: max(budgets)]
    return _best_seen(landscape, seed, visited, budgets)


def optimised(
    landscape: Landscape, seed: int, budgets: Sequence[int], sampler: BaseSampler, *, pruned: bool = True
) -> Run:
    """An Optuna sampler by ask and tell, the baseline first.

    What it asks for that is no candidate, or was launched, becomes the nearest candidate that was not; it is told of
    that one. A candidate that fails is told as pruned with a violated constraint, from which samplers learn.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    encoding = Encoding(landscape.candidates)
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(encoding.choices[name]) for name in encoding.names
    }
    study = optuna.create_study(direction="maximize", sampler=sampler)
    base = landscape.candidates.baseline
    study.enqueue_trial(encoding.params(base))
    free = np.ones(len(encoding), dtype=np.bool_)
    visited: list[int] = []
    worst = math.inf
    for number in range(min(max(budgets), len(encoding))):
        trial = study.ask(distributions)
        position = encoding.nearest(trial.params, free) if number else base
        free[position] = False
        visited.append(position)
        value = landscape.measure(position, 0, seed)
        worst = min(worst, math.inf if value is None else value)
        outcome: dict[str, Any] = {"state": TrialState.COMPLETE, "value": worst if value is None else value}
        if value is None and pruned:
            outcome = {"state": TrialState.PRUNED, "constraints": {"starts": 1.0}}
        if encoding.position(trial.params) != position:
            # It asked for something else. Samplers leave failed trials out.
            study.tell(trial, state=TrialState.FAIL)
            study.add_trial(create_trial(params=encoding.params(position), distributions=distributions, **outcome))
            continue
        for name, violation in outcome.pop("constraints", {}).items():
            trial.set_constraint(name, violation)
        study.tell(trial, outcome.get("value"), outcome["state"])
    return _best_seen(landscape, seed, visited, budgets)


def one_factor(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """As in the documents: from the baseline one knob at a time, each of its values, keeping what is better.

    The engine and the layout come first, the other knobs in an order of the seed's; what must change with a knob
    changes with it. Round and round until nothing is left or the launches are used.
    """
    visited: list[int] = []
    seen: dict[int, float] = {}
    for position in _factors(landscape, seed, seen):
        visited.append(position)
        seen[position] = landscape.measure(position, 0, seed) or 0.0
        if len(visited) == max(budgets):
            break
    return _best_seen(landscape, seed, visited, budgets)


def _factors(landscape: Landscape, seed: int, seen: dict[int, float]) -> Iterator[int]:
    """What to launch next; what came of it is in ``seen`` when this goes on."""
    encoding = Encoding(landscape.candidates)
    names = [encoding.names[k] for k in encoding.varying]
    later = [name for name in names if name not in LEAD]
    order = [n for n in LEAD if n in names] + [later[i] for i in np.random.default_rng(seed).permutation(len(later))]
    current = landscape.candidates.baseline
    yield current
    while True:
        before = len(seen)
        for name in order:
            for position in _values_of(encoding, current, name):
                if position not in seen:
                    yield position
            current = max(seen, key=lambda p: seen[p])
        if len(seen) == before:
            return


def _values_of(encoding: Encoding, current: int, name: str) -> list[int]:
    """For every other value of a knob the candidate that is nearest to the current one, on its engine."""
    column = encoding.names.index(name)
    codes, own, found = encoding.codes[:, column], encoding.params(current), []
    engine = encoding.codes[:, 0] == encoding.codes[current, 0]
    for code, value in enumerate(encoding.choices[name]):
        allowed = (codes == code) & (engine if name != ENGINE else True)
        if code != codes[current] and allowed.any():
            found.append(encoding.nearest({**own, name: value}, allowed))
    return found


def _best_seen(landscape: Landscape, seed: int, visited: list[int], budgets: Sequence[int]) -> Run:
    """Who has no finals serves what looked best."""
    values = [landscape.measure(position, 0, seed) for position in visited]
    recommended: dict[int, int | None] = {}
    for budget in budgets:
        ran = [(value, p) for value, p in zip(values[:budget], visited, strict=False) if value is not None]
        recommended[budget] = max(ran)[1] if ran else None
    return Run(visited, recommended)


Loop = Callable[[Landscape, int, Sequence[int]], Run]

LOOPS: dict[str, tuple[Loop, bool]] = {
    "ours": (product, True),
    "ours-no-prior": (product, False),
    "ours-bare": (bare, True),
    "ours-bare-no-prior": (bare, False),
    "tpe": (tpe, False),
    "gp": (gp, False),
    "random": (at_random, False),
    "one-factor": (one_factor, False),
}
"""By name: the loop, and whether it is given the prior."""

COMPARED = ("ours", "ours-no-prior", "tpe", "gp", "random", "one-factor")


def missing(name: str) -> str | None:
    """Why a sampler cannot run here; None when it can."""
    if name == "gp" and find_spec("torch") is None:
        return "Optuna's GPSampler needs torch (pip install torch)"
    return None


def play(name: str, landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run | None:
    """One run; None where the sampler needs a prior and the landscape has none."""
    loop, with_prior = LOOPS[name]
    if with_prior and not landscape.priors:
        return None
    return loop(landscape if with_prior else landscape.without_prior(), seed, budgets)
