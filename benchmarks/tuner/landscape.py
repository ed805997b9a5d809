"""A landscape of the search benchmark: candidates, what each truly achieves, and what is believed
beforehand.

A `Landscape` is a table. How its prior differs from it is measured by `Landscape.prior_quality`,
because a prior that is the landscape would prove nothing. `landscapes.build` makes one by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, spearmanr

from autotune.base.arrays import Floats
from autotune.base.evidence import Evidence
from autotune.engines.command import Command, Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.tuner.prepare.candidates import Prepared
from autotune.tuner.search.gp.kernels import Prior
from autotune.tuner.search.priors import priors_of
from autotune.tuner.study.spec import EngineChoice, StudySpec
from autotune.tuner.trial import Launch, State, Trial, TrialResult

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
        tuning_tables: folder of measured tuning tables of another field, replay files, or None.
    """

    cache: Path
    kernel_tables: tuple[Path, ...] = ()
    measured: Path | None = None
    jobs: int = 1
    tuning_tables: Path | None = None


@dataclass(frozen=True)
class Landscape:
    """A study whose answers are known.

    Attributes:
        words: what it is, in one sentence.
        kind: which of the issue's targets holds: ``useful``, ``misplaced``, ``walled``, ``none`` or
            ``reversed``.
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
        """What one launch shows, None where it fails; the noise is fixed by seed, candidate and
        launch index."""
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
            failure = (self.failures or {}).get(position) or Failure(
                FailureKind.CRASHED, "the server crashed"
            )
            return Launch(
                trial, TrialResult(State.FAILED, Evidence.SIMULATED, failure, times_s=times)
            )
        metrics = {name: {"total_token_throughput": value} for name in trial.workloads}
        return Launch(
            trial, TrialResult(State.COMPLETE, Evidence.SIMULATED, metrics=metrics, times_s=times)
        )

    @property
    def with_starts(self) -> bool:
        """Whether the best is a shipped good start, or an engine's default."""
        best = int(np.nanargmax(self.truth))
        return best in {
            *self.candidates.starts,
            *self.candidates.defaults,
            self.candidates.baseline,
        }

    def prior_quality(self) -> dict[str, float] | None:
        """How the first prior differs from the truth; None without one.

        ``spearman`` over the candidates that start; ``rank_of_best``: of the true best among all
        candidates by the prior, 1 = first, equals share their mean rank; ``regret_of_top``: what
        the prior's own favourites fall short of the best, the mean over equals (1 = does not
        start).
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
        return found | (
            self.prior_quality() or dict.fromkeys(("spearman", "rank_of_best", "regret_of_top"))
        )

    def without_prior(self) -> Landscape:
        """The same, with nothing believed."""
        return replace(self, priors=())


def command_of(candidate: Candidate) -> Command:
    """A command line for a candidate; nothing is launched, so it needs only to be one."""
    flags = [f"--{name}={value}" for name, value in sorted(candidate.configuration.knobs.items())]
    return Command((candidate.configuration.engine, *flags))


def believed(spec: StudySpec, candidates: CandidateSet, on: str = "simulator") -> tuple[Prior, ...]:
    """What the product believes of a study's candidates; on the simulator that is physics with
    nothing fitted."""
    prepared = Prepared(spec.model_copy(update={"on": on}), Library(), candidates, {}, (), None)
    return tuple(priors_of(prepared))


def study_of(
    name: str, model: str, engines: Sequence[str], workload: str = "sharegpt"
) -> StudySpec:
    """A study's question over a table."""
    library = Library()
    return StudySpec(
        study=name,
        model=library.model(model),
        hardware=library.node("h200"),
        gpus=8,
        engines=tuple(
            EngineChoice(name=engine, version=library.engine(engine).newest) for engine in engines
        ),
        workloads=(workload,),
    )


def layout_of(configuration: Configuration) -> tuple[object, ...]:
    """Engine, layout and all-to-all: what decides which kernels run."""
    knobs = configuration.knobs
    names = ("tensor_parallel", "data_parallel", "expert_parallel", "moe_all_to_all")
    return (configuration.engine, *(knobs.get(name) for name in names))
