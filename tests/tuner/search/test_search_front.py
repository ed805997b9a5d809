"""Two goals: what a front is worth, what is expected to enlarge it, and a study that looks for
it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.tuner.recommend import recommend
from autotune.tuner.search.acquisition import suggest
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.front import (
    dominated,
    expected_growth,
    non_dominated,
    reference_point,
    suggest_front,
)
from autotune.tuner.search.gp.kernels import Encoding, Kernels, one_thread
from autotune.tuner.search.history import History
from autotune.tuner.trial import Launch, Role
from tests.tuner.search.search_landscapes import evaluate, make_spec, opened, play, ridge, small

Point = tuple[float, float]
_coordinate = st.floats(-2, 2).map(lambda x: round(x, 3))
_points = st.lists(st.tuples(_coordinate, _coordinate), min_size=1, max_size=6)
_spread = st.floats(0.01, 1.5)


def growth(mean: Point, sd: Point, front: np.ndarray) -> float:
    one, two = ([(1.0, np.array([m]), np.array([s]))] for m, s in zip(mean, sd, strict=True))
    return float(expected_growth(one, two, front, reference_point(front))[0])


def area(front: np.ndarray, reference: np.ndarray) -> float:
    """What lies below a front, which rises in its first coordinate, and above the reference
    point."""
    return float(np.diff(front[:, 0], prepend=reference[0]) @ (front[:, 1] - reference[1]))


def grown(front: np.ndarray, point: Point) -> float:
    """By how much a point enlarges the area, by drawing the staircase anew."""
    reference = reference_point(front)
    inside = np.maximum(np.array(point), reference)
    return area(non_dominated(np.vstack([front, inside])), reference) - area(front, reference)


@given(_points)
def test_a_front_is_what_nothing_beats(points: list[Point]) -> None:
    beaten = {p for p in points for q in points if p != q and q[0] >= p[0] and q[1] >= p[1]}
    assert {tuple(p) for p in non_dominated(np.array(points)).tolist()} == set(points) - beaten
    assert dominated(np.array(points)).tolist() == [p in beaten for p in points]


@given(_points, st.tuples(_coordinate, _coordinate))
def test_what_is_certain_is_the_area_itself(points: list[Point], mean: Point) -> None:
    front = non_dominated(np.array(points))
    assert growth(mean, (1e-7, 1e-7), front) == pytest.approx(grown(front, mean), abs=1e-5)


@given(_points, st.tuples(_coordinate, _coordinate), st.tuples(_spread, _spread))
@settings(max_examples=10)
def test_the_expectation_is_that_of_many_draws(points: list[Point], mean: Point, sd: Point) -> None:
    front = non_dominated(np.array(points))
    draws = np.array(mean) + np.array(sd) * np.random.default_rng(1).standard_normal((200, 2))
    each = np.array([grown(front, (float(one), float(two))) for one, two in draws])
    # Where an example rests on a few draws of many, their own spread says little.
    error = max(float(each.std()), 0.05) / np.sqrt(len(each))
    assert growth(mean, sd, front) == pytest.approx(each.mean(), abs=5 * error)


@given(
    _points,
    st.tuples(_coordinate, _coordinate),
    st.tuples(_spread, _spread),
    st.floats(0, 1),
    st.booleans(),
)
def test_more_is_never_worth_less(
    points: list[Point], mean: Point, sd: Point, more: float, first: bool
) -> None:
    front = non_dominated(np.array(points))
    better = (mean[0] + more, mean[1]) if first else (mean[0], mean[1] + more)
    assert growth(better, sd, front) >= growth(mean, sd, front) - 1e-12
    assert growth(mean, sd, front) >= 0


def shown(launch: Launch) -> Point:
    metrics = launch.result.metrics["chat"]
    return metrics["total_token_throughput"], metrics["mean_tpot_ms"]


def _trade() -> tuple[CandidateSet, np.ndarray]:
    """Batch sizes trade one goal for the other, along a bow; the rest only harms both. 96
    candidates."""
    knobs = [
        (batch, chunk, flag) for batch in range(12) for chunk in range(4) for flag in (False, True)
    ]
    items = [
        Candidate(
            Configuration("vllm", {"batch": 2**batch, "chunk": 2048 * 2**chunk, "flag": flag}), "1"
        )
        for batch, chunk, flag in knobs
    ]
    harm = [0.1 * (chunk - 2) ** 2 + 0.1 * flag for _, chunk, flag in knobs]
    goals = [
        (-0.015 * (11 - batch) ** 2 - h, -0.015 * batch**2 - h)
        for (batch, _, _), h in zip(knobs, harm, strict=True)
    ]
    return CandidateSet(tuple(items), 0), np.array(goals)


def covered(launches: int, both: bool, seed: int) -> float:
    """The share of the front's area that so many launches find."""
    candidates, truth = _trade()
    kernels, seen = Kernels(Encoding(candidates)), [0, 50]
    while len(seen) < launches:
        rows = [
            Entry(n, Role.SEARCH, p, *map(float, truth[p]), violations={})
            for n, p in enumerate(seen)
        ]
        known = History(make_spec(seed=seed), candidates, tuple(rows))
        found = (suggest_front if both else suggest)(kernels, known, len(seen))
        assert found is not None
        seen.append(found.position)
    front = non_dominated(truth)
    reference = reference_point(front)
    return area(non_dominated(np.maximum(truth[seen], reference)), reference) / area(
        front, reference
    )


def test_the_front_is_found_where_one_goal_alone_would_pass_it_by() -> None:
    with one_thread():
        both, alone = covered(16, both=True, seed=0), covered(16, both=False, seed=0)
    # The first launches are spread over the space whatever the goals.
    assert both > 0.95 > alone + 0.02, (both, alone)


def test_a_study_recommends_the_best_of_the_objective_beside_the_front(tmp_path: Path) -> None:
    candidates, spec = small(), make_spec(launches=12, noise=0.0, pareto="mean_tpot_ms", seed=3)
    study = opened(tmp_path / "s", spec, candidates)
    launches = play(study, spec, ridge)
    study.close()
    result = recommend(spec, candidates, launches)
    assert result.recommended is not None
    points = {p.fingerprint: (p.objective.value, p.second.value) for p in result.front}
    assert result.recommended.fingerprint in points
    measured = [shown(row) for row in launches]
    assert not [
        q for q in measured for v, t in points.values() if q[0] > v * 1.001 and q[1] < t * 0.999
    ]
    assert max(v for v, _ in points.values()) == pytest.approx(max(v for v, _ in measured))
    assert min(t for _, t in points.values()) == pytest.approx(min(t for _, t in measured))


def test_optuna_s_study_has_one_objective_and_the_second_goal_beside_it(tmp_path: Path) -> None:
    candidates, spec = small(), make_spec(launches=3, pareto="mean_tpot_ms")
    study = opened(tmp_path / "s", spec, candidates)
    launches = play(study, spec, ridge)
    study.close()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import load_study

    kept = load_study(
        study_name="toy",
        storage=JournalStorage(JournalFileBackend(str(tmp_path / "s/optuna.journal"))),
    )
    assert [t.value for t in kept.trials] == [shown(row)[0] for row in launches]
    assert [t.user_attrs["mean_tpot_ms"] for t in kept.trials] == [
        shown(row)[1] for row in launches
    ]


def test_two_at_a_time_are_not_the_same(tmp_path: Path) -> None:
    candidates, spec = small(), make_spec(launches=16, noise=0.0, pareto="mean_tpot_ms")
    study = opened(tmp_path / "s", spec, candidates)
    for _ in range(4):
        trial = study.ask()
        assert trial is not None
        study.tell(evaluate(spec, ridge, trial))
    asked = [trial for _ in range(3) if (trial := study.ask()) is not None]
    study.close()
    assert len({trial.configuration.fingerprint for trial in asked}) == 3
