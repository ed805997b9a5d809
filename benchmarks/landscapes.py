"""What the search benchmark searches: candidates, what each truly achieves, and what is believed beforehand.

A `Landscape` is a table. Building the simulated ones takes minutes, once: they are kept in a folder of the user's
(`Sources.cache`). How the prior differs from the landscape is measured by `Landscape.prior_quality`, because a prior
that is the landscape would prove nothing.

    landscapes.py             the value and its figures, and `build`: name to landscape
    landscapes_simulated.py   the simulated node, its coefficients drawn away from the packaged ones
    landscapes_tables.py      tables: NVIDIA's kernel measurements, the performance-lab documents
    landscapes_altered.py     made-up ones, and what can go wrong with any other
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, spearmanr

from autotune.arrays import Floats
from autotune.prepare.candidates import Prepared
from autotune.search.prior import Prior
from autotune.search.priors import priors_of
from autotune.space.candidates import Candidate, CandidateSet
from autotune.space.library import Library
from autotune.study.spec import StudySpec
from autotune.trial import Command, Evidence, Failure, FailureKind, Launch, State, Trial, TrialResult

NOISE = 0.03
"""Standard deviation of ln(measured / true) of one launch, unless a landscape says otherwise."""


class Absent(Exception):
    """A landscape's data is not there; the message says what would bring it."""


@dataclass(frozen=True)
class Sources:
    """Where the data of landscapes is.

    Attributes:
        cache: folder for tables that take minutes to compute.
        kernel_tables: CSV files of `kernel_tables.py`.
        measured: the table of the performance lab's rows (docs/calibration.md), or None.
        jobs: processes that compute tables.
    """

    cache: Path
    kernel_tables: tuple[Path, ...] = ()
    measured: Path | None = None
    jobs: int = 1


@dataclass(frozen=True)
class Landscape:
    """A study whose answers are known.

    Attributes:
        words: what it is, in one sentence.
        kind: which of the issue's targets holds: ``useful``, ``misplaced``, ``walled``, ``none`` or ``reversed``.
        truth: shape ``(candidates,)``: tokens per second without noise; NaN = does not start.
        failures: position to why it does not start; a crash where nothing is said.
        noise: of one launch, see `NOISE`.
    """

    name: str
    words: str
    kind: str
    spec: StudySpec
    candidates: CandidateSet
    truth: Floats
    priors: tuple[Prior, ...] = ()
    failures: Mapping[int, Failure] | None = None
    noise: float = NOISE

    @cached_property
    def best(self) -> float:
        """The highest throughput there is."""
        return float(np.nanmax(self.truth))

    def quality(self, position: int) -> float:
        """A candidate's share of the best, from 0 (does not start) to 1."""
        value = float(self.truth[position])
        return 0.0 if math.isnan(value) else value / self.best

    def measure(self, position: int, index: int, seed: int) -> float | None:
        """What one launch shows, None where it fails; the noise is fixed by seed, candidate and launch index."""
        value = float(self.truth[position])
        if math.isnan(value):
            return None
        draw = np.random.default_rng([seed, position, index]).standard_normal()
        return value * math.exp(self.noise * float(draw))

    def launch(self, trial: Trial, seed: int) -> Launch:
        """One launch of a study."""
        position = self.candidates.position(trial.configuration.fingerprint)
        value = self.measure(position, trial.launch_index, seed)
        times = {"launch": 200.0, "load": 100.0}
        if value is None:
            failure = (self.failures or {}).get(position) or Failure(FailureKind.CRASHED, "the server crashed")
            return Launch(trial, TrialResult(State.FAILED, Evidence.SIMULATED, failure, times_s=times))
        metrics = {name: {"total_token_throughput": value} for name in trial.workloads}
        return Launch(trial, TrialResult(State.COMPLETE, Evidence.SIMULATED, metrics=metrics, times_s=times))

    @property
    def with_starts(self) -> bool:
        """Whether the best is a shipped good start, or an engine's default."""
        best = int(np.nanargmax(self.truth))
        return best in {*self.candidates.starts, *self.candidates.defaults, self.candidates.baseline}

    def prior_quality(self) -> dict[str, float] | None:
        """How the first prior differs from the truth; None without one.

        ``spearman`` over the candidates that start; ``rank_of_best``: of the true best among all candidates by the
        prior, 1 = first, equals share their mean rank; ``regret_of_top``: what the prior's own favourites fall short
        of the best, the mean over equals (1 = does not start).
        """
        if not self.priors:
            return None
        prior = np.where(np.isfinite(self.priors[0].mean), self.priors[0].mean, -np.inf)
        runs = np.isfinite(self.truth)
        lowest = float(prior[np.isfinite(prior)].min())
        known = np.maximum(prior, lowest)
        top = np.flatnonzero(prior >= prior.max() - 1e-9)
        return {
            "spearman": float(spearmanr(known[runs], self.truth[runs]).statistic),
            "rank_of_best": float(rankdata(-known)[int(np.nanargmax(self.truth))]),
            "regret_of_top": 1 - float(np.mean([self.quality(int(p)) for p in top])),
        }

    def figures(self) -> dict[str, float | bool | int | None]:
        """How large, how steep, and how hard it is."""
        share = np.nan_to_num(self.truth, nan=0.0) / self.best
        found: dict[str, float | bool | int | None] = {
            "candidates": len(self.candidates),
            "fail": float(np.isnan(self.truth).mean()),
            "within_2_percent": int((share >= 0.98).sum()),
            "within_10_percent": int((share >= 0.90).sum()),
            "baseline": self.quality(self.candidates.baseline),
            "best_is_a_start": self.with_starts,
            "noise": self.noise,
        }
        return found | (self.prior_quality() or dict.fromkeys(("spearman", "rank_of_best", "regret_of_top")))

    def without_prior(self) -> Landscape:
        """The same, with nothing believed."""
        return replace(self, priors=())


def command_of(candidate: Candidate) -> Command:
    """A command line for a candidate; nothing is launched, so it needs only to be one."""
    flags = [f"--{name}={value}" for name, value in sorted(candidate.configuration.knobs.items())]
    return Command((candidate.configuration.engine, *flags))


def believed(spec: StudySpec, candidates: CandidateSet, on: str = "simulator") -> tuple[Prior, ...]:
    """What the product believes of a study's candidates; on the simulator that is the unfitted roofline."""
    prepared = Prepared(spec.model_copy(update={"on": on}), Library(), candidates, {}, (), None)
    return tuple(priors_of(prepared))


NAMES = (
    "v32",
    "r1",
    "kernels-r1",
    "kernels-v32",
    "calibrated:v32",
    "calibrated:r1",
    "calibrated:kernels-r1",
    "calibrated:kernels-v32",
    "measured",
    "needle",
    "misplaced",
    "misplaced:kernels-v32",
    "walled",
    "walled:kernels-r1",
    "crashing",
    "unknown-knobs",
    "relabelled",
    "reversed",
    "noisy",
)


@cache
def build(name: str, sources: Sources) -> Landscape:
    """The landscape of a name; ``misplaced``, ``walled`` … take a base behind a colon, e.g. ``walled:r1``.

    Raises:
        Absent: its data is not there.
        KeyError: no such landscape.
    """
    from landscapes_altered import ALTERED, MADE_UP
    from landscapes_simulated import SIMULATED, simulated
    from landscapes_tables import kernels, measured

    kind, _, base = name.partition(":")
    if kind in MADE_UP:
        return MADE_UP[kind]()
    if kind in SIMULATED:
        return simulated(kind, sources)
    if kind == "measured":
        return measured(sources)
    if kind.startswith("kernels-"):
        return kernels(kind, sources)
    default, alter = ALTERED[kind]
    altered = alter(build(base or default, sources))
    return replace(altered, name=name)
