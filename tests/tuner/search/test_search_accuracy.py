"""Finalists whose answers are wrong: what is asked, what falls, and what takes its place."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autotune.engines.command import Configuration
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.failure import FailureKind
from autotune.engines.promises import GivenUp
from autotune.outputs.progress import Progress
from autotune.run import _launches
from autotune.tuner.accuracy.builtin import contexts
from autotune.tuner.accuracy.check import Gate, TaskFile
from autotune.tuner.executors import LocalExecutor
from autotune.tuner.recommend import recommend
from autotune.tuner.search.decide.finals import suspected, wants_answers
from autotune.tuner.search.entry import Entry
from autotune.tuner.search.history import History
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Accuracy, Launch, Role, State, Trial, TrialResult
from tests.tuner.search.search_landscapes import evaluate, make_spec, opened
from tests.tuner.test_recommend import launch

ITEMS = tuple(
    Candidate(Configuration("vllm", {"dp": dp, "kernel": kernel, "kv": kv}), "0.11")
    for dp, kernel, kv in itertools.product((1, 2, 4), ("a", "b"), ("bf16", "fp8"))
)
LOSSY = GivenUp(knob="kv", from_="bf16", to="fp8", what="less precision", kind="lossy")
NODE = CandidateSet(
    ITEMS,
    0,
    (0,),
    given_up={
        i: (LOSSY,) for i, item in enumerate(ITEMS) if item.configuration.knobs["kv"] == "fp8"
    },
)


def throughput(c: Configuration) -> float:
    """Replicas add 20 % for each doubling, the coarse cache 25 %, kernel b 6 %."""
    k = c.knobs
    return 1000 * math.exp(
        0.2 * math.log2(float(k["dp"] or 1))
        + 0.25 * (k["kv"] == "fp8")
        + 0.06 * (k["kernel"] == "b")
    )


TASKS = '{"prompt": "1 + 1 =", "answer": "2", "match": "number"}\n'


def study(folder: Path, wrong: str, **changes: object) -> tuple[list[Launch], Recommendation]:
    """A study under a task file; launches with this value answer wrongly."""
    tasks = folder / "tasks.jsonl"
    folder.mkdir(exist_ok=True)
    tasks.write_text(TASKS * 50)
    check = TaskFile.read(tasks)
    spec = make_spec(
        **{
            "noise": 0.01,
            "launches": 20,
            "accuracy": str(tasks),
            "accuracy_sha256": check.sha256,
            **changes,
        }
    )
    one, gate = (
        opened(folder / "study", spec, NODE),
        Gate(spec, folder / "study", ITEMS[0].fingerprint),
    )
    while (trial := one.ask()) is not None:
        launch = evaluate(spec, throughput, trial)
        if trial.wants_answers:
            right = wrong not in trial.configuration.knobs.values()
            told = {"marks": [right] * 50, "texts": ["2" if right else "3"] * 50, "seconds": 2.0}
            answers = {"kind": "tasks", "sha256": check.sha256, **told}
            launch = replace(launch, result=replace(launch.result, answers=answers))
        one.tell(gate.judge(launch, one.launches) if launch.result.answers else launch)
    one.close()
    launches = list(one.launches)
    return launches, recommend(spec, NODE, launches, (), one.stop_reason)


def finals(launches: list[Launch], knob: str, value: str) -> list[Launch]:
    return [
        x
        for x in launches
        if x.trial.role is Role.FINAL and x.trial.configuration.knobs[knob] == value
    ]


def test_what_is_fastest_and_wrong_loses_and_the_next_takes_its_place(tmp_path: Path) -> None:
    launches, outcome = study(tmp_path, "fp8", allow=("lossy",))
    (fell,) = finals(launches, "kv", "fp8")
    assert fell.result.state is State.FAILED
    assert fell.result.failure is not None
    assert fell.result.failure.kind is FailureKind.ACCURACY
    assert "0.0 % of 50 answers are right, the baseline's 100.0 %" in fell.result.failure.message
    assert fell.result.accuracy is not None
    assert [(x.prompt, x.baseline, x.finalist) for x in fell.result.accuracy.examples] == [
        ("1 + 1 =", "2", "3")
    ] * 3
    # Its neighbours share the coarse cache: none of them is launched again, although they are next
    # by speed.
    assert outcome.recommended is not None
    assert outcome.recommended.config == {"dp": 4, "kernel": "b", "kv": "bf16"}
    assert outcome.verdict is Verdict.BETTER
    assert outcome.failures == {"accuracy": 1}
    check = outcome.accuracy
    assert check is not None
    assert (check.kind, check.baseline, check.recommended, check.threshold, check.passed) == (
        *("tasks", 100.0, 100.0, 99.0),
        True,
    )
    assert Recommendation.from_json(outcome.to_json()) == outcome


def test_what_is_fastest_and_right_wins_and_each_finalist_is_asked_once(tmp_path: Path) -> None:
    launches, outcome = study(tmp_path, "nothing", allow=("lossy",))
    assert outcome.recommended is not None
    assert outcome.recommended.config["kv"] == "fp8"
    assert outcome.accuracy is not None
    assert outcome.accuracy.passed
    asked = [x.trial.configuration.fingerprint for x in launches if x.result.accuracy is not None]
    assert len(asked) == len(set(asked))
    assert all(
        x.trial.role in (Role.BASELINE, Role.FINAL)
        for x in launches
        if x.result.accuracy is not None
    )


def test_without_a_mark_the_settings_of_what_fell_share_the_blame(tmp_path: Path) -> None:
    launches, outcome = study(tmp_path, "b", allow=("lossy",))
    assert outcome.recommended is not None
    assert outcome.recommended.config["kernel"] == "a"
    assert outcome.accuracy is not None
    assert outcome.accuracy.passed
    assert 1 <= len(finals(launches, "kernel", "b")) <= 3


def test_answers_lie_in_files_of_their_owner_and_a_changed_task_file_is_told(
    tmp_path: Path,
) -> None:
    launches, _ = study(tmp_path, "nothing", launches=12)
    kept = sorted((tmp_path / "study" / "accuracy").iterdir())
    assert [int(path.stem) for path in kept] == [
        x.trial.number for x in launches if x.result.accuracy is not None
    ]
    assert {oct(path.stat().st_mode & 0o777) for path in kept} == {"0o600"}
    rows = (tmp_path / "study" / "results.jsonl").read_text()
    assert '"answers"' not in rows
    assert '"kind":"tasks"' in rows


@pytest.mark.parametrize(("accuracy", "wanted"), [("builtin", 2), ("tasks.jsonl", 1), (None, 0)])
def test_agreement_takes_two_launches_of_the_baseline_and_a_score_one(
    accuracy: str | None, wanted: int
) -> None:
    spec = make_spec(accuracy=accuracy)
    rows = [launch(number, Role.FINAL, 0, 1000) for number in range(4)]
    done: list[Launch] = []
    for row in rows:
        if wants_answers(spec, row.role, row.fingerprint, row.fingerprint, done):
            row = replace(row, result=replace(row.result, accuracy=Accuracy("any", None)))
        done.append(row)
    assert sum(row.result.accuracy is not None for row in done) == wanted


def test_a_value_with_which_another_launch_answered_rightly_is_not_to_blame() -> None:
    at = {tuple(item.configuration.knobs.values()): position for position, item in enumerate(ITEMS)}
    fell = Entry(0, Role.FINAL, at[4, "b", "fp8"], right=False)
    alone = History(make_spec(), NODE, (fell,))
    assert suspected(alone, at[1, "a", "fp8"]), "the coarse cache is the first to be blamed"
    assert not suspected(alone, at[4, "b", "bf16"])
    cleared = History(
        make_spec(), NODE, (fell, Entry(1, Role.FINAL, at[2, "a", "fp8"], 0.0, right=True))
    )
    assert not suspected(cleared, at[1, "a", "fp8"])
    assert suspected(cleared, at[4, "b", "bf16"]), "nothing else is left"


def judged_launches(folder: Path, spec: StudySpec) -> list[Launch]:
    """The launches of a study whose launches answer every other context of the built-in check, in
    turn."""

    def answering(trial: Trial) -> TrialResult:
        result = evaluate(spec, throughput, trial).result
        if not trial.wants_answers:
            return result
        mine = contexts()[trial.launch_index % 2 :: 2]
        answers = {context.name: [["a"], ["b"]] for context in mine}
        return replace(
            result,
            answers={"kind": "builtin", "logprobs": False, "answers": answers, "seconds": 1.0},
        )

    study, screen = opened(folder, spec, NODE), Console(file=io.StringIO())
    try:
        with Progress(spec, screen) as progress:
            progress.opened(folder, NODE)
            gate = Gate(spec, folder, ITEMS[0].fingerprint)
            return list(_launches(study, LocalExecutor(answering), progress, gate))
    finally:
        study.close()


def test_answers_that_cannot_be_compared_are_an_inconclusive_check_and_no_lost_launch(
    tmp_path: Path,
) -> None:
    spec = make_spec(noise=0.01, launches=14, accuracy="builtin", allow=("lossy",))
    launches = judged_launches(tmp_path, spec)
    asked = [
        launch.result
        for launch in launches
        if launch.trial.role is Role.FINAL and launch.result.accuracy
    ]
    notes = {one.accuracy.note for one in asked if one.accuracy and one.state is State.COMPLETE}
    assert any("no context in common" in note for note in notes)
    assert {one.accuracy.passed for one in asked if one.accuracy} == {None}
    study = opened(tmp_path, spec, NODE)
    assert [launch.trial.number for launch in study.launches] == list(range(14))
    assert study.ask() is None
    study.close()


def test_a_launch_is_kept_though_judging_it_fails_and_resuming_does_not_repeat_it(
    tmp_path: Path,
) -> None:
    spec = make_spec(noise=0.01, launches=14, accuracy="builtin", allow=("lossy",))
    in_the_way = tmp_path / "accuracy"
    in_the_way.write_text("")
    with pytest.raises(FileExistsError):
        judged_launches(tmp_path, spec)
    kept = (tmp_path / "results.jsonl").read_bytes()
    assert kept.count(b"\n") == 1
    in_the_way.unlink()
    assert judged_launches(tmp_path, spec)[0].trial.number == 1
    assert (tmp_path / "results.jsonl").read_bytes().startswith(kept)
