"""Launches side by side on shares of one machine's GPUs: which shares, what their processes see,
and how they end."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import pytest

from autotune.base.child import IMPORT_FOLDER
from autotune.base.errors import CannotGoOn
from autotune.base.evidence import Evidence
from autotune.base.notify import Stage, Watch, silent
from autotune.engines.command import Command, Configuration
from autotune.engines.library import Library
from autotune.engines.machine import Gpu
from autotune.tuner.backends import EvaluationSetup
from autotune.tuner.executors.side_by_side import Share, SideBySideExecutor, shares_of, visible_to
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests import small_study

CHILD = "from autotune.tuner.executors.side_by_side import main; main()"
HALVES: list[Share] = [(0, 1, 2, 3), (4, 5, 6, 7)]
ALONE, FIRST, SECOND = "gpus 0-3 alone", "gpus 0-3", "gpus 4-7"
GB = 10**9


def spec(**changes: object) -> StudySpec:
    return small_study.spec().model_copy(
        update={"on": "emulator", "gpus": 4, "launches": 30, **changes}
    )


def gpus(busy: int | None = None) -> list[Gpu]:
    return [Gpu(i, "NVIDIA H200", "nvidia", 141 * GB, (i == busy) * 9 * GB) for i in range(8)]


@pytest.mark.parametrize(
    ("changes", "variables", "expected"),
    [
        ({}, {}, HALVES),
        ({"executor": "local:2"}, {}, HALVES),
        ({"executor": "local:1"}, {}, []),
        ({"gpus": 5}, {}, []),
        ({"gpus": 2, "executor": "local:3"}, {}, [(0, 1), (2, 3), (4, 5)]),
        ({"gpus": 2}, {"CUDA_VISIBLE_DEVICES": "1,2,5,7"}, [(1, 2), (5, 7)]),
        ({}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, []),
        ({"on": "simulator"}, {}, []),
        ({"on": "external:http://a:1"}, {}, []),
        ({"on": "process"}, {}, HALVES),
        ({"on": "process"}, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, []),
        ({"gpus": 2}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,"}, [(0, 1), (2, 3)]),
        ({"gpus": 2}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,-1,4,5"}, [(0, 1), (2, 3)]),
        ({"gpus": 2}, {"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"hardware": small_study.HARDWARE.model_copy(update={"vendor": "cpu"})}, {}, []),
    ],
)
def test_which_launches_share_a_node(
    changes: dict[str, object],
    variables: dict[str, str],
    expected: list[Share],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert shares_of(spec(**changes), 7, silent, gpus) == expected


def test_a_small_budget_is_not_spent_on_the_control() -> None:
    assert shares_of(spec(), 2, silent, gpus) == []
    assert shares_of(spec(gpus=1), 4, silent, gpus) == [(0,), (1,), (2,)]


def test_a_share_with_a_busy_gpu_is_left_to_who_has_it() -> None:
    said: list[str] = []
    found = shares_of(spec(on="process", gpus=2), 7, said.append, lambda: gpus(busy=3))
    assert found == [(0, 1), (4, 5), (6, 7)]
    assert said[0].startswith("gpus 2-3 are not used: GPU 3 (NVIDIA H200) is not idle")


def test_a_share_is_shown_by_the_variable_that_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible_to((4, 5), "nvidia") == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert visible_to((4, 5), "amd") == {"HIP_VISIBLE_DEVICES": "4,5"}
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,3,4,5")
    assert visible_to((4, 5), "amd") == {"ROCR_VISIBLE_DEVICES": "4,5"}
    # HIP counts what ROCR leaves, and what stands for it is set alike.
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0,1,2,3")
    alike = {"HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert visible_to((4, 5), "amd") == alike


@dataclass(frozen=True)
class Told:
    """An evaluator that tells what its process sees; the engine of a trial says what else it
    does."""

    notify: Watch
    evidence: Evidence = Evidence.EMULATED

    def __call__(self, trial: Trial) -> TrialResult:
        kind = trial.configuration.engine
        if kind == "refuses":
            raise CannotGoOn("GPU 4 is not idle")
        if kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        began_s = time.monotonic()
        time.sleep(0.3)
        seen = {"began": began_s, "ended": time.monotonic(), "total_token_throughput": 1000.0}
        self.notify(f"{trial.number} sees {os.environ['CUDA_VISIBLE_DEVICES']}")
        self.notify(Stage(trial.number, "stopping"))
        return TrialResult(State.COMPLETE, self.evidence, metrics={"w": seen})


def told(setup: EvaluationSetup) -> Told:
    return Told(setup.notify)


def trials(*asked: tuple[str, str]) -> Iterator[Trial]:
    for number, (kind, node) in enumerate(asked):
        command = Command((kind,))
        yield Trial(number, Role.SEARCH, Configuration(kind, {}), "1", command, ("w",), node=node)


def executed(
    tmp_path: Path, *asked: tuple[str, str], said: list[str | Stage] | None = None
) -> Sequence[Launch]:
    """The launches of some trials, by number; each is asked for as soon as a place is free."""
    heard: list[str | Stage] = [] if said is None else said
    setup = EvaluationSetup(spec(), Library(), tmp_path, heard.append, told)
    waiting = trials(*asked)
    with closing(SideBySideExecutor(setup, HALVES)) as executor:
        assert executor.nodes == [ALONE, FIRST, SECOND]
        return sorted(
            executor.launches(lambda: next(waiting, None)), key=lambda launch: launch.trial.number
        )


def overlap(one: Launch, other: Launch) -> bool:
    a, b = one.result.metrics["w"], other.result.metrics["w"]
    return bool(a["began"] < b["ended"] and b["began"] < a["ended"])


def test_a_launch_sees_its_share_and_one_that_is_alone_has_no_neighbour(tmp_path: Path) -> None:
    said: list[str | Stage] = []
    one, two, three, four = executed(
        tmp_path, ("a", ALONE), ("a", FIRST), ("a", SECOND), ("a", ""), said=said
    )
    assert [x.result.node for x in (one, two, three)] == [ALONE, FIRST, SECOND]
    assert [x.result.gpu_ids for x in (one, three)] == [tuple("0123"), tuple("4567")]
    assert {"0 sees 0,1,2,3", "1 sees 0,1,2,3", "2 sees 4,5,6,7"} <= set(said)
    assert {Stage(0, "stopping", ALONE), Stage(1, "stopping", FIRST)} <= set(said), "with the place"
    assert not overlap(one, two)
    assert not overlap(one, three)
    assert overlap(two, three)
    assert four.result.node in (FIRST, SECOND), "what is bound to no place may run beside others"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.e2e
def test_a_share_that_is_taken_is_left_out_and_its_launch_made_on_another(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(CannotGoOn, match="not idle"):
        executed(tmp_path, ("a", FIRST), ("refuses", SECOND), said=said)
    assert said[0].startswith("gpus 4-7 are excluded: GPU 4 is not idle"), (
        "the launch fails on the other share as well"
    )


def test_a_process_that_is_killed_costs_one_launch(tmp_path: Path) -> None:
    lost, kept, after = executed(tmp_path, ("dies", FIRST), ("a", SECOND), ("a", FIRST))
    assert lost.result.state is State.INVALID
    assert lost.result.failure is not None
    assert "killed from outside (code -9)" in lost.result.failure.message
    assert [x.result.state for x in (kept, after)] == [State.COMPLETE] * 2


@pytest.mark.e2e
def test_what_is_slow_is_retired_and_the_last_share_is_not_given_up(tmp_path: Path) -> None:
    setup = EvaluationSetup(spec(), Library(), tmp_path, silent, told)
    with closing(SideBySideExecutor(setup, HALVES)) as executor:
        assert not executor.retire(ALONE, "it holds memory")
        assert executor.retire(FIRST, "slow")
        assert executor.nodes == [ALONE, SECOND]
        assert not executor.retire(SECOND, "slow")
        again = next(trials(("a", SECOND)))
        (launch,) = executor.launches(iter([again, None]).__next__)
        assert launch.result.node == ALONE


@pytest.mark.parametrize("sent", [0, 1, 5, 400])
def test_a_process_whose_tuner_ends_in_the_middle_of_a_message_says_nothing(sent: int) -> None:
    """Its first message is large, and SIGTERM may end the tuner while it is sent."""
    ours, theirs = Pipe()
    message = pickle.dumps(b"w" * 1000)
    words = ["-c", CHILD, str(theirs.fileno()), str(os.getpid())]
    command = [sys.executable, "-P", *words]
    with subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": IMPORT_FOLDER},
    ) as child:
        theirs.close()
        os.write(ours.fileno(), (struct.pack("!i", len(message)) + message)[:sent])
        ours.close()
        assert child.stderr is not None
        assert child.stderr.read() == b""
    assert child.returncode == 0
