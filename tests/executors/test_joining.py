"""Nodes that join during a study, and those that come back."""

from __future__ import annotations

from concurrent.futures import ALL_COMPLETED, Future
from typing import Any

import pytest

import autotune
from autotune.executors.ray.cluster import VersionCheck
from autotune.executors.ray.node_pool import Node, RebootDetector, names_of

A, B, C = (Node(name, f"id-{name}", 8) for name in "abc")


def test_a_node_that_joins_is_asked_which_autotune_it_has() -> None:
    told: dict[Node, Future[str]] = {node: Future() for node in (A, B, C)}
    versions = VersionCheck(told.__getitem__)
    told[A].set_result(autotune.__version__)
    assert versions.admit([A], ALL_COMPLETED) == ([A], [])
    assert versions.admit([A, B, C]) == ([A], []), "nobody waits for those that have yet to answer"
    told[B].set_result(autotune.__version__)
    told[C].set_result("0.0.1")
    fit, refused = versions.admit([A, B, C])
    assert fit == [A, B]
    ((node, why),) = refused
    assert node == C
    assert "autotune 0.0.1" in why
    assert versions.admit([A, B, C]) == ([A, B], []), "a person is told once"


def test_a_node_that_cannot_run_autotune_is_left_out_until_its_ray_is_started_again() -> None:
    told: dict[Node, Future[str]] = {node: Future() for node in (A, B)}
    told[A].set_result(autotune.__version__)
    told[B].set_exception(ModuleNotFoundError("No module named 'autotune'"))
    versions = VersionCheck(told.__getitem__)
    fit, refused = versions.admit([A, B])
    assert fit == [A]
    assert "No module named 'autotune'" in refused[0][1]
    repaired = Node("b", "id-b-again", 8)
    told[repaired] = Future()
    told[repaired].set_result(autotune.__version__)
    assert versions.admit([A, repaired]) == ([A, repaired], [])


def row(node_id: str, host: str, port: int, alive: bool = True) -> dict[str, Any]:
    address = {"NodeManagerAddress": f"10.0.0.{host}", "NodeManagerPort": port}
    return {"NodeID": node_id, "NodeManagerHostname": host, "NodeName": f"10.0.0.{host}", "Alive": alive, **address}


@pytest.mark.parametrize("port", [7001, 7002], ids=["the same port", "another port"])
def test_a_machine_that_is_back_before_ray_saw_it_go_is_one_node_with_its_name(port: int) -> None:
    nodes = RebootDetector(lambda host, at: (host, at) in {("10.0.0.1", port), ("10.0.0.2", 7001)})
    before = [row("old", "1", 7001), row("other", "2", 7001)]
    assert names_of(nodes.without_ghosts(before)) == {"old": "1", "other": "2"}
    for old_is_alive in (True, False):
        rows = [row("new", "1", port), row("old", "1", 7001, alive=old_is_alive), row("other", "2", 7001)]
        found = nodes.without_ghosts(rows)
        assert [one["NodeID"] for one in found if one["Alive"]] == ["new", "other"]
        assert names_of(found)["new"] == "1"


def test_two_rays_of_one_machine_are_two_nodes() -> None:
    rows = [row("one", "1", 7001), row("two", "1", 7002)]
    for answers in (True, False):
        found = RebootDetector(lambda host, port, answers=answers: answers).without_ghosts(rows)
        assert found == rows
        assert len(set(names_of(found).values())) == 2
