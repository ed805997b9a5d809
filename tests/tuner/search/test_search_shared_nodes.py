"""Hours where launches run side by side, and launches that an interrupted study had on its
nodes."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.base.evidence import Evidence
from autotune.tuner.search.budget import capacity
from autotune.tuner.search.history import History
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import (
    Cluster,
    command_of,
    make_spec,
    opened,
    ridge,
    small,
)

SMALL = small()
MINUTES = 10


def launch(number: int, began_min: int, node: str, gpu_ids: str, evidence: Evidence) -> Launch:
    """One of ten minutes; a simulated one was over at once, by the clock."""
    candidate = SMALL.items[0]
    trial = Trial(
        number,
        Role.SEARCH,
        candidate.configuration,
        "0.11",
        command_of(candidate),
        ("chat",),
        node=node,
    )
    clock_s = 1e9 + (60 * began_min if evidence is Evidence.MEASURED else 0)
    return Launch(
        trial,
        TrialResult(
            State.COMPLETE,
            evidence,
            times_s={"ready": 20 * MINUTES, "load": 40 * MINUTES},
            node=node,
            gpu_ids=tuple(gpu_ids),
            started_at=datetime.fromtimestamp(clock_s, UTC).isoformat(timespec="milliseconds"),
        ),
    )


def allowed(evidence: Evidence, made: list[tuple[int, str, str]], hours: float) -> int:
    launches = [launch(number, *one, evidence) for number, one in enumerate(made)]
    return capacity(History.from_launches(make_spec(hours=hours, launches=99), SMALL, launches))


@pytest.mark.parametrize("evidence", [Evidence.MEASURED, Evidence.SIMULATED])
def test_hours_are_the_study_s_however_many_launches_run_side_by_side(evidence: Evidence) -> None:
    turns = range(0, 60, MINUTES)
    alone = [(begin, "a", "01234567") for begin in turns]
    assert allowed(evidence, alone, 2) == 12
    halves = [(begin, "a", gpus) for begin in turns for gpus in ("0123", "4567")]
    assert allowed(evidence, halves, 2) == 24
    assert allowed(evidence, halves, 1.1) == 12, "what would not end in time is not begun"
    joined = [*alone, *((begin, node, "01234567") for begin in (60, 70, 80) for node in "ab")]
    assert allowed(evidence, joined, 2) == 12 + 4, (
        "three turns are left, of one and a third launches so far"
    )
    left = [
        *((begin, node, "01234567") for begin in (0, 10, 20) for node in "ab"),
        *((b, "b", "0") for b in (30, 40)),
    ]
    assert allowed(evidence, left, 1) == 8 + 1


def test_the_night_in_which_a_study_was_not_resumed_is_not_its_time() -> None:
    made = [(begin, "a", "01234567") for begin in (0, 10, 20, 600, 610, 620)]
    assert allowed(Evidence.MEASURED, made, 2) == 12


def test_a_clock_that_is_set_back_makes_no_launches_run_side_by_side() -> None:
    for gpu_ids in ("01234567", ""):
        made = [(begin, "a", gpu_ids) for begin in (0, 10, 20, 5, 15, 25)]
        assert allowed(Evidence.MEASURED, made, 2) == 12


def test_one_place_is_one_whatever_its_host_is_called() -> None:
    launches = [
        launch(number, 0, f"container{number}", "", Evidence.SIMULATED) for number in range(6)
    ]
    launches = [replace(row, trial=replace(row.trial, node="")) for row in launches]
    assert capacity(History.from_launches(make_spec(hours=2, launches=99), SMALL, launches)) == 12


def test_an_interrupted_launch_goes_back_to_its_node_though_it_has_to_wait_there(
    tmp_path: Path,
) -> None:
    spec = make_spec(noise=0.02, launches=16)
    study, cluster = opened(tmp_path, spec, SMALL), Cluster(["a", "b"])
    cluster.fill(study)
    cluster.end_next(study, spec, ridge)
    cluster.fill(study)
    cluster.nodes = ["a", "b", "c"]
    cluster.fill(study)
    study.close()
    free, kept = (
        sorted(trial.number for _, _, trial in cluster.running if not trial.node),
        ["a", "c"],
    )
    assert sorted(trial.node for _, _, trial in cluster.running if trial.node) == kept
    assert free[0] == 2, "one that may run anywhere is the older one"
    study = opened(tmp_path, spec, SMALL)
    asked = [
        study.ask(["c"], ["a", "b"]),
        study.ask(["b"], ["a", "c"]),
        study.ask(["b"], ["a", "c"]),
    ]
    study.close()
    assert [(t.node, t.number in free) for t in asked if t] == [
        ("c", False),
        ("", True),
        ("a", False),
    ]
    study = opened(tmp_path, spec, SMALL)
    gone = [study.ask(["b"]) for _ in range(3)]
    study.close()
    assert [t.node for t in gone if t] == ["", "", ""]
