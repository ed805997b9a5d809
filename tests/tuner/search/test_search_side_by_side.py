"""Launches that share a node: the baseline alone, then beside others, and what follows for the
study."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from autotune.base.evidence import Evidence
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.render import render
from autotune.tuner.recommend import recommend
from autotune.tuner.search.history import ERROR_RATE, History, one_at_a_time
from autotune.tuner.search.study import Study
from autotune.tuner.study.spec import StudySpec, at_once, is_alone, may_share_node, share_name
from autotune.tuner.trial import Launch, Role, Trial
from tests.tuner.search.search_landscapes import (
    Throughput,
    best_of,
    evaluate,
    make_spec,
    opened,
    ridge,
    small,
)

SMALL = small()
ALONE, FIRST, SECOND = "gpus 0-3 alone", "gpus 0-3", "gpus 4-7"


@dataclass(frozen=True)
class Run:
    """A launch of the baseline."""

    node: str
    score: float | None = 0.0
    broke: bool = False
    pending: bool = False
    began_s: float = 0.0
    seconds: float = 300.0


def control(first: float, second: float, **changes: object) -> str:
    """What the control says where the baseline reaches so much beside another, of what it reaches
    alone."""
    beside = [Run(FIRST, math.log(first), began_s=300), Run(SECOND, math.log(second), began_s=310)]
    return one_at_a_time([Run(ALONE), *(replace(run, **changes) for run in beside)])  # type: ignore[arg-type]


def test_places_have_names_that_tell_what_they_are() -> None:
    assert [share_name(share) for share in ((0, 1, 2, 3), (5,), (1, 2, 5))] == [
        "gpus 0-3",
        "gpus 5",
        "gpus 1,2,5",
    ]
    assert is_alone(ALONE)
    assert may_share_node(FIRST)
    assert not may_share_node(ALONE)
    assert not may_share_node("node-7")
    assert at_once([ALONE, FIRST, SECOND]) == 2
    assert at_once([]) == 1


def test_more_than_the_noise_of_a_launch_ends_it() -> None:
    assert (
        control(0.91, 0.91)
        == "launches side by side slow each other by 9 %: one at a time from here on"
    )
    assert control(0.96, 0.96) == ""
    assert control(1.1, 1.1) == ""
    assert "fails beside others" in control(1.0, 1.0, broke=True)
    assert "could not be measured" in control(1.0, 1.0, score=None)
    assert control(0.5, 0.5, pending=True) == "", "not decided yet"
    apart = [Run(ALONE), Run(FIRST, began_s=300), Run(SECOND, began_s=600)]
    assert "could not be measured" in one_at_a_time(apart), "they did not run beside each other"
    assert one_at_a_time([Run("a"), Run("b", -1.0)]) == "", "nodes of a cluster"


def test_the_control_errs_as_often_as_it_says() -> None:
    noise = np.exp(0.03 * np.random.default_rng(0).standard_normal((4000, 3)))
    ended = [bool(control(first / before, second / before)) for before, first, second in noise]
    assert np.mean(ended) == pytest.approx(ERROR_RATE, abs=0.012)


@dataclass
class Halves:
    """Two halves of a node that slow each other: launches in virtual time, each as long as the
    others.

    Attributes:
        running: place to the time at which its launch began, and its trial.
    """

    slow: float
    running: dict[str, tuple[float, Trial]] = field(default_factory=dict)
    now_s: float = 0.0

    @property
    def free(self) -> list[str]:
        if ALONE in self.running:
            return []
        halves = [name for name in (FIRST, SECOND) if name not in self.running]
        return [ALONE, *halves] if not self.running else halves

    def play(
        self, study: Study, spec: StudySpec, throughput: Throughput, at_most: int = 100
    ) -> Sequence[Launch]:
        for _ in range(at_most):
            while self.free and (trial := study.ask(self.free)) is not None:
                place = trial.node or self.free[-1]
                assert place in self.free
                self.running[place] = (self.now_s, trial)
            if not self.running:
                break
            place, (began_s, trial) = min(self.running.items(), key=lambda item: item[1][0])
            self.now_s, beside = began_s + 300, not is_alone(place)
            del self.running[place]
            study.tell(
                self.ended(evaluate(spec, self.slowed(throughput, beside), trial), place, began_s)
            )
        return study.launches

    def slowed(self, throughput: Throughput, beside: bool) -> Callable[..., float | None]:
        return lambda c: (
            None if (value := throughput(c)) is None else value * (1 - self.slow * beside)
        )

    def ended(self, launch: Launch, place: str, began_s: float) -> Launch:
        at = datetime.fromtimestamp(1e9 + began_s, UTC).isoformat()
        gpu_ids = tuple("4567" if place == SECOND else "0123")
        measured = {
            "evidence": Evidence.EMULATED,
            "node": place,
            "gpu_ids": gpu_ids,
            "started_at": at,
        }
        return Launch(launch.trial, replace(launch.result, **measured))  # type: ignore[arg-type]


def played(folder: Path, slow: float) -> tuple[StudySpec, Sequence[Launch], str]:
    spec = make_spec(noise=0.01, launches=20, gpus=4)
    study = opened(folder, spec, SMALL)
    made = Halves(slow).play(study, spec, ridge)
    study.close()
    return spec, made, study.stop_reason


def test_the_baseline_is_alone_first_and_then_on_all_shares_at_once(tmp_path: Path) -> None:
    spec, made, stop_reason = played(tmp_path, 0.0)
    assert [(x.trial.role, x.result.node) for x in made[:3]] == [
        (Role.BASELINE, n) for n in (ALONE, FIRST, SECOND)
    ]
    later = {x.result.node for x in made[3:]}
    assert later == {FIRST, SECOND}, "nothing more is launched alone"
    outcome = recommend(spec, SMALL, made, (), stop_reason)
    assert outcome.recommended is not None
    assert outcome.recommended.objective.value == pytest.approx(best_of(SMALL, ridge), rel=0.02)
    assert "one at a time" not in outcome.stop_reason


def test_launches_that_slow_each_other_are_made_one_at_a_time_and_do_not_count(
    tmp_path: Path,
) -> None:
    spec, made, stop_reason = played(tmp_path, 0.3)
    assert {x.result.node for x in made[3:]} == {ALONE}
    assert all(x.trial.node == ALONE for x in made[3:])
    history = History.from_launches(spec, SMALL, made)
    assert all(not e.measured for e in history if may_share_node(e.node))
    outcome = recommend(spec, SMALL, made, (), stop_reason)
    assert "launches side by side slow each other by 3" in outcome.stop_reason
    assert outcome.baseline is not None
    assert outcome.baseline.objective.value == pytest.approx(
        ridge(SMALL.items[0].configuration), rel=0.02
    )
    text = render(StudyRecord(spec, made, outcome, tmp_path), "md")
    assert "Launches side by side on `gpus 0-3` and `gpus 4-7` are invalid" in text
    assert ["(#0)" in text, "(#1)" in text, "(#2)" in text] == [True, False, False], (
        "the finals' table"
    )


def killed(folder: Path, slow: float, every: int) -> tuple[Sequence[Launch], str]:
    """A study whose tuner is killed after every so many launches."""
    spec = make_spec(noise=0.01, launches=16, gpus=4)
    for _ in range(16):
        study = opened(folder, spec, SMALL)
        made = Halves(slow, now_s=1000.0 * len(study.launches)).play(study, spec, ridge, every)
        why = "; ".join(study.changes)
        study.close()
    assert [(x.trial.role, x.result.node) for x in made[:3]] == [
        (Role.BASELINE, n) for n in (ALONE, FIRST, SECOND)
    ]
    assert len(made) == 16
    return made, why


@pytest.mark.parametrize("slow", [0.0, 0.3])
def test_a_study_that_was_killed_goes_on_as_the_control_says(tmp_path: Path, slow: float) -> None:
    made, why = killed(tmp_path, slow, every=3)
    assert ("slow each other" in why) == bool(slow)
    assert {x.result.node for x in made[3:]} == ({ALONE} if slow else {FIRST, SECOND})


def test_a_control_that_was_cut_in_two_proves_nothing(tmp_path: Path) -> None:
    made, why = killed(tmp_path, 0.0, every=2)
    assert "could not be measured" in why
    assert {x.result.node for x in made[3:]} == {ALONE}
