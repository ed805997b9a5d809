"""Limits that nothing can keep end a study early, and others do not."""

import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from autotune.base.evidence import Evidence
from autotune.load.metrics.formulas import MOST_VIOLATIONS, Slo
from autotune.load.metrics.table import Rent
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels, Prior
from autotune.tuner.search.history import History
from autotune.tuner.search.plan import Plan, Stop, Wait
from autotune.tuner.search.reach import LEAST, out_of_reach, times
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import command_of, make_spec, opened, small

SMALL = small()
SPEC = make_spec(slos=(Slo.parse("p99_ttft_ms<=1000"), Slo.parse("p99_tpot_ms<=100")))


def kernels(ttft: float, tpot: float, best: tuple[float, float] | None = None) -> Kernels:
    """Of a prior that foresees how many times its limit each metric is; the last candidate is
    another one."""
    beyond = np.log(np.tile([[ttft], [tpot]], len(SMALL)))
    beyond[:, -1] = np.log(best or (ttft, tpot))
    return Kernels(
        Encoding(SMALL), [Prior("physics", np.linspace(0, 1, len(SMALL)), limit_ratios=beyond)]
    )


def history(ttft: float, tpot: float, launches: int = LEAST) -> History:
    """Launches of as many candidates whose metrics are so many times their limits."""
    beyond = {"p99_ttft_ms<=1000": 1000 * (ttft - 1), "p99_tpot_ms<=100": 100 * (tpot - 1)}
    entries = [Entry(n, Role.SEARCH, n, 0.0, violations=beyond) for n in range(launches)]
    return History(SPEC, SMALL, tuple(entries))


def test_limits_that_no_launch_and_no_prediction_comes_near_are_out_of_reach() -> None:
    assert out_of_reach(kernels(3, 3), history(3, 3))
    assert not out_of_reach(kernels(3, 3), history(3, 3, LEAST - 1)), "too few launches"
    assert not out_of_reach(kernels(3, 3), history(1.4, 1.4)), "a launch is near"
    assert out_of_reach(kernels(3, 0.5), history(3, 0.5)), "one limit is enough"


def test_limits_that_one_candidate_may_keep_are_in_reach() -> None:
    """The launches show that the prior is 2.5 times too dark, so that 3 times the limit may be 1.2
    times."""
    assert not out_of_reach(kernels(3, 3, best=(1.2, 1.2)), history(3, 3))
    assert out_of_reach(kernels(3, 3, best=(0.5, 2)), history(3, 3)), "it keeps one of the two"
    assert not out_of_reach(kernels(7.5, 7.5, best=(3, 3)), history(3, 3))
    assert out_of_reach(kernels(1.5, 1.5), history(3, 3)), (
        "a prior that was too bright is not made brighter"
    )


def test_what_no_prior_foresees_never_ends_a_study() -> None:
    assert not out_of_reach(Kernels(Encoding(SMALL)), history(30, 30))
    assert not out_of_reach(kernels(math.nan, math.nan), history(30, 30))
    assert out_of_reach(kernels(math.nan, 30), history(30, 30))


@pytest.mark.parametrize(
    ("good", "best", "ended"), [(8, 24, True), (20, 24, False), (8, 35, False)]
)
def test_a_goodput_of_few_requests_ends_a_study(good: float, best: float, ended: bool) -> None:
    """Of 8 % good requests where at most 24 % are foreseen; not of 20 %, and not where 35 % may be
    good."""
    bad = np.full(len(SMALL), 0.95 * 100 / MOST_VIOLATIONS.limit)
    bad[-1] = (100 - best) / MOST_VIOLATIONS.limit
    known = Kernels(
        Encoding(SMALL), [Prior("physics", np.zeros(len(SMALL)), limit_ratios=np.log(bad)[None])]
    )
    spec = make_spec(objective="request_goodput", goodput={"ttft": 2000.0})
    found = Rent(8).derived(
        {"request_goodput": good / 10, "request_throughput": 10.0, "duration": 100.0}
    )
    result = TrialResult(State.COMPLETE, Evidence.SIMULATED, metrics={spec.workloads[0]: found})
    rows = [
        Launch(
            Trial(
                n,
                Role.SEARCH,
                one.configuration,
                one.engine_version,
                command_of(one),
                spec.workloads,
            ),
            result,
        )
        for n, one in enumerate(SMALL.items[:LEAST])
    ]
    seen = History.from_launches(spec, SMALL, rows)
    assert out_of_reach(known, seen) is ended
    assert all(seen.feasible(position) for position in seen.by_position), (
        "no launch is refused before"
    )


@pytest.mark.parametrize(
    ("limit", "value", "found"), [("a<=10", 20, 2), ("a>=10", 5, 2), ("a<=0", 0, 1)]
)
def test_how_many_times_its_limit_a_metric_is(limit: str, value: float, found: float) -> None:
    sense = "<=" if "<=" in limit else ">="
    assert times(Slo(metric="a", sense=sense, limit=float(limit.split("=")[1])), value) == found


def test_the_study_waits_for_what_runs_and_stops() -> None:
    known = kernels(3, 3)
    plan, seen = Plan(known, CandidateSampler(known)), history(3, 3)
    stop = plan.next(seen)
    assert isinstance(stop, Stop)
    assert stop.reason.startswith("the limits are out of reach")
    running = Entry(LEAST, Role.SEARCH, LEAST, pending=True)
    assert isinstance(plan.next(replace(seen, entries=(*seen.entries, running))), Wait)
    with TemporaryDirectory() as folder:
        study = opened(Path(folder), SPEC, SMALL)
        assert study.ask() is not None
        study.close()
