"""Failures that nothing explains: another launch before they count, and no certainty without
them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.evidence import Evidence
from autotune.engines.failure import Failure, FailureKind, Phase
from autotune.outputs.report import sentences, tables
from autotune.tuner.recommend import recommend
from autotune.tuner.search.study import Study
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.study.results import launch_of, row_of
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import IN_A_ROW, Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import evaluate, make_spec, opened, ridge, small

SMALL = small()
BASELINE = SMALL.baseline_candidate.fingerprint
KILLED = Failure(
    FailureKind.INFRASTRUCTURE, "killed", "200 OK", phase=Phase.SERVING, unexplained=True
)
DIED = Failure(FailureKind.CRASHED, "died", "it died", phase=Phase.SERVING, unexplained=True)
AT_START = Failure(FailureKind.CRASHED, "no start", "it died", unexplained=True)

Opens = Callable[[StudySpec], Study]
Fails = Callable[[Trial, list[Launch]], Failure | None]


def play(study: Study, spec: StudySpec, fails: Fails) -> list[Launch]:
    """Run a study whose launches fail as `fails` says of a trial and the launches before it."""
    launches = list(study.launches)
    while (trial := study.ask()) is not None:
        launch = evaluate(spec, ridge, trial)
        if failure := fails(trial, launches):
            state = State.FAILED if failure.blames_the_configuration else State.INVALID
            launch = Launch(trial, TrialResult(state, Evidence.MEASURED, failure, gpus=8))
        study.tell(launch)
        launches.append(launch)
    return launches


@pytest.fixture
def study_of(tmp_path: Path) -> Iterator[Opens]:
    """Opens the study of a folder; the one before it is closed."""
    studies: list[Study] = []

    def open_(spec: StudySpec) -> Study:
        for one in studies:
            one.close()
        studies.append(opened(tmp_path, spec, SMALL))
        return studies[-1]

    yield open_
    for one in studies:
        one.close()


def outcome_of(study: Study, spec: StudySpec) -> Recommendation:
    explanation = study.explanation(lambda trial: ())
    return recommend(spec, SMALL, study.launches, (), study.stop_reason, explanation)


def searched(trial: Trial) -> bool:
    return trial.configuration.fingerprint != BASELINE and trial.role is not Role.FINAL


@pytest.mark.parametrize("failure", [KILLED, DIED])
def test_a_server_that_was_ready_and_died_is_launched_once_more_before_it_counts(
    study_of: Opens, failure: Failure
) -> None:
    spec = make_spec(launches=14, noise=0.02)
    study = study_of(spec)
    made = play(study, spec, lambda trial, before: failure if trial.number == 1 else None)
    died, again = made[1], made[2]
    assert again.fingerprint == died.fingerprint
    assert again.role is died.role
    assert again.trial.retry is not None
    assert (again.trial.retry.of, again.trial.retry.reason) == (1, failure.message)
    assert again.result.metrics
    assert [one.trial.retry for one in made if one.number != 2] == [None] * (len(made) - 1)
    assert row_of(again)["retry"] == {"of": 1, "reason": failure.message}
    assert "retry" not in row_of(died)
    assert launch_of(row_of(again)).trial == again.trial
    assert tables.again(again.trial) == " (again, after #1)"
    assert tables.again(died.trial) == ""
    outcome = outcome_of(study, spec)
    assert outcome.verdict is Verdict.BETTER
    assert outcome.left_out == []


def test_a_second_death_counts_and_what_is_left_out_is_named(study_of: Opens) -> None:
    spec = make_spec(launches=14, noise=0.02)
    study = study_of(spec)
    made = play(study, spec, lambda trial, before: DIED if trial.number in (1, 2) else None)
    assert made[1].fingerprint == made[2].fingerprint
    assert made[1].fingerprint not in {one.fingerprint for one in made[3:]}
    outcome = outcome_of(study, spec)
    assert outcome.left_out == [1, 2]
    assert "launches 1 and 2, which failed without an explanation" in sentences.said(
        "remaining", outcome
    )


def test_three_further_launches_a_study_and_as_many_after_its_budget_was_raised(
    study_of: Opens,
) -> None:
    spec = make_spec(launches=16, noise=0.02)
    study = study_of(spec)
    made = play(study, spec, lambda trial, before: KILLED if searched(trial) else None)
    retried = [one.number for one in made if one.trial.retry]
    assert len(retried) == 3
    outcome = outcome_of(study, spec)
    assert "failed without an explanation" in outcome.unconfirmed
    assert "no configuration is significantly better" not in "\n".join(sentences.brief(outcome))
    raised = make_spec(launches=32, noise=0.02, finals_from=len(made))
    study = study_of(raised)
    made = play(study, raised, lambda trial, before: None)
    taken_up = made[raised.finals_from :][:3]
    assert all(one.trial.retry for one in taken_up)
    assert all(one.result.metrics for one in taken_up)
    failed = {one.fingerprint for one in made[: raised.finals_from] if not one.result.metrics}
    assert failed.issuperset(one.fingerprint for one in taken_up)


def test_the_best_that_did_not_start_gets_another_launch_before_the_finals(study_of: Opens) -> None:
    spec = make_spec(launches=20, noise=0.02)
    best = max(SMALL.items, key=lambda one: ridge(one.configuration)).fingerprint
    study = study_of(spec)

    def fails(trial: Trial, before: list[Launch]) -> Failure | None:
        first = all(one.fingerprint != best for one in before)
        return AT_START if first and trial.configuration.fingerprint == best else None

    made = play(study, spec, fails)
    mine = [one for one in made if one.fingerprint == best]
    assert not mine[0].result.metrics
    assert mine[1].trial.retry is not None
    first_final = next(one.number for one in made if one.role is Role.FINAL)
    assert mine[1].number < first_final
    outcome = outcome_of(study, spec)
    assert outcome.recommended is not None
    assert outcome.recommended.fingerprint == best


def test_a_baseline_that_was_killed_is_launched_again(study_of: Opens) -> None:
    spec = make_spec(launches=12, noise=0.02)
    study = study_of(spec)
    made = play(study, spec, lambda trial, before: KILLED if trial.number == 0 else None)
    assert [one.role for one in made[:2]] == [Role.BASELINE, Role.BASELINE]
    assert made[1].trial.retry is not None
    assert outcome_of(study, spec).verdict is Verdict.BETTER


@pytest.mark.parametrize("repaired", [True, False])
def test_equal_crashes_in_a_row_are_the_nodes_if_one_of_them_runs_again(
    study_of: Opens, repaired: bool
) -> None:
    """A bad hour: launches 2 to 4 crash alike, the study stops, and is resumed."""
    spec = make_spec(launches=20, noise=0.02)
    study = study_of(spec)
    bad = range(2, 5)

    def hour(trial: Trial, before: list[Launch]) -> Failure | None:
        again = trial.configuration.fingerprint in {
            before[n].fingerprint for n in bad if n < len(before)
        }
        return AT_START if trial.number in bad or (again and not repaired) else None

    made = play(study, spec, hour)
    crashed = {made[n].fingerprint for n in bad}
    assert made[5].fingerprint == made[4].fingerprint
    assert made[5].trial.retry is not None
    launched_again = {one.fingerprint for one in made[5:]} & crashed
    history = study._history(study.launches)
    broke = {p for p in range(len(SMALL)) if history.broke(p)}
    if repaired:
        assert not broke
    else:
        assert len(broke) == 3
        assert len(launched_again) <= 3


def test_a_leader_that_crashes_twice_alike_in_a_bad_hour_still_wins(study_of: Opens) -> None:
    """It ran before: two equal crashes stop the study, and are not the leader's."""
    spec = make_spec(launches=16, noise=0.02)
    study = study_of(spec)
    crashes: list[int] = []

    def hour(trial: Trial, before: list[Launch]) -> Failure | None:
        if trial.role is Role.FINAL and len(crashes) < 2:
            crashes.append(trial.number)
            return AT_START
        return None

    made = play(study, spec, hour)
    assert crashes[1] == crashes[0] + 1
    outcome = outcome_of(study, spec)
    assert outcome.verdict is Verdict.BETTER
    assert outcome.recommended is not None
    assert outcome.recommended.fingerprint == made[crashes[0]].fingerprint


@pytest.mark.parametrize("runs_elsewhere", [True, False])
def test_equal_crashes_in_a_row_on_one_node_are_its_own_if_one_of_them_runs_elsewhere(
    study_of: Opens, runs_elsewhere: bool
) -> None:
    """Launches of node `a`, among which those of node `b` run."""
    spec = make_spec(launches=24, noise=0.02)
    study = study_of(spec)
    crashed: list[Launch] = []
    while len(crashed) < IN_A_ROW:
        trial = study.ask(["a", "b"])
        assert trial is not None
        node = trial.node or "ab"[trial.number % 2]
        launch = evaluate(spec, ridge, trial)
        if trial.role is Role.SEARCH and node == "a":
            crashed.append(
                launch := Launch(trial, TrialResult(State.FAILED, Evidence.MEASURED, AT_START))
            )
        study.tell(Launch(trial, replace(launch.result, node=node)))
    assert len({one.number for one in crashed}) < 1 + crashed[-1].number - crashed[0].number
    again = study.ask(["b"])
    assert again is not None
    assert (again.configuration.fingerprint, again.retry is not None) == (
        crashed[-1].fingerprint,
        True,
    )
    ran = evaluate(spec, ridge, again) if runs_elsewhere else crashed[-1]
    study.tell(Launch(again, replace(ran.result, node="b")))
    history = study._history(study.launches)
    broke = {p for p in range(len(SMALL)) if history.broke(p)}
    assert len(broke) == (0 if runs_elsewhere else IN_A_ROW)
