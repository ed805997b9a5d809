"""Which nodes there are, which of them runs which trial, what they send to the tuner, and what Ray
Tune is given.

Ray is imported where it is used: each worker that collects this file would spend two seconds on it.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ALL_COMPLETED, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

import autotune
from autotune.engines.command import Command, Configuration
from autotune.tuner.trial import Role, Trial

if TYPE_CHECKING:
    from autotune.tuner.executors.ray.cluster import Node, NodePool

SIZES = st.sampled_from([1, 2, 4, 8])


def node(name: str, gpus: int = 8) -> Node:
    from autotune.tuner.executors.ray.cluster import Node

    return Node(name, f"id-{name}", gpus)


def fresh(*names: str, most: int = 8, gpus: int = 8) -> NodePool:
    from autotune.tuner.executors.ray.cluster import NodePool

    pool = NodePool(most)
    pool.update(node(name, gpus) for name in names)
    return pool


@given(
    st.lists(SIZES, max_size=5),
    st.lists(st.tuples(SIZES, st.integers(0, 9)), max_size=30),
    st.integers(1, 5),
)
def test_no_gpu_is_given_twice_while_there_is_room(counts, asked, most) -> None:
    pool = fresh(most=most)
    pool.update(node(f"n{i}", gpus) for i, gpus in enumerate(counts))
    assert all(
        pool.has_room(gpus) == any(gpus <= whole for whole in counts[:most])
        for gpus in (1, 2, 4, 8)
    )
    held: dict[str, tuple[str, int]] = {}
    for step, (gpus, ends) in enumerate(asked):
        if pool.has_room(gpus):
            chosen = pool.assign(str(step), gpus)
            assert chosen is not None
            held[str(step)] = (chosen.name, gpus)
        if ends < len(held):
            key = list(held)[ends]
            pool.release(key)
            del held[key]
        used = Counter[str]()
        for name, count in held.values():
            used[name] += count
        assert all(used[f"n{i}"] <= gpus for i, gpus in enumerate(counts))
        assert len({name for name, _ in held.values()}) <= most


def test_small_trials_share_a_node_so_that_whole_ones_stay_free() -> None:
    pool = fresh("a", "b")
    first, second, third = (pool.assign(key, 4) for key in "123")
    assert first is second
    assert third is not first
    assert not pool.has_room(8)
    assert pool.has_room(4)


def test_a_trial_that_is_bound_waits_for_its_node() -> None:
    pool = fresh("a", "b")
    pool.assign("1", 8, wanted="a")
    waiting = pool.assign("2", 8, wanted="a")
    assert waiting is not None
    assert waiting.name == "a"
    assert pool.has_room(8), "the other node is free"
    other = pool.assign("3", 8)
    assert other is not None
    assert other.name == "b"
    pool.release("1")
    assert not pool.has_room(8), "the trial that waited has it now"


def test_a_node_that_is_gone_or_left_out_gets_nothing() -> None:
    pool = fresh("a", "b")
    pool.update([node("b")])
    chosen = pool.assign("1", 8, wanted="a")
    assert chosen is not None
    assert chosen.name == "b"
    pool.retired["b"] = "dirty"
    assert pool.assign("2", 8) is None
    assert not pool.has_room(1)
    assert pool.used == []


def test_a_trial_that_lost_its_node_is_tried_elsewhere_where_there_is_another() -> None:
    pool = fresh("a", "b")
    chosen = pool.assign("1", 8, avoid="a")
    assert chosen is not None
    assert chosen.name == "b"
    alone = fresh("a")
    assert alone.assign("1", 8, avoid="a") is not None


def test_no_more_nodes_than_the_budget_is_worth() -> None:
    pool = fresh("a", "b", "c", most=2)
    assert [p.name for p in pool.used] == ["a", "b"]
    assert pool.unused == 1
    pool.retired["a"] = "dirty"
    assert [p.name for p in pool.used] == ["b", "c"]


def row(number: int, host: str, name: str, alive: bool = True) -> dict[str, object]:
    return {
        "NodeID": f"{number:06d}ff",
        "NodeManagerHostname": host,
        "NodeName": name,
        "Alive": alive,
    }


def test_a_node_keeps_its_name_when_others_come_and_go() -> None:
    from autotune.tuner.executors.ray.cluster import names_of

    two = [row(1, "a", "10.0.0.1"), row(2, "b", "10.0.0.2")]
    assert list(names_of(two).values()) == ["a", "b"]
    one_host = [row(1, "vm", "127.0.0.3"), row(2, "vm", "127.0.0.4")]
    assert list(names_of(one_host).values()) == ["127.0.0.3", "127.0.0.4"]
    lost = [row(1, "vm", "127.0.0.3"), row(2, "vm", "127.0.0.4", alive=False)]
    assert names_of(lost)["000001ff"] == "127.0.0.3"
    back = [row(1, "a", "10.0.0.1", alive=False), row(2, "b", "10.0.0.2"), row(3, "a", "10.0.0.1")]
    assert names_of(back)["000003ff"] == "a"
    alike = [row(1, "vm", "127.0.0.3"), row(2, "vm", "127.0.0.3")]
    assert len(set(names_of(alike).values())) == 2


def test_a_node_that_joins_is_asked_which_autotune_it_has() -> None:
    from autotune.tuner.executors.ray.cluster import VersionCheck

    a, b, c = (node(name) for name in "abc")
    told: dict[Node, Future[str]] = {one: Future() for one in (a, b, c)}
    versions = VersionCheck(told.__getitem__)
    told[a].set_result(autotune.__version__)
    assert versions.admit([a], ALL_COMPLETED) == ([a], [])
    assert versions.admit([a, b, c]) == ([a], []), "nobody waits for those that have yet to answer"
    told[b].set_result(autotune.__version__)
    told[c].set_result("0.0.1")
    fit, refused = versions.admit([a, b, c])
    assert fit == [a, b]
    ((other, why),) = refused
    assert other == c
    assert "autotune 0.0.1" in why
    assert versions.admit([a, b, c]) == ([a, b], []), "a person is told once"


def test_a_node_that_cannot_run_autotune_is_left_out_until_its_ray_is_started_again() -> None:
    from autotune.tuner.executors.ray.cluster import VersionCheck

    a, b = (node(name) for name in "ab")
    told: dict[Node, Future[str]] = {one: Future() for one in (a, b)}
    told[a].set_result(autotune.__version__)
    told[b].set_exception(ModuleNotFoundError("No module named 'autotune'"))
    versions = VersionCheck(told.__getitem__)
    fit, refused = versions.admit([a, b])
    assert fit == [a]
    assert "No module named 'autotune'" in refused[0][1]
    repaired = replace(b, node_id="id-b-again")
    told[repaired] = Future()
    told[repaired].set_result(autotune.__version__)
    assert versions.admit([a, repaired]) == ([a, repaired], [])


def test_a_folder_arrives_without_what_is_no_file_of_ours(tmp_path: Path) -> None:
    """Servers write into their folder what they like; it must not cost the result."""
    from autotune.tuner.executors.ray import pack, unpack

    folder, arrived = tmp_path / "0007", tmp_path / "arrived"
    (folder / "requests").mkdir(parents=True)
    (folder / "server.log").write_text("ready\n")
    (folder / "requests" / "1.jsonl").write_text("{}\n")
    (folder / "latest").symlink_to("/etc")
    (folder / "up").symlink_to("../..")
    os.mkfifo(folder / "pipe")
    arrived.mkdir()
    unpack(pack(folder), arrived)
    assert sorted(str(path.relative_to(arrived)) for path in arrived.rglob("*")) == [
        "requests",
        "requests/1.jsonl",
        "server.log",
    ]
    assert (arrived / "server.log").read_text() == "ready\n"
    unpack(pack(tmp_path / "never made"), arrived)


def test_ray_tune_gets_a_trial_at_once_and_is_told_at_once_that_nothing_more_will_come() -> None:
    """Where nothing runs it would sleep for a second between two times that it asks, and go on for
    minutes."""
    from ray.tune.search import Searcher

    from autotune.tuner.executors.ray import Task, TrialQueueSearcher

    searcher, task = TrialQueueSearcher(), Task("0.1", trial(0), 8, node("a"))
    with ThreadPoolExecutor() as ray_tune:
        first = ray_tune.submit(searcher.suggest, "1")
        searcher.tasks.put(task)
        assert first.result() == {"task": task}
        assert searcher.suggest("2") is None, "it has a trial to look after"
        searcher.on_trial_complete("1")
        second = ray_tune.submit(searcher.suggest, "2")
        searcher.close()
        assert second.result() == searcher.suggest("3") == Searcher.FINISHED


def trial(number: int) -> Trial:
    return Trial(
        number, Role.SEARCH, Configuration("vllm", {}), "0.11", Command(("vllm",)), ("chat",)
    )
