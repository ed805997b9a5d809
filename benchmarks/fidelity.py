"""What cutting hopeless loads short saves and costs, on simulated configurations of DeepSeek-V3.2 on eight H200.

    python benchmarks/fidelity.py [--candidates 60] [--studies 40] [--seed 1]

For each workload:

- studies of 30 launches in random order, each launch with a log-normal factor of 3 %: how many loads were cut, and the
  seconds that were not run, as a share of those of loads and of those of everything, start-up included;
- every configuration within 2 % of the best, launched anew against the best of all the others' launches: how often it
  was cut (it must never be);
- the same with a node that is cold for the first tenth of the load: six times as slow;
- forecasts against the whole load: error of ln(objective), and in how many cases it was within 1.96 stated standard
  deviations.

A random order has more hopeless configurations than a search has, and an incumbent that is found later.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from autotune.evaluate import predict, understand
from autotune.evaluate.early_stopping import raced
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.pruning import Race
from autotune.loadgen.workloads import load_workload
from autotune.metrics.records import RequestRecords
from autotune.prepare.build_spec import build_spec
from autotune.prepare.candidates import prepare
from autotune.search.hopeless import MARGIN
from autotune.space.context import Context
from autotune.study.options import RunOptions
from autotune.study.user_library import library_for

WORKLOADS = ("sharegpt", "long", "generation", "very-long", "sharegpt-c4", "sweep")
METRIC = "total_token_throughput"
NOISE = 0.03
LAUNCHES = 30
NEAR_BEST = 0.02
COLD_SHARE, COLD_FACTOR = 0.1, 6.0


@dataclass(frozen=True)
class Candidate:
    """One configuration under one workload: the figure of its whole load, what a client sees, seconds of its start."""

    value: float
    loads: Sequence[Requests]
    runs: Sequence[RequestRecords]
    startup_s: float

    @property
    def load_s(self) -> float:
        return sum(float(run.finished_s.max() - run.sent_s.min()) for run in self.runs)

    def cold(self) -> Candidate:
        """The same, but its first load point begins cold; its figure is then that of the whole load all the same."""
        first, *others = self.runs
        cold_s = COLD_SHARE * float(first.finished_s.max())

        def later(times_s: np.ndarray) -> np.ndarray:
            return np.where(
                times_s < cold_s / COLD_FACTOR, times_s * COLD_FACTOR, times_s + cold_s * (1 - 1 / COLD_FACTOR)
            )

        times = {name: later(getattr(first, name)) for name in ("sent_s", "first_token_s", "finished_s", "token_s")}
        return replace(self, runs=(replace(first, **times), *others))


@dataclass(frozen=True)
class Cut:
    """A load that was cut short: the error of ln(objective), what was said of it, and the seconds that were saved."""

    error: float
    sd: float
    saved_s: float


def candidates(workload_name: str, count: int, seed: int) -> Iterator[Candidate]:
    """Random configurations that run, of all engines."""
    asked = RunOptions(
        "deepseek-ai/DeepSeek-V3.2", "h200", workloads=[workload_name], on="simulator", now=datetime.now(UTC)
    )
    spec, library = build_spec(asked), library_for(None)
    prepared = prepare(spec, library)
    workload, found = load_workload(workload_name, library), 0
    loads = [workload.draw(position, 0) for position in range(len(workload.points))]
    for place in np.random.default_rng(seed).permutation(len(prepared.candidates)):
        item = prepared.candidates.items[place]
        context = Context(spec.model, spec.hardware, spec.gpus, item.engine_version, workload.longest_request)
        outcome = predict(understand(prepared.command_of(item), library, context, item.engine_version), workload, 0)
        if outcome.failure is None:
            runs = [replace(run, itl_ms=np.empty(0)) for run in outcome.runs]
            yield Candidate(float(outcome.metrics[METRIC]), loads, runs, outcome.startup_s)
            found += 1
        if found == count:
            return


def launched(candidate: Candidate, factor: float, best: float) -> Cut | None:
    """One launch on a node that is faster by a factor, against the best value measured; None = it was not cut."""
    race = Race(METRIC, best * math.exp(-MARGIN * NOISE) / factor)
    found = raced(race, candidate.loads, candidate.runs)
    if found is None:
        return None
    metrics, shortened = found
    return Cut(math.log(metrics[METRIC] / candidate.value), shortened.sd, candidate.load_s - shortened.elapsed_s)


def study(known: Sequence[Candidate], generator: np.random.Generator) -> tuple[list[Cut], float, float]:
    """A study in random order: what was cut, and the seconds of all loads and of everything if nothing had been."""
    cuts, loads_s, all_s, best = [], 0.0, 0.0, 0.0
    for place in generator.permutation(len(known))[:LAUNCHES]:
        candidate, factor = known[place], math.exp(NOISE * generator.standard_normal())
        cut = launched(candidate, factor, best) if best else None
        loads_s, all_s = loads_s + candidate.load_s, all_s + candidate.load_s + candidate.startup_s
        if cut is None:
            best = max(best, candidate.value * factor)
        else:
            cuts.append(cut)
    return cuts, loads_s, all_s


def of_the_best(known: Sequence[Candidate], studies: int, generator: np.random.Generator) -> tuple[int, int, int]:
    """How often a configuration near the best was launched, cut, and cut with a cold beginning."""
    highest = max(candidate.value for candidate in known)
    near = [candidate for candidate in known if candidate.value >= (1 - NEAR_BEST) * highest]
    made = cut = cut_cold = 0
    for _ in range(studies):
        best = max(c.value * math.exp(NOISE * generator.standard_normal()) for c in known)
        for candidate in near:
            factor = math.exp(NOISE * generator.standard_normal())
            made += 1
            cut += launched(candidate, factor, best) is not None
            cut_cold += launched(candidate.cold(), factor, best) is not None
    return made, cut, cut_cold


def main() -> None:
    """Print one row per workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=60)
    parser.add_argument("--studies", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(
        "workload      load s   start s  loads cut  load s saved  all s saved   near the best: launched, cut, cut cold"
    )
    print("              median   median   of 30      per study     per study    | error: mean, sd, within 1.96 sd of")
    for name in WORKLOADS:
        generator = np.random.default_rng(asked.seed)
        known = list(candidates(name, asked.candidates, asked.seed))
        studies = [study(known, generator) for _ in range(asked.studies)]
        cuts = [cut for found, _, _ in studies for cut in found]
        saved_s = sum(cut.saved_s for cut in cuts)
        made, cut, cold = of_the_best(known, asked.studies, generator)
        errors = np.array([one.error for one in cuts] or [0.0])
        within = np.mean([abs(one.error) <= 1.96 * one.sd for one in cuts]) if cuts else 1.0
        load_s, start_s = (float(np.median([getattr(c, n) for c in known])) for n in ("load_s", "startup_s"))
        shares = [saved_s / sum(seconds[i] for seconds in studies) for i in (1, 2)]
        print(
            f"{name:<12} {load_s:>7.0f} {start_s:>9.0f} {len(cuts) / len(studies):>9.1f} "
            f"{saved_s / len(studies):>7.0f} ({shares[0]:.0%}) {shares[1]:>11.1%}     {made:>5}, {cut}, {cold}"
            f"   | {errors.mean():+.3f}, {errors.std():.3f}, {within:.1%} of {len(cuts)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
