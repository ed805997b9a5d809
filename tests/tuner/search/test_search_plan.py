"""The order of launches, and the budget."""

import math
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.evidence import Evidence
from autotune.engines.command import Configuration
from autotune.engines.enumeration import CandidateSet
from autotune.engines.failure import Failure, FailureKind
from autotune.tuner.recommend import recommend
from autotune.tuner.search.budget import LEAST_FINALS, before_finals, search_ends
from autotune.tuner.search.decide.simplify import difference, drop_unlikely
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.posterior import Posterior
from autotune.tuner.search.history import History
from autotune.tuner.search.spread import Effect
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import (
    Throughput,
    command_of,
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

GRID, SMALL = grid(), small()


def run(
    spec: StudySpec, candidates: CandidateSet, throughput: Throughput
) -> tuple[list[Launch], str]:
    with tempfile.TemporaryDirectory() as folder:
        study = opened(Path(folder), spec, candidates)
        launches = play(study, spec, throughput)
        study.close()
    return launches, study.stop_reason


@settings(max_examples=10, deadline=None)
@given(
    launches=st.integers(1, 26),
    noise=st.sampled_from([0.0, 0.1]),
    node=st.sampled_from([ridge, walled, flat]),
)
def test_the_budget_holds_and_the_finals_get_their_share(
    launches: int, noise: float, node: Throughput
) -> None:
    made, reason = run(make_spec(launches=launches, noise=noise), SMALL, node)
    assert len(made) <= launches
    assert reason
    roles = [x.trial.role for x in made]
    assert roles[0] is Role.BASELINE
    assert Role.BASELINE not in roles[1:]
    assert [x.trial.number for x in made] == list(range(len(made)))
    finals = roles.count(Role.FINAL)
    assert roles[len(roles) - finals :] == [Role.FINAL] * finals
    # Behind the wall there may be nothing to put to the test for a while, and the search goes on.
    assert node is walled or len(made) - finals <= before_finals(launches, LEAST_FINALS)
    assert node is walled or len(made) < 4 or finals >= 2
    tried = [
        x.trial.configuration.fingerprint
        for x in made
        if x.trial.role in (Role.DEFAULT, Role.START)
    ]
    assert len(set(tried)) == len(tried), "what is launched again has no other name than search"


@pytest.mark.parametrize(
    ("gain", "again", "finals"),
    [
        (0.0, 0.03, 11),
        (0.15, 0.03, 4),
        (0.5, 0.03, 3),
        (0.5, 0.3, 11),
        (0.2, None, 12),
        (0.5, None, 6),
        (0.8, None, 3),
    ],
)
def test_a_clear_gain_needs_fewer_launches_of_the_finals(
    gain: float, again: float | None, finals: int
) -> None:
    """Two standard deviations of a launch may be luck; they may be 10 % each where nothing was
    launched again."""
    entries = [Entry(n, Role.SEARCH, n, gain if n == 3 else 0.0, violations={}) for n in range(10)]
    if again is not None:
        entries.append(Entry(10, Role.SEARCH, 0, again, violations={}))
    assert search_ends(History(make_spec(launches=30), GRID, tuple(entries)), 30) == 30 - finals
    explained = History(make_spec(launches=30, explain="measured"), GRID, tuple(entries))
    assert search_ends(explained, 30) == 30 - min(finals + 7, 12), (
        "a quarter for that, and 40 % at most for all"
    )


@pytest.mark.parametrize(
    ("launches", "again", "finals"), [(60, 0.03, 12), (60, 0.1, 16), (60, 0.3, 23), (30, 0.3, 11)]
)
def test_the_finals_have_more_launches_where_repeats_vary(
    launches: int, again: float, finals: int
) -> None:
    """As many as show 10 %, and at most 40 % of the budget for them and the repeat."""
    entries = [Entry(n, Role.SEARCH, n, 0.0, violations={}) for n in range(7)]
    entries.append(Entry(7, Role.CONTROL, 0, again, violations={}))
    history = History(make_spec(launches=launches), GRID, tuple(entries))
    assert search_ends(history, launches) == launches - finals


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.15])
def test_a_study_says_before_launch_10_what_it_cannot_show_on_a_noisy_node(
    tmp_path: Path, noise: float
) -> None:
    spec = make_spec(noise=noise, launches=30)
    study = opened(tmp_path, spec, GRID)
    said = []
    while (trial := study.ask()) is not None and len(said) < 10:
        study.tell(evaluate(spec, flat, trial))
        said.append("; ".join(study.changes))
    study.close()
    roles = [x.trial.role for x in study.launches]
    assert roles.index(Role.CONTROL) == 6, "a repeat says how much launches vary"
    assert not any(said[:6])
    found = [
        re.fullmatch(
            r"launches of one command vary by (\d+) % \(standard deviation\): 12 launches of the finals detect gains "
            r"above (\d+) %; 10 % needs --launches (\d+)",
            one,
        )
        for one in said[6:]
    ]
    assert [one is not None for one in found] == [noise > 0.1] * 4
    assert len(set(said[6:])) == 1, "it is said once"


@pytest.mark.parametrize(("launches", "roles"), [(1, ["baseline"]), (2, ["baseline", "search"])])
def test_the_smallest_budgets_try_what_they_can_and_say_that_it_is_too_little(
    launches: int, roles: list[str]
) -> None:
    made, reason = run(make_spec(launches=launches), CandidateSet(SMALL.items, 0), ridge)
    assert [x.trial.role.value for x in made] == roles
    outcome = recommend(make_spec(launches=launches), SMALL, made, (), reason)
    assert (outcome.verdict, outcome.gain_percent) == (Verdict.INDISTINGUISHABLE, 0)
    assert outcome.stop_reason.startswith(
        f"the budget of {launches} launches is used; too few launches"
    )


def test_only_the_baseline_has_a_fixed_place_and_the_finals_measure_every_workload() -> None:
    """The engines' defaults and the good starts are poor here, so none of them is worth a
    launch."""
    spec = make_spec(workloads=("chat", "long"), noise=0.02)
    made, reason = run(spec, GRID, ridge)
    assert not {x.trial.role for x in made} & {Role.DEFAULT, Role.START}
    for launch in made:
        everything = launch.trial.role in (Role.BASELINE, Role.FINAL)
        assert launch.trial.workloads == (("chat", "long") if everything else ("chat",))
    # As long as a value was not tried beside the best, the search does not end early.
    assert reason == "the budget of 30 launches is used"


def test_a_finalist_and_the_baseline_take_turns_on_fresh_launches() -> None:
    made, _ = run(make_spec(noise=0.1, launches=24), SMALL, flat)
    finals = [
        SMALL.position(x.trial.configuration.fingerprint)
        for x in made
        if x.trial.role is Role.FINAL
    ]
    (finalist,) = set(finals) - {0}
    # A last launch without its partner is the finalist's.
    whole, odd = len(finals) // 2 * 2, len(finals) % 2
    assert finals == ([finalist, 0, 0, finalist] * 6)[:whole] + [finalist] * odd
    for position in (0, finalist):
        rows = [x for x in made if x.trial.configuration == SMALL.items[position].configuration]
        assert [x.trial.launch_index for x in rows] == list(range(len(rows)))


def test_the_baseline_is_launched_again_in_a_long_search() -> None:
    made, _ = run(make_spec(noise=0.03, launches=36, sampler="random"), SMALL, flat)
    assert [x.trial.number for x in made if x.trial.role is Role.CONTROL] == [6, 16]


@pytest.mark.parametrize("seed", range(3))
def test_a_search_that_can_afford_every_candidate_launches_every_one_and_the_best_again(
    seed: int,
) -> None:
    """One of 12 is 10 % faster, by no knob: the model expects nothing of what it did not launch."""
    twelve = CandidateSet(SMALL.items[:12], 0)
    best = twelve.items[1 + 4 * seed].fingerprint

    def throughput(configuration: Configuration) -> float:
        return 1100.0 if configuration.fingerprint == best else 1000.0

    spec = make_spec(noise=0.03, launches=34, seed=seed)
    made, reason = run(spec, twelve, throughput)
    search = [x.trial.configuration.fingerprint for x in made if x.trial.role is not Role.FINAL]
    assert set(search) == {item.fingerprint for item in twelve.items}
    again = Counter(search)
    assert max(again[item.fingerprint] for item in twelve.items[1:]) in (2, 3)
    assert [x.trial.role for x in made].index(Role.FINAL) <= 34 - 12
    found = recommend(spec, twelve, made, (), reason)
    assert (found.verdict, found.recommended and found.recommended.fingerprint) == (
        Verdict.BETTER,
        best,
    )


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


@pytest.mark.parametrize(
    ("failures", "launches"),
    [
        ([(FailureKind.CRASHED, "kernel 12 failed at 0x7f")], 5),
        (
            [
                (FailureKind.CRASHED, "kernel 12 failed at 0x7f"),
                (FailureKind.CRASHED, "no module named 'x'"),
            ],
            12,
        ),
        ([(FailureKind.UNSUPPORTED, "no"), (FailureKind.BAD_ARGUMENT, "no")], 12),
        (
            [
                (FailureKind.OUT_OF_MEMORY, "CUDA"),
                (FailureKind.OUT_OF_MEMORY, "No available memory"),
            ],
            10,
        ),
    ],
)
def test_a_study_stops_where_every_launch_fails_for_one_cause(
    tmp_path: Path, failures: list[tuple[FailureKind, str]], launches: int
) -> None:
    study = opened(tmp_path, make_spec(launches=12), GRID)
    while (trial := study.ask()) is not None:
        kind, line = failures[trial.number % len(failures)]
        failure = Failure(kind, f"launch {trial.number}", line.replace("12", str(trial.number)))
        study.tell(Launch(trial, TrialResult(State.FAILED, Evidence.SIMULATED, failure)))
    study.close()
    assert len(study.launches) == launches
    assert (f"all {launches} launches failed for one cause" in study.stop_reason) == (launches < 12)


def test_a_study_goes_on_where_something_ran() -> None:
    base = GRID.baseline_candidate.configuration
    made, reason = run(make_spec(launches=12), GRID, lambda c: ridge(c) if c == base else None)
    assert len(made) == 12
    assert "one cause" not in reason


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


@pytest.mark.parametrize(
    ("crashes", "kind", "evidence", "roles"),
    [
        ({0}, FailureKind.CRASHED, Evidence.MEASURED, 2),
        ({0, 1}, FailureKind.CRASHED, Evidence.MEASURED, 2),
        ({0}, FailureKind.CRASHED, Evidence.REPLAYED, 2),
        ({0}, FailureKind.BAD_ARGUMENT, Evidence.MEASURED, 1),
        ({0}, FailureKind.CRASHED, Evidence.SIMULATED, 1),
    ],
)
def test_a_baseline_that_crashed_is_launched_once_more(
    tmp_path: Path, crashes: set[int], kind: FailureKind, evidence: Evidence, roles: int
) -> None:
    """What is simulated, and what the command line is to blame for, would fail again."""
    spec = make_spec(noise=0.02, launches=12)
    study = opened(tmp_path, spec, SMALL)
    while (trial := study.ask()) is not None:
        launch = evaluate(spec, ridge, trial)
        result = replace(launch.result, evidence=evidence)
        if trial.number in crashes:
            result = TrialResult(State.FAILED, evidence, Failure(kind, "it died"))
        study.tell(Launch(trial, result))
    study.close()
    made = study.launches
    assert [x.trial.role for x in made].count(Role.BASELINE) == roles
    result = recommend(spec, SMALL, made, (), study.stop_reason)
    opposed = roles == 2 and crashes == {0}
    assert result.verdict is (Verdict.BETTER if opposed else Verdict.UNOPPOSED)
    assert (result.baseline is not None) == opposed


def test_a_baseline_that_crashes_in_the_finals_still_stands() -> None:
    spec = make_spec()
    ran = [Entry(0, Role.BASELINE, 0, 1.0), Entry(1, Role.SEARCH, 3, 2.0)]
    ran += [Entry(number, Role.FINAL, 0, broke=True, may_pass=True) for number in (2, 3, 4)]
    rows = [evaluate(spec, ridge, _trial(entry)) for entry in ran[:2]]
    crash = TrialResult(State.FAILED, Evidence.MEASURED, Failure(FailureKind.LOAD_ERRORS, "503"))
    for crashes in (1, 2):
        history = History.from_launches(
            spec, SMALL, [*rows, *(Launch(_trial(entry), crash) for entry in ran[2:][:crashes])]
        )
        assert not history.broke(0)
        assert [entry.uninformative for entry in history.at(0)] == [False, *[True] * crashes]
    thrice = History.from_launches(
        spec, SMALL, [*rows, *(Launch(_trial(entry), crash) for entry in ran[2:])]
    )
    assert thrice.broke(0)


def test_one_crash_of_a_finalist_that_ran_says_nothing() -> None:
    spec = make_spec()
    ran = [
        Entry(0, Role.BASELINE, 0),
        Entry(1, Role.SEARCH, 3),
        Entry(2, Role.FINAL, 3),
        Entry(3, Role.FINAL, 3),
    ]
    rows = [evaluate(spec, ridge, _trial(entry)) for entry in ran[:2]]

    def after(crashes: int, kind: FailureKind, evidence: Evidence) -> list[Launch]:
        failed = TrialResult(State.FAILED, evidence, Failure(kind, "it died"))
        return [*rows, *(Launch(_trial(entry), failed) for entry in ran[2:][:crashes])]

    once = after(1, FailureKind.CRASHED, Evidence.MEASURED)
    assert [entry.uninformative for entry in History.from_launches(spec, SMALL, once).at(3)] == [
        False,
        True,
    ]
    for launches in (
        after(2, FailureKind.CRASHED, Evidence.MEASURED),
        after(1, FailureKind.OUT_OF_MEMORY, Evidence.MEASURED),
        after(1, FailureKind.CRASHED, Evidence.SIMULATED),
        [rows[0], *after(1, FailureKind.CRASHED, Evidence.MEASURED)[2:]],
    ):
        assert History.from_launches(spec, SMALL, launches).broke(3)


def test_a_finalist_that_crashed_once_may_win_and_the_crash_is_told(tmp_path: Path) -> None:
    spec = make_spec(noise=0.02, launches=12)
    study, crashed = opened(tmp_path, spec, SMALL), False
    while (trial := study.ask()) is not None:
        result = replace(evaluate(spec, ridge, trial).result, evidence=Evidence.MEASURED)
        if (
            not crashed
            and trial.role is Role.FINAL
            and trial.configuration != SMALL.items[0].configuration
        ):
            crashed = True
            result = TrialResult(
                State.FAILED, Evidence.MEASURED, Failure(FailureKind.LOAD_ERRORS, "503")
            )
        study.tell(Launch(trial, result))
    study.close()
    outcome = recommend(spec, SMALL, study.launches, (), study.stop_reason)
    assert crashed
    assert outcome.verdict is Verdict.BETTER
    assert "1 of 3 launches of the recommended command failed (load_errors)" in outcome.stop_reason


def test_the_finals_of_a_small_budget_are_for_a_plain_command_and_for_the_leader_where_it_does_not_start() -> (
    None
):
    """One setting adds anything; after so few launches the leader has more."""
    spec = make_spec(noise=0.03, launches=8, seed=3)

    def by_tokens(one: Configuration) -> float:
        return 1500.0 if one.knobs["max_batched_tokens"] == 8192 else 1000.0

    def played(throughput: Throughput) -> tuple[set[int], list[int], Recommendation]:
        made, reason = run(spec, SMALL, throughput)
        finals = [
            SMALL.position(x.trial.configuration.fingerprint)
            for x in made
            if x.trial.role is Role.FINAL
        ]
        searched = {SMALL.position(x.trial.configuration.fingerprint) for x in made[: -len(finals)]}
        return searched, finals, recommend(spec, SMALL, made, (), reason)

    searched, (shorter, *_), found = played(by_tokens)
    assert shorter not in searched
    assert (found.verdict, found.recommended and found.recommended.config) == (
        Verdict.BETTER,
        SMALL.items[shorter].configuration.knobs,
    )
    fails = SMALL.items[shorter].configuration
    searched, finals, found = played(lambda one: None if one == fails else by_tokens(one))
    assert finals[0] == shorter
    assert finals[1] in searched
    assert (found.verdict, found.recommended and found.recommended.config) == (
        Verdict.BETTER,
        SMALL.items[finals[1]].configuration.knobs,
    )


@dataclass
class Alike:
    """A posterior that expects the same of each setting: these gains, as likely as each other."""

    gains: Sequence[float]

    def leads(self, leader: int, others: Sequence[int]) -> list[Effect]:
        base, values = SMALL.baseline_candidate.configuration, np.array(self.gains)
        weights = np.full(len(values), 1 / len(values))
        mine, *theirs = (
            len(difference(SMALL.items[p].configuration, base)) for p in (leader, *others)
        )
        return [Effect(weights, (mine - n) * values, 1e-4 * weights) for n in theirs]


@pytest.mark.parametrize(
    ("gains", "leave"),
    [
        ((0.0051,), 0),
        ((0.003,), 1),  # two together are 0.6 %
        ((0.0,), 2),  # what is left is one step from the baseline
        ((0.001, 0.001, 0.1, 0.1, 0.1), 0),
        ((0.0, 0.0, 0.0, 0.1, 0.1), 2),  # 4 % are expected, with odds of 0.4
        ((0.006, 0.006, 0.006, -0.1, -0.1), 2),  # odds of 0.6, and a loss is expected
    ],
)
def test_settings_leave_below_half_a_percent_or_even_odds_as_far_as_they_are_so_together(
    gains: Sequence[float], leave: int
) -> None:
    baseline = SMALL.baseline_candidate.configuration
    changed = [SMALL.position(one.configuration.fingerprint) for one in SMALL.items]
    command = next(
        p for p in changed if len(difference(SMALL.items[p].configuration, baseline)) == 3
    )
    history = History.from_launches(make_spec(), SMALL, ())
    shorter = drop_unlikely(history, cast(Posterior, Alike(gains)), command, lambda _: True)
    assert len(difference(SMALL.items[shorter].configuration, baseline)) == 3 - leave


def _trial(entry: Entry) -> Trial:
    item = SMALL.items[entry.position]
    return Trial(entry.number, entry.role, item.configuration, "0.11", command_of(item), ("chat",))


def test_hours_bound_the_time() -> None:
    spec = make_spec(hours=1.0, noise=0.02)
    made, reason = run(spec, GRID, ridge)
    # 300 s per launch: twelve fit into the hour, and three of them are the finals' as the gain is
    # clear.
    assert 9 + 2 <= len(made) <= 12
    assert [x.trial.role is Role.FINAL for x in made].index(True) == 9
    assert reason


def test_a_measurement_that_says_nothing_is_made_again() -> None:
    spec = make_spec(launches=12, noise=0.02)

    def spoiled(trial: Trial) -> Launch:
        launch = evaluate(spec, ridge, trial)
        if trial.number not in (0, 3):
            return launch
        if trial.number == 0:
            return Launch(trial, TrialResult(State.INVALID, Evidence.SIMULATED))
        return Launch(
            trial,
            TrialResult(
                State.FAILED, Evidence.SIMULATED, Failure(FailureKind.INFRASTRUCTURE, "node lost")
            ),
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


@pytest.mark.parametrize("metric", [math.nan, math.inf, -5.0, 0.0])
def test_a_figure_that_cannot_be_a_throughput_never_reaches_the_model(metric: float) -> None:
    spec = make_spec()
    trial = Trial(
        0,
        Role.BASELINE,
        SMALL.items[0].configuration,
        "0.11",
        command_of(SMALL.items[0]),
        ("chat",),
    )
    result = TrialResult(
        State.COMPLETE, Evidence.MEASURED, metrics={"chat": {"total_token_throughput": metric}}
    )
    (entry,) = History.from_launches(spec, SMALL, [Launch(trial, result)])
    assert entry.uninformative
    assert entry.score is None


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
    roles = [x.trial.role for x in study.launches]
    assert 2 <= roles.count(Role.FINAL) == len(roles) - roles.index(Role.FINAL)
    named = [x.trial.configuration.fingerprint for x in study.launches[:10]]
    assert len(set(named)) == len(named)
    study.close()


def test_the_same_seed_decides_the_same() -> None:
    spec = make_spec(noise=0.03, seed=3, launches=14)
    one, _ = run(spec, GRID, walled)
    two, _ = run(spec, GRID, walled)
    assert decisions(one) == decisions(two)


def recipes_launched(
    launches: int, recipes: dict[int, str], throughput: Throughput = ridge
) -> list[tuple[int, int]]:
    """Number and position of the launches of recipes."""
    candidates = replace(SMALL, recipes=recipes)
    made, _ = run(make_spec(launches=launches), candidates, throughput)
    rows = [(x.trial.number, SMALL.position(x.trial.configuration.fingerprint)) for x in made]
    assert all(made[n].trial.role is Role.START for n, p in rows if p in recipes and n == 1)
    return [row for row in rows if row[1] in recipes and row[1] != 0]


def test_one_recipe_is_launched_behind_the_baseline() -> None:
    """Position 4 is poor, so that nothing but its name is a reason to launch it."""
    assert recipes_launched(24, {0: "the baseline's", 4: "tuned"}) == [(1, 4)]
    assert recipes_launched(24, {}) == []


def test_a_recipe_that_fails_costs_one_launch() -> None:
    fails = {SMALL.items[4].configuration, SMALL.items[5].configuration}
    made = recipes_launched(
        24, {4: "one", 5: "other"}, lambda one: None if one in fails else ridge(one)
    )
    assert made == [(1, 4)], "of one engine's the first"


def test_a_small_budget_has_no_launch_for_a_recipe() -> None:
    """The search has eight launches of 11 with the baseline's, and nine of 12."""
    assert [recipes_launched(n, {4: "tuned"})[:1] for n in (11, 12)] == [[], [(1, 4)]]
