"""Launches with random weights: they rank candidates for the search, and are told nowhere as
throughput."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from autotune.base.evidence import Evidence
from autotune.engines.command import Command, Configuration
from autotune.engines.enumeration import Candidate
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.tuner.backends import ValidatedEvaluator
from autotune.tuner.recommend import recommend
from autotune.tuner.replay.table import read_table
from autotune.tuner.search import objective
from autotune.tuner.search.decide.verdict import best_so_far
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.gp.kernels import Encoding, Kernels
from autotune.tuner.search.gp.posterior import Posterior
from autotune.tuner.search.history import History
from autotune.tuner.search.priors.sources import sources_of
from autotune.tuner.search.screen import Ranked, screen_of, shared
from autotune.tuner.search.study import Study
from autotune.tuner.study.results import launch_of, read_launches, row_of
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import (
    best_of,
    decisions,
    evaluate,
    grid,
    make_spec,
    opened,
    ridge,
)

GRID = grid()
Change = Callable[[Configuration], float]
"""Factor of random weights on the throughput of a configuration."""


def launched(
    spec: StudySpec, trial: Trial, change: Change, start_s: float = 60.0, full_s: float = 200.0
) -> Launch:
    """A launch; with random weights it starts in `start_s` instead of `full_s`."""
    launch = evaluate(spec, ridge, trial)
    if trial.role is not Role.RANDOM_WEIGHTS:
        return replace(
            launch, result=replace(launch.result, times_s={"launch": full_s, "load": 100.0})
        )
    factor, result = change(trial.configuration), launch.result
    metrics = {w: {m: v * factor for m, v in row.items()} for w, row in result.metrics.items()}
    return replace(
        launch,
        result=replace(
            result, metrics={}, ranking=metrics, times_s={"launch": start_s, "load": 100.0}
        ),
    )


def play(
    folder: Path, change: Change, start_s: float = 60.0, full_s: float = 200.0, **asked: float
) -> tuple[StudySpec, list[Launch], Study]:
    spec = make_spec(noise=0.02, screened=("vllm", "sglang"), **asked)
    study = opened(folder, spec, GRID)
    while (trial := study.ask()) is not None:
        study.tell(launched(spec, trial, change, start_s, full_s))
    study.close()
    return spec, list(study.launches), study


def cheap(launches: list[Launch]) -> list[Launch]:
    return [x for x in launches if x.trial.role is Role.RANDOM_WEIGHTS]


def test_a_study_ranks_by_random_weights_and_recommends_by_real_ones(tmp_path: Path) -> None:
    spec, launches, study = play(tmp_path, lambda _: 1.3)
    assert len(cheap(launches)) >= 8
    outcome = recommend(spec, GRID, launches, (), study.stop_reason)
    assert outcome.recommended is not None
    assert outcome.baseline is not None
    # A figure with random weights in it would be 30 % too high.
    assert outcome.recommended.objective.value == pytest.approx(best_of(GRID, ridge), rel=0.05)
    chosen = [
        x for x in launches if x.trial.configuration.fingerprint == outcome.recommended.fingerprint
    ]
    assert any(x.trial.role is not Role.RANDOM_WEIGHTS for x in chosen)
    assert all(objective.scores_of(spec, x.result).value is None for x in cheap(launches))
    reached = max(value for _, value in best_so_far(spec, launches))
    assert reached < 1.1 * best_of(GRID, ridge)
    assert outcome.study_cost is not None
    hours = outcome.study_cost.node_hours_by_fidelity
    assert sum(hours.values()) == pytest.approx(outcome.study_cost.node_hours)
    assert hours["random_weights"] == pytest.approx(len(cheap(launches)) * 160 / 3600)
    assert len(launches) <= spec.launches, "they count towards the budget"
    assert f"({len(cheap(launches))} of them with random weights)" in outcome.stop_reason


def test_the_control_ends_it_where_the_start_is_hardly_shorter(tmp_path: Path) -> None:
    spec, launches, study = play(tmp_path, lambda _: 1.0, start_s=190.0)
    assert len(cheap(launches)) == 1
    assert len(launches) == spec.launches + 1
    why = recommend(spec, GRID, launches, (), study.stop_reason).stop_reason
    assert "a launch with random weights is not much shorter (290 s instead of 300 s)" in why
    assert "the budget of 30 launches is used (and 1 more with random weights)" in why


def test_no_control_where_the_baseline_started_too_soon_to_save_much(tmp_path: Path) -> None:
    """All but 120 s of a start may be the reading of weights: 30 s of 250 are not worth it."""
    spec, launches, _ = play(tmp_path, lambda _: 1.0, start_s=10.0, full_s=150.0)
    assert not cheap(launches)
    assert len(launches) == spec.launches


def test_a_start_with_compiled_kernels_is_not_taken_for_one_without_weights(tmp_path: Path) -> None:
    """Every second start of a command is short, whatever its weights: only what is new with random
    weights tells."""
    spec, seen = make_spec(noise=0.02, screened=("vllm", "sglang")), set[str]()
    study = opened(tmp_path, spec, GRID)
    while (trial := study.ask()) is not None:
        start_s = 60.0 if trial.configuration.fingerprint in seen else 250.0
        seen.add(trial.configuration.fingerprint)
        study.tell(launched(spec, trial, lambda _: 1.0, start_s, start_s))
    study.close()
    assert (
        "not much shorter"
        in recommend(spec, GRID, study.launches, (), study.stop_reason).stop_reason
    )
    assert len(cheap(list(study.launches))) < 6


def test_the_first_candidates_launched_both_ways_have_different_layouts(tmp_path: Path) -> None:
    _, launches, _ = play(tmp_path, lambda _: 1.1)
    ranked = {x.trial.configuration.fingerprint: x.trial.configuration for x in cheap(launches)}
    full = dict.fromkeys(
        x.trial.configuration.fingerprint
        for x in launches
        if x.trial.role is not Role.RANDOM_WEIGHTS
    )
    both = [ranked[name].layout for name in full if name in ranked]
    layouts = {configuration.layout for configuration in ranked.values()}
    assert len(set(both[:4])) == min(4, len(layouts))


def test_the_finals_have_their_hours(tmp_path: Path) -> None:
    """What is left of the hours is counted in launches with weights, which take twice as long
    here."""
    _, launches, _ = play(tmp_path, lambda _: 1.1, hours=1.5)
    assert cheap(launches)
    assert sum(x.result.seconds for x in launches) <= 1.5 * 3600
    assert len([x for x in launches if x.trial.role is Role.FINAL]) >= 3


def test_the_control_ends_it_where_random_weights_do_not_rank(tmp_path: Path) -> None:
    def wild(configuration: Configuration) -> float:
        layout = repr(configuration.layout).encode()
        return math.exp(0.8 * float(np.random.default_rng(list(layout)).standard_normal()))

    spec, launches, study = play(tmp_path, wild)
    assert (
        "random weights rank badly"
        in recommend(spec, GRID, launches, (), study.stop_reason).stop_reason
    )
    history = History.from_launches(spec, GRID, launches)
    assert not history.screening.ranked, (
        "what was ranked before the control ended it counts for nothing"
    )
    assert len(cheap(launches)) < 10
    assert len(launches) == spec.launches + len(cheap(launches)), (
        "and takes no launch of the budget"
    )
    assert history.most_launches == len(launches), "as the terminal says"


LAYOUTS = ((8, -1), (4, 1), (2, -1), (1, 1))
"""Tensor parallelism of four layouts, and the direction in which random weights move each."""


@pytest.mark.parametrize(
    ("pairs", "moved", "ends"),
    [
        (2, 0.05, False),
        (3, 0.1, False),
        (3, 0.15, True),
        (4, 0.05, False),
        (4, 0.08, False),
        (4, 0.1, True),
    ],
)
def test_four_pairs_of_launches_must_rank_better_than_three(
    pairs: int, moved: float, ends: bool
) -> None:
    """What three pairs do not tell from noise ends the screen once four show it."""
    items = [Candidate(Configuration("vllm", {"tensor_parallel": tp}), "0.11") for tp, _ in LAYOUTS]
    full = [Entry(n, Role.SEARCH, n, 0.0, seconds=300.0, start_s=200.0) for n in range(pairs)]
    cheap = [
        Entry(10 + n, Role.RANDOM_WEIGHTS, n, moved * LAYOUTS[n][1], seconds=100.0, start_s=20.0)
        for n in range(pairs)
    ]
    found = screen_of(items, full, cheap)
    assert ("rank badly" in found.over) is ends
    assert found.trusted is not ends


def test_what_fails_with_random_weights_is_launched_with_its_own(tmp_path: Path) -> None:
    spec, failed = make_spec(noise=0.02, screened=("vllm", "sglang")), list[Trial]()
    study = opened(tmp_path, spec, GRID)
    for _ in range(12):
        trial = study.ask()
        assert trial is not None
        launch = launched(spec, trial, lambda _: 1.0)
        if trial.role is Role.RANDOM_WEIGHTS and len(cheap(list(study.launches))) == 2:
            failure = Failure(FailureKind.CRASHED, "NaN in the logits")
            launch = Launch(
                trial,
                TrialResult(
                    State.FAILED, launch.result.evidence, failure, times_s={"launch": 60.0}
                ),
            )
            failed.append(trial)
        elif failed:
            break
        study.tell(launch)
    study.close()
    assert trial is not None
    assert (trial.role, trial.configuration) == (Role.SEARCH, failed[0].configuration)


def test_an_engine_that_fails_with_random_weights_alone_has_its_own_from_then_on(
    tmp_path: Path,
) -> None:
    spec, failed = make_spec(noise=0.02, screened=("vllm", "sglang")), 0
    study = opened(tmp_path, spec, GRID)
    while (trial := study.ask()) is not None:
        launch = launched(spec, trial, lambda _: 1.0)
        if trial.role is Role.RANDOM_WEIGHTS:
            failed += 1
            failure = Failure(FailureKind.CRASHED, "expected scalar type Int but found Long")
            launch = Launch(
                trial,
                TrialResult(
                    State.FAILED, launch.result.evidence, failure, times_s={"launch": 60.0}
                ),
            )
        study.tell(launch)
    study.close()
    engines = {item.configuration.engine for item in GRID.items}
    assert 2 <= failed <= 2 * len(engines)
    assert [x.trial.role for x in study.launches][-1] is Role.FINAL


def test_a_killed_launch_is_made_again_with_the_same_weights(tmp_path: Path) -> None:
    _, whole, _ = play(tmp_path / "whole", lambda _: 1.1)
    spec = make_spec(noise=0.02, screened=("vllm", "sglang"))
    for _ in range(60):
        study = opened(tmp_path / "killed", spec, GRID)
        trial = study.ask()
        study.close()
        if trial is None:
            break
        study = opened(tmp_path / "killed", spec, GRID)
        again = study.ask()
        assert again == trial
        assert again is not None
        study.tell(launched(spec, again, lambda _: 1.1))
        study.close()
    made = read_launches(tmp_path / "killed" / "results.jsonl")
    assert decisions(made) == decisions(whole)
    assert [x.trial.role for x in made] == [x.trial.role for x in whole]


def test_a_row_without_the_key_has_its_weights(tmp_path: Path) -> None:
    _, launches, _ = play(tmp_path, lambda _: 1.0)
    row = row_of(launches[0])
    assert row.pop("fidelity") == "full"
    assert launch_of(row) == launches[0]


def test_nobody_else_reads_the_figures_of_random_weights(tmp_path: Path) -> None:
    _, launches, _ = play(tmp_path, lambda _: 1.3)
    text = (tmp_path / "results.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert all(
        row["ranking"] and not row["metrics"] for row in rows if row["fidelity"] == "random_weights"
    )
    assert not any("ranking" in row for row in rows if row["fidelity"] == "full")
    full = len(launches) - len(cheap(launches))
    learned = sources_of(make_spec(sources=(str(tmp_path / "results.jsonl"),)), tmp_path / "new")
    assert len(learned[0].observations) == full
    (tmp_path / "rows.jsonl").write_text(text)
    assert len(read_table(tmp_path / "rows.jsonl", Library()).rows) == full


def test_an_evaluator_sets_the_figures_of_random_weights_apart() -> None:
    spec, trial = (
        make_spec(),
        Trial(
            0,
            Role.RANDOM_WEIGHTS,
            GRID.items[0].configuration,
            "0.11",
            Command(("vllm",)),
            ("chat",),
        ),
    )
    measured = evaluate(spec, ridge, replace(trial, role=Role.SEARCH)).result

    @dataclass
    class Gives:
        result: TrialResult
        evidence: Evidence = Evidence.SIMULATED

        def __call__(self, trial: Trial) -> TrialResult:
            return self.result

    apart = ValidatedEvaluator(Gives(measured), spec)(trial)
    assert not apart.metrics
    assert (
        apart.ranking["chat"]["total_token_throughput"]
        == measured.metrics["chat"]["total_token_throughput"]
    )
    assert ValidatedEvaluator(Gives(apart), spec)(trial) == apart, "as a recorded launch has it"


def test_random_weights_rank_and_set_no_level() -> None:
    """Fifteen launches with random weights, all 40 % too fast, and two with both: the level is that
    of real weights."""
    truth = np.array([math.log(ridge(item.configuration)) for item in GRID.items])
    rng = np.random.default_rng(0)
    both, more = [GRID.baseline, GRID.starts[0]], rng.choice(len(GRID), 15, replace=False).tolist()
    rows = [
        Ranked(p, truth[p] + 0.34, GRID.items[p].configuration.layout, 0.05) for p in (*both, *more)
    ]
    apart = np.zeros((len(both) + len(rows),) * 2)
    apart[len(both) :, len(both) :] = shared(rows)
    positions, scores = (
        [*both, *(one.position for one in rows)],
        [*truth[both], *(one.score for one in rows)],
    )
    model = Posterior(Kernels(Encoding(GRID)), positions, scores, extra_covariance=apart)
    found = model.mean(np.array(more, dtype=np.int64))
    assert np.abs(found - truth[more]).mean() < 0.1
    assert np.corrcoef(found, truth[more])[0, 1] > 0.9
