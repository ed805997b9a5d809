"""How few launches the search needs, and what it learns."""

import statistics
import tempfile
from pathlib import Path

import numpy as np
import pytest
from optuna import Study
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.base.errors import UnknownName
from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.load.metrics.formulas import Slo
from autotune.tuner.recommend import recommend
from autotune.tuner.search import SAMPLERS
from autotune.tuner.search import sampler as sampler_module
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels, squared_distances
from autotune.tuner.search.history import History
from autotune.tuner.search.sampler import CandidateSampler
from autotune.tuner.trial import Launch, Role
from tests.tuner.search.search_landscapes import (
    SLO_ON_TPOT,
    Throughput,
    best_of,
    evaluate,
    grid,
    make_spec,
    opened,
    play,
    ridge,
    scores,
    walled,
)

GRID = grid()
BARE = CandidateSet(GRID.items, GRID.baseline)


def search(
    throughput: Throughput, prior: np.ndarray | None = None, **changes: object
) -> list[Launch]:
    """The launches before the finals, or until one is truly within 5 % of the best."""
    spec = make_spec(**{"noise": 0.03, "launches": 40, **changes})
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, BARE, prior)
        while (trial := study.ask()) is not None and trial.role is not Role.FINAL:
            study.tell(evaluate(spec, throughput, trial))
            if (throughput(trial.configuration) or 0.0) >= 0.95 * best_of(GRID, throughput):
                break
        launches = list(study.launches)
        study.close()
    return launches


def launches_to(
    share: float, launches: list[Launch], throughput: Throughput, never: int = 99
) -> int:
    best = best_of(GRID, throughput)
    reached = (throughput(x.trial.configuration) or 0.0 for x in launches)
    return next((i + 1 for i, value in enumerate(reached) if value >= share * best), never)


def smooth_prior() -> np.ndarray:
    """A misleading physicist: right from plain TP to 8 replicas, but 4 are best; blind to the other
    knobs."""
    knobs = [c.configuration.knobs for c in GRID.items]
    return np.array(
        [
            0.3 * np.log2(float(k["data_parallel"]))
            + 0.1 * np.log2(float(k["max_running_requests"]))
            for k in knobs
        ]  # type: ignore[arg-type]
    )


def median_launches(
    sampler: str, prior: np.ndarray | None, throughput: Throughput = ridge, launches: int = 40
) -> float:
    return statistics.median(
        launches_to(
            0.95,
            search(throughput, prior, sampler=sampler, seed=seed, launches=launches),
            throughput,
        )
        for seed in range(3)
    )


def test_the_process_needs_far_fewer_launches_than_random() -> None:
    ours, random = median_launches("gp", None), median_launches("random", None, launches=20)
    assert ours <= 19
    assert ours < random


def test_a_good_prior_leads_there_at_once() -> None:
    """Seven tenths of the layout's and the batch's effects, and nothing of the rest: the usual
    roofline."""
    knobs = [
        c.configuration.with_knobs(kv_cache_dtype="auto", torch_compile=False).knobs
        for c in GRID.items
    ]
    roofline = np.array([0.7 * np.log(ridge(Configuration("vllm", k))) for k in knobs])
    assert median_launches("gp", roofline) <= 6


@pytest.mark.parametrize("wrong", ["misplaced", "reversed", "shuffled", "unknown"])
def test_a_wrong_prior_costs_little(wrong: str) -> None:
    prior = smooth_prior()
    shuffled = np.random.default_rng(0).permutation(prior)
    unknown = np.full(len(prior), np.nan)
    chosen = {"misplaced": prior, "reversed": -prior, "shuffled": shuffled, "unknown": unknown}
    assert median_launches("gp", chosen[wrong]) <= 22


def test_failures_teach_their_cause() -> None:
    """A wall of one pair of values is met a few times only, though everything behind it looks
    better."""
    for seed in range(3):
        launches = search(walled, seed=seed)
        share_behind_the_wall = sum(walled(c.configuration) is None for c in GRID.items) / len(GRID)
        failures = sum(x.result.failure is not None for x in launches)
        assert share_behind_the_wall > 0.15
        assert failures <= 7
        assert launches_to(0.95, launches, walled) <= 36


def test_slos_are_kept() -> None:
    """The fastest configurations break the limit on latency; the search ends among those that keep
    it."""
    spec = make_spec(slos=(SLO_ON_TPOT,), noise=0.02, launches=40)

    def kept(launch_tpot_ms: float) -> bool:
        return SLO_ON_TPOT.violation(launch_tpot_ms) <= 0

    def tpot_ms(c: object) -> float:
        return 1000 * float(c.knobs["max_running_requests"]) ** 0.5 / ridge(c)  # type: ignore[attr-defined,arg-type]

    allowed = [ridge(c.configuration) for c in GRID.items if kept(tpot_ms(c.configuration))]
    assert 0 < len(allowed) < len(GRID) / 2
    assert max(allowed) < 0.95 * best_of(GRID, ridge)
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, GRID)
        launches = play(study, spec, ridge)
        study.close()
    chosen = recommend(spec, GRID, launches).recommended
    assert chosen is not None
    truth = GRID.items[GRID.position(chosen.fingerprint)].configuration
    assert tpot_ms(truth) <= 8.3
    assert ridge(truth) >= 0.9 * max(allowed)


@pytest.mark.parametrize("sampler", ["gp", "nsgaii", "random", "tpe"])
def test_no_sampler_repeats_itself_or_fails_on_a_small_space(sampler: str) -> None:
    few = CandidateSet(GRID.items[:9], 0)
    spec = make_spec(sampler=sampler, launches=40)
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, few)
        launches = play(study, spec, ridge)
        study.close()
    again = (Role.CONTROL, Role.FINAL)
    tried = [x.trial.configuration.fingerprint for x in launches if x.trial.role not in again]
    assert len(set(tried[:9])) == 9, "a leader is launched again only after all were launched"


def test_an_unknown_sampler_is_answered_with_the_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="gp, nsgaii, optuna-gp, random, tpe"):
        opened(tmp_path, make_spec(sampler="annealing"), GRID)


def test_an_unknown_objective_is_answered_with_the_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="total_token_throughput"):
        opened(tmp_path, make_spec(objective="total_token_throughputs"), GRID)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_suggests_valid_candidates_none_twice(name: str) -> None:
    """Also where launches failed, run or say nothing; and the same after the same history."""
    if name == "optuna-gp":
        pytest.importorskip("torch")
    sampler = CandidateSampler(Kernels(Encoding(GRID)), name, seed=1)
    history = History(make_spec(), GRID, ())
    for number in range(6):
        suggestion = sampler.suggest(history)
        assert suggestion is not None
        assert suggestion == sampler.suggest(history)
        position = suggestion.position
        assert not history.at(position)
        score = (
            None if number in (2, 3) else float(np.log(ridge(GRID.items[position].configuration)))
        )
        entry = Entry(
            number,
            Role.SEARCH,
            position,
            score,
            violations={},
            broke=number == 2,
            pending=number == 3,
        )
        history = History(history.spec, GRID, (*history.entries, entry))


def test_optuna_learns_of_a_failure_as_of_the_worst_launch_and_of_limits_in_one_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its GPSampler reads completed trials alone, and pairs the constraints of two by position."""
    seen: list[FrozenTrial] = []

    class Reader(RandomSampler):
        def before_trial(self, study: Study, trial: FrozenTrial) -> None:
            seen.extend(study.get_trials(states=[TrialState.COMPLETE]))

    monkeypatch.setattr(sampler_module, "_OPTUNA", {"random": Reader})
    spec = make_spec(slos=[Slo.parse(text) for text in ("p99_ttft_ms<=500", "p99_tpot_ms<=50")])
    ttft, tpot = map(str, spec.slos)
    entries = (
        Entry(0, Role.BASELINE, 0, 2.0, violations={ttft: -1.0, tpot: 3.0}),
        Entry(1, Role.SEARCH, 1, 1.0, violations={tpot: -4.0, ttft: 2.0}),
        Entry(2, Role.SEARCH, 2, broke=True),
        Entry(3, Role.SEARCH, 3, 3.0, violations={tpot: -5.0}),
    )
    CandidateSampler(Kernels(Encoding(GRID)), "random").suggest(History(spec, GRID, entries))
    assert [(trial.value, list(trial.constraints.values())) for trial in seen] == [
        (2.0, [-1.0, 3.0]),
        (1.0, [2.0, -4.0]),
        (1.0, [2.0, -4.0]),
        (3.0, [np.inf, -5.0]),
    ]


def test_latencies_are_minimised() -> None:
    spec = make_spec(objective="p99_e2el_ms", noise=0.02)
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, GRID)
        launches = play(study, spec, ridge)
        study.close()
    result = recommend(spec, GRID, launches)
    assert result.recommended is not None
    assert result.baseline is not None
    assert result.recommended.objective.value < result.baseline.objective.value
    assert result.gain_percent is not None
    assert result.gain_percent > 0


def test_distances_mean_something() -> None:
    d = squared_distances((None, 2, 4, 16))
    assert d[1, 2] < d[2, 3] < d[1, 3] == pytest.approx(1.0)
    assert 0 < d[0, 1] < 1
    names = squared_distances(("a", "b", "c"))
    assert names[0, 1] == names[0, 2] == pytest.approx(1.0)
    assert squared_distances((None,)).shape == (1, 1)
    with_zero = squared_distances((0, 1, 3))
    assert with_zero[0, 1] == pytest.approx(with_zero[1, 2])


def test_parameters_and_positions_are_inverse() -> None:
    encoding, allowed = Encoding(GRID), np.ones(len(GRID), dtype=np.bool_)
    for position in range(0, len(GRID), 7):
        assert encoding.nearest(encoding.params(position), allowed) == position
    with pytest.raises(KeyError):
        encoding.nearest({"engine": "nothing"}, allowed)


def test_knobs_that_a_candidate_leaves_unset_are_no_parameters() -> None:
    knobs = [{"a": 1, "b": None, "c": None}, {"a": 1, "b": 2, "c": None}]
    encoding = Encoding(
        CandidateSet(tuple(Candidate(Configuration("vllm", one), "") for one in knobs), 0)
    )
    assert [encoding.params(p) for p in (0, 1)] == [
        {"engine": "vllm", "a": 1},
        {"engine": "vllm", "a": 1, "b": 2},
    ]
    assert [encoding.nearest(encoding.params(p), np.array([True, True])) for p in (0, 1)] == [0, 1]
    assert encoding.values == {"engine": ("vllm",), "a": (1,), "b": (2,)}


def test_a_prior_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shape"):
        opened(tmp_path, make_spec(), GRID, scores(GRID, ridge)[:-1])
