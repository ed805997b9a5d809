"""Nodes that join during a study, and those that come back."""

from __future__ import annotations

from concurrent.futures import ALL_COMPLETED, Future

import autotune
from autotune.executors.ray.cluster import Node, VersionCheck

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
