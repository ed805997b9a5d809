"""The order of launches, and the budget."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from search_landscapes import (
    Throughput,
    decisions,
    evaluate,
    flat,
    grid,
    make_spec,
    opened,
    play,
    ridge,
    small,
    walled,
)

from autotune.recommend import recommend
from autotune.recommendation import Verdict
from autotune.space.candidates import CandidateSet
from autotune.spec import StudySpec
from autotune.trial import Evidence, Failure, FailureKind, Launch, Role, State, Trial, TrialResult

GRID, SMALL = grid(), small()


def run(spec: StudySpec, candidates: CandidateSet, throughput: Throughput) -> tuple[list[Launch], str]:
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, candidates)
        launches = play(study, spec, throughput)
        study.close()
    return launches, study.stop_reason


@settings(max_examples=25, deadline=None)
@given(launches=st.integers(1, 40), noise=st.sampled_from([0.0, 0.03]), node=st.sampled_from([ridge, walled, flat]))
def test_the_budget_holds_and_the_finals_get_their_share(launches: int, noise: float, node: Throughput) -> None:
    spec = make_spec(launches=launches, noise=noise)
    made, reason = run(spec, SMALL, node)
    assert len(made) <= launches
    assert made[0].trial.role is Role.BASELINE
    assert [x.trial.number for x in made] == list(range(len(made)))
    finals = [x for x in made if x.trial.role is Role.FINAL]
    assert len(finals) <= max(14, launches / 2)
    if launches >= 6:
        assert len(finals) >= 3
    assert reason
    roles = [x.trial.role for x in made]
    order = list(dict.fromkeys(roles))
    assert order == sorted(order, key=[Role.BASELINE, Role.DEFAULT, Role.START, Role.SEARCH, Role.FINAL].index)
    searched = [x.trial.configuration.fingerprint for x in made if x.trial.role is not Role.FINAL]
    assert len(set(searched)) == len(searched)


def test_order_and_workloads() -> None:
    spec = make_spec(workloads=("chat", "long"), noise=0.02)
    made, _ = run(spec, GRID, ridge)
    assert made[1].trial.role is Role.DEFAULT
    assert made[1].trial.configuration.engine == "sglang"
    assert {x.trial.configuration.engine for x in made if x.trial.role is Role.START} == {"vllm", "sglang"}
    for launch in made:
        everything = launch.trial.role in (Role.BASELINE, Role.FINAL)
        assert launch.trial.workloads == (("chat", "long") if everything else ("chat",))


def test_finals_interleave_finalists_and_baseline() -> None:
    made, _ = run(make_spec(noise=0.03), GRID, ridge)
    finals = [x.trial.configuration.fingerprint for x in made if x.trial.role is Role.FINAL]
    base = GRID.items[GRID.baseline].fingerprint
    rounds = [finals[i : i + 3] for i in (0, 3, 6)]
    assert all(base in r and len(set(r)) == 3 for r in rounds)
    assert rounds[0] == rounds[1][::-1]
    indices = [x.trial.launch_index for x in made if x.trial.configuration.fingerprint == base]
    assert indices == list(range(len(indices)))


def test_one_candidate() -> None:
    alone = CandidateSet(SMALL.items[:1], 0)
    made, reason = run(make_spec(), alone, ridge)
    assert len(made) == 1
    assert reason == "every candidate was tried"
    result = recommend(make_spec(), alone, made, (), reason)
    assert result.verdict is Verdict.INDISTINGUISHABLE
    assert result.recommended is not None
    assert result.recommended.fingerprint == alone.items[0].fingerprint


def test_nothing_runs() -> None:
    spec = make_spec(launches=10)
    made, reason = run(spec, SMALL, lambda _: None)
    assert len(made) <= 10
    result = recommend(spec, SMALL, made, (), reason)
    assert result.verdict is Verdict.INFEASIBLE
    assert result.recommended is None
    assert result.failures == {"out_of_memory": len(made)}


def test_the_baseline_cannot_run() -> None:
    base = SMALL.items[0].fingerprint
    spec = make_spec(noise=0.02)
    made, reason = run(spec, SMALL, lambda c: None if c.fingerprint == base else ridge(c))
    result = recommend(spec, SMALL, made, (), reason)
    assert result.verdict is Verdict.UNOPPOSED
    assert result.baseline is None
    assert result.gain_percent is None
    assert result.recommended is not None
    assert result.recommended.objective.repeats >= 2


def test_hours_bound_the_time() -> None:
    spec = make_spec(hours=1.0, noise=0.02)
    made, reason = run(spec, GRID, ridge)
    # 300 s per launch: twelve fit into the hour.
    assert len(made) == 12
    assert reason == "the budget of 1 hours is used"
    assert sum(x.trial.role is Role.FINAL for x in made) == 6


def test_a_measurement_that_says_nothing_is_made_again() -> None:
    spec = make_spec(launches=12, noise=0.02)

    def spoiled(trial: Trial) -> Launch:
        launch = evaluate(spec, ridge, trial)
        if trial.number not in (0, 3):
            return launch
        if trial.number == 0:
            return Launch(trial, TrialResult(State.INVALID, Evidence.SIMULATED))
        return Launch(
            trial, TrialResult(State.FAILED, Evidence.SIMULATED, Failure(FailureKind.INFRASTRUCTURE, "node lost"))
        )

    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, SMALL)
        while (trial := study.ask()) is not None:
            study.tell(spoiled(trial))
        made = list(study.launches)
        study.close()
    assert made[1].trial.role is Role.BASELINE
    assert made[1].trial.launch_index == 1
    assert recommend(spec, SMALL, made).verdict is Verdict.BETTER


def test_parallel_asking_never_repeats_and_waits_for_the_finals(tmp_path: Path) -> None:
    spec = make_spec(noise=0.02, launches=20)
    study = opened(tmp_path, spec, GRID)
    running: list[Trial] = []
    made = 0
    while True:
        trial = study.ask() if len(running) < 4 else None
        if trial is not None:
            running.append(trial)
            continue
        if not running:
            break
        study.tell(evaluate(spec, ridge, running.pop(0)))
        made += 1
    assert study.stop_reason
    assert made == len(study.launches) <= 20
    searched = [x.trial.configuration.fingerprint for x in study.launches if x.trial.role is not Role.FINAL]
    assert len(set(searched)) == len(searched)
    assert sum(x.trial.role is Role.FINAL for x in study.launches) >= 9
    study.close()


def test_the_same_seed_decides_the_same() -> None:
    spec = make_spec(noise=0.03, seed=3, launches=14)
    one, _ = run(spec, GRID, walled)
    two, _ = run(spec, GRID, walled)
    assert decisions(one) == decisions(two)
