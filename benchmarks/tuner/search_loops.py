"""The samplers that `search.py` compares, each as a loop of launches on one landscape."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from landscape import Landscape, command_of

from autotune.base.arrays import Floats
from autotune.engines.enumeration import CandidateSet
from autotune.tuner.recommend import recommend
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import ENGINE, Encoding, Kernels, is_size
from autotune.tuner.search.history import History
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.search.study import Study
from autotune.tuner.trial import Role

_STARTS = 10
"""Random launches with which BoTorch begins, the baseline among them."""
PROTOTYPE = Path(os.environ.get("PROTOTYPE", "../shared/prototypes/search_prototype.py"))
LEAD = ("engine", "tensor_parallel", "data_parallel", "expert_parallel")
"""What people change first: the documents begin with the engine, then the layout."""


@dataclass(frozen=True)
class Run:
    """What one sampler did.

    Attributes:
        visited: positions in the order of their launches; the baseline is the first.
        recommended: launches to the position that would be served after so many; None = nothing
            ran.
    """

    visited: list[int]
    recommended: dict[int, int | None] = field(default_factory=dict)


Loop = Callable[[Landscape, int, Sequence[int]], Run]


def product(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """The product's own path: one study per budget, finals included; `visited` is that of the
    largest."""
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
        closing(Study(Path(folder), spec, candidates, command_of, landscape.priors)) as study,
    ):
        while (trial := study.ask()) is not None:
            study.tell(landscape.launch(trial, seed))
        found = recommend(spec, candidates, study.launches, (), study.stop_reason).recommended
        visited = [
            candidates.position(launch.trial.configuration.fingerprint) for launch in study.launches
        ]
    return visited, None if found is None else candidates.position(found.fingerprint)


def sampled(name: str) -> Loop:
    """One of the product's samplers without a plan: the baseline, then what it samples; no finals,
    no repeats."""

    def loop(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
        candidates = landscape.candidates
        sampler = CandidateSampler(Kernels(Encoding(candidates), landscape.priors), name, seed)
        # The sampler's dice are the study's: of one seed all runs would begin with the same
        # launches.
        history = History(landscape.spec.model_copy(update={"seed": seed}), candidates, ())
        for number in range(min(max(budgets), len(candidates))):
            suggestion = sampler.suggest(history) if number else None
            position = suggestion.position if suggestion else candidates.baseline
            value = landscape.measure(position, 0, seed)
            score = None if value is None else math.log(value)
            entry = Entry(number, Role.SEARCH, position, score, violations={}, broke=value is None)
            history = replace(history, entries=(*history.entries, entry))
        return _best_seen(landscape, seed, [entry.position for entry in history], budgets)

    return loop


def prototype(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """The search's anchor, 150 plain lines outside of this repository: see `PROTOTYPE`."""
    encoding = Encoding(landscape.candidates)
    starts = np.isfinite(landscape.truth)
    truth = np.log(np.where(starts, landscape.truth, 1.0))
    first = landscape.priors[0] if landscape.priors else None
    trace = _module(PROTOTYPE).search(
        truth,
        ~starts,
        encoding.codes[:, encoding.varying],
        [encoding.distances[k] for k in encoding.varying],
        landscape.candidates.baseline,
        priors=[prior.mean for prior in landscape.priors],
        ensemble=first.draws if first else None,
        predicted_to_start=None
        if first is None or first.p_starts is None
        else first.p_starts >= 0.5,
        budget=min(max(budgets), len(landscape.candidates)),
        seed=seed,
        noise=landscape.noise,
    )
    # It tells the best so far, not which candidate that is.
    nearest = [
        int(np.nanargmin(np.abs(landscape.truth / landscape.best - share))) for share in trace
    ]
    return Run(nearest, {budget: nearest[min(budget, len(nearest)) - 1] for budget in budgets})


def _module(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def at_random(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """Valid candidates, none twice."""
    base = landscape.candidates.baseline
    order = np.random.default_rng(seed).permutation(len(landscape.candidates)).tolist()
    visited = [base, *(p for p in order if p != base)][: max(budgets)]
    return _best_seen(landscape, seed, visited, budgets)


_GOOD = 0.9
"""The quantile of what runs from which on a start of one-factor counts as good."""


def one_factor(
    landscape: Landscape, seed: int, budgets: Sequence[int], least: float | None = None
) -> Run:
    """As in the documents: from the baseline one knob at a time, each of its values, keeping what
    is better.

    The engine and the layout come first, the other knobs in an order of the seed's; what must
    change with a knob changes with it. Round and round until nothing is left or the launches are
    used.

    Args:
        least: start at a candidate drawn from those that run and have this quantile; None: at the
            baseline.
    """
    if least is not None:
        runs = np.flatnonzero(landscape.truth >= np.nanquantile(landscape.truth, least))
        start = int(np.random.default_rng([seed, 1]).choice(runs))
        landscape = replace(landscape, candidates=replace(landscape.candidates, baseline=start))
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
    order = [n for n in LEAD if n in names] + [
        later[i] for i in np.random.default_rng(seed).permutation(len(later))
    ]
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
    """For every other value of a knob the candidate that is nearest to the current one, on its
    engine."""
    column = encoding.names.index(name)
    codes, own, found = encoding.codes[:, column], encoding.params(current), []
    engine = encoding.codes[:, 0] == encoding.codes[current, 0]
    for code, value in enumerate(encoding.choices[name]):
        allowed = (codes == code) & (engine if name != ENGINE else True)
        if code != codes[current] and allowed.any():
            found.append(encoding.nearest({**own, name: value}, allowed))
    return found


def botorch_log_ei(landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run:
    """BoTorch as its documents show it: SingleTaskGP, LogEI over every row not launched yet; ten
    random starts.

    Sizes are scaled logarithms, the other values one-hot. A failure counts as the worst that ran.
    """
    import torch
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rows = torch.tensor(_features(landscape.candidates), dtype=torch.float64)
    visited = at_random(landscape, seed, [_STARTS]).visited
    scores = [_log(landscape.measure(p, 0, seed)) for p in visited]
    while len(visited) < min(max(budgets), len(rows)):
        lowest = min((s for s in scores if s is not None), default=0.0)
        y = torch.tensor([[lowest if s is None else s] for s in scores], dtype=torch.float64)
        model = SingleTaskGP(rows[visited], y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        free = np.setdiff1d(np.arange(len(rows)), visited)
        with torch.no_grad():
            worth = LogExpectedImprovement(model, best_f=y.max())(rows[free][:, None, :])
        visited.append(int(free[int(worth.argmax())]))
        scores.append(_log(landscape.measure(visited[-1], 0, seed)))
    return _best_seen(landscape, seed, visited, budgets)


def _log(value: float | None) -> float | None:
    return None if value is None else math.log(value)


def _features(candidates: CandidateSet) -> Floats:
    """Shape ``(candidates, features)``, all between 0 and 1."""
    encoding, columns = Encoding(candidates), list[Floats]()
    for k in encoding.varying:
        choices, codes = encoding.choices[encoding.names[k]], encoding.codes[:, k]
        if all(is_size(value) for value in choices):
            # The distances of sizes are squares along one line.
            columns.append(np.sqrt(encoding.distances[k][0])[codes])
        else:
            columns += [(codes == code).astype(np.float64) for code in range(len(choices))]
    return np.stack(columns, axis=1)


def _best_seen(landscape: Landscape, seed: int, visited: list[int], budgets: Sequence[int]) -> Run:
    """Who has no finals serves what looked best."""
    values = [landscape.measure(position, 0, seed) for position in visited]
    recommended: dict[int, int | None] = {}
    for budget in budgets:
        ran = [
            (value, p)
            for value, p in zip(values[:budget], visited, strict=False)
            if value is not None
        ]
        recommended[budget] = max(ran)[1] if ran else None
    return Run(visited, recommended)


LOOPS: dict[str, tuple[Loop, bool]] = {
    "ours": (product, True),
    "ours-no-prior": (product, False),
    "prototype": (prototype, True),
    "prototype-no-prior": (prototype, False),
    "ours-bare": (sampled("gp"), True),
    "ours-bare-no-prior": (sampled("gp"), False),
    "tpe": (sampled("tpe"), False),
    "gp": (sampled("optuna-gp"), False),
    "random": (at_random, False),
    "one-factor": (one_factor, False),
    "one-factor-random": (partial(one_factor, least=0.0), False),
    "one-factor-good": (partial(one_factor, least=_GOOD), False),
    "botorch": (botorch_log_ei, False),
}
"""By name: the loop, and whether it is given the prior."""

COMPARED = tuple(name for name in LOOPS if not name.startswith("ours-bare"))


def missing(name: str) -> str | None:
    """Why a sampler cannot run here; None when it can."""
    if name == "gp" and find_spec("torch") is None:
        return "Optuna's GPSampler needs torch (pip install torch)"
    if name == "botorch" and find_spec("botorch") is None:
        return "BoTorch is not installed (pip install botorch)"
    if name.startswith("prototype") and not PROTOTYPE.is_file():
        return f"{PROTOTYPE} is not there; PROTOTYPE=FILE in the environment says where it is"
    return None


def play(name: str, landscape: Landscape, seed: int, budgets: Sequence[int]) -> Run | None:
    """One run; None where the sampler needs a prior and the landscape has none."""
    loop, with_prior = LOOPS[name]
    if with_prior and not landscape.priors:
        return None
    return loop(landscape if with_prior else landscape.without_prior(), seed, budgets)
