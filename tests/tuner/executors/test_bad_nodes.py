"""A bad node among good ones is left out, and a bad question is not blamed on nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.base.errors import CannotGoOn
from autotune.base.evidence import Evidence
from autotune.engines.command import Command, Configuration
from autotune.engines.failure import Failure, FailureKind
from autotune.run import _launches
from autotune.tuner.accuracy.check import Gate
from autotune.tuner.executors import Executor, retire_bad_node
from autotune.tuner.search.study import Study
from autotune.tuner.trial import Launch, Role, State, Trial, TrialResult
from tests import small_study


@dataclass
class InTurn:
    """An executor whose launches end on these nodes, one after the other; on bad ones nothing can
    be measured."""

    ends_on: Sequence[str]
    bad: frozenset[str]
    left_out: dict[str, str] = field(default_factory=dict)
    busy: Sequence[str] = ()

    @property
    def nodes(self) -> Sequence[str]:
        return sorted(set(self.ends_on) - set(self.left_out))

    def launches(self, ask: Callable[[], Trial | None]) -> Iterator[Launch]:
        for node in self.ends_on:
            trial = ask()
            assert trial is not None
            failure = Failure(FailureKind.INFRASTRUCTURE, "The GPU fell off the bus.")
            state, why = (State.INVALID, failure) if node in self.bad else (State.COMPLETE, None)
            yield Launch(trial, TrialResult(state, Evidence.MEASURED, failure=why, node=node))

    def retire(self, node: str, why: str) -> bool:
        self.left_out[node] = why
        return bool(self.nodes)

    def close(self) -> None:
        """Nothing runs."""


@dataclass
class Asking:
    """A study of that many launches."""

    launches: list[Launch] = field(default_factory=list)
    phase: str = "search"
    stop_reason: str = "done"
    most: int = 10
    asked: int = 0
    off_nodes: dict[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()

    def ask(self, nodes: Sequence[str] = (), busy: Sequence[str] = ()) -> Trial | None:
        if self.asked == self.most:
            return None
        self.asked += 1
        return Trial(
            self.asked - 1, Role.SEARCH, Configuration("vllm", {}), "1", Command(("vllm",)), ("w",)
        )

    def tell(self, launch: Launch) -> None:
        self.launches.append(launch)


class Silent:
    """Progress that nobody watches."""

    def started(self, trial: Trial, study: object, phase: str) -> None:
        """Nothing to say."""

    def finished(self, launch: Launch, study: object) -> None:
        """Nothing to say."""


def made(ends_on: str, bad: str) -> InTurn:
    executor = InTurn(tuple(ends_on), frozenset(bad))
    study = Asking(most=len(ends_on))
    loop: Executor = executor
    asking: Study = study  # type: ignore[assignment]
    gate = Gate(small_study.spec(), Path("no-answers-are-judged"), "")
    for _ in _launches(asking, loop, Silent(), gate):  # type: ignore[arg-type]
        pass
    return executor


def test_a_node_on_which_nothing_can_be_measured_is_left_out_though_others_end_in_between() -> None:
    executor = made("abababaa", bad="b")
    assert list(executor.left_out) == ["b"]
    assert "fell off the bus" in executor.left_out["b"]


def test_its_own_launches_in_a_row_do_not_stop_the_others() -> None:
    assert list(made("abbbaa", bad="b").left_out) == ["b"]


def test_launches_that_fail_on_different_nodes_stop_the_study() -> None:
    with pytest.raises(CannotGoOn, match="3 launches in a row"):
        made("aabcda", bad="bcd")


def test_the_only_node_stops_the_study() -> None:
    with pytest.raises(CannotGoOn, match="3 launches in a row"):
        made("aaaa", bad="a")


def launch_of(number: int, name: str, failure: Failure | None) -> Launch:
    """A launch of a configuration of this name; with metrics where it did not fail."""
    trial = Trial(
        number, Role.SEARCH, Configuration("vllm", {"name": name}), "1", Command(("vllm",)), ("w",)
    )
    metrics = {} if failure else {"w": {"output_throughput": 1.0}}
    state = State.FAILED if failure else State.COMPLETE
    return Launch(trial, TrialResult(state, Evidence.MEASURED, failure, metrics, node="a"))


def crash(number: int, entry: str = "cache") -> Failure:
    words = f"{entry} entry {number} is unreadable"
    return Failure(FailureKind.CRASHED, "it died", words, unexplained=True)


@pytest.mark.parametrize(
    ("names", "other_words", "stops"),
    [
        ("XXabc", False, True),  # three equal ones after servers have run
        ("XXab", False, False),
        ("XXXXabX", False, False),  # a server that runs in between
        ("XXabc", True, False),
        ("abXXab", False, False),
    ],
)
def test_equal_crashes_stop_a_study_also_after_servers_have_run(
    names: str, other_words: bool, stops: bool
) -> None:
    """`X` runs; others crash, with the same words but for their numbers."""
    launches = [
        launch_of(
            n,
            f"{name}{n}",
            None if name == "X" else crash(n, name if other_words else "cache"),
        )
        for n, name in enumerate(names)
    ]
    executor = InTurn(tuple("a" * 9), frozenset())
    if stops:
        with pytest.raises(CannotGoOn, match="3 launches in a row failed with the same words"):
            retire_bad_node(launches, executor)
    else:
        retire_bad_node(launches, executor)


def test_two_equal_crashes_of_configurations_that_ran_stop_it_also() -> None:
    ran = [launch_of(0, "one", None), launch_of(1, "two", None)]
    crashed = [launch_of(2, "one", crash(2)), launch_of(3, "two", crash(3))]
    executor = InTurn(tuple("a" * 9), frozenset())
    retire_bad_node(crashed[:1], executor, ran)
    with pytest.raises(CannotGoOn, match=r"2 launches in a row .* have run before"):
        retire_bad_node(crashed, executor, ran)
