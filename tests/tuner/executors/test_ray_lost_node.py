"""Ray nodes that do not fit, that are lost in mid-study, and tuners that are: real Ray, emulated
engines."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.product.cli import finished_rows, kill_after, new_home, rows
from tests.product.processes import Process, start
from tests.product.test_real_path import nothing_is_left
from tests.tuner.executors.nodes import TOKEN, Nodes, nodes
from tests.tuner.executors.records import shared_gpus
from tests.tuner.executors.test_ray import SMALL, tuned


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TOKEN.items():
            patch.setenv(name, value)
        with nodes(tmp_path_factory.mktemp("cluster"), ["h200:8", "h200:8", "b200:4"]) as found:
            yield found


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ("mi300x", "no node of the Ray cluster has mi300x"),
        ("b200", "the largest b200 node of the cluster has 4"),
    ],
)
def test_no_node_for_the_candidates(
    cluster: Nodes, tmp_path: Path, hardware: str, said: str
) -> None:
    question = (
        "--model",
        "deepseek-ai/DeepSeek-R1",
        "--hw",
        hardware,
        "--engine",
        "sglang",
        "--on",
        "simulator",
    )
    done = tuned(cluster, tmp_path / "home", *question)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "home" / "studies").exists()


def test_a_killed_tuner_a_lost_node_and_a_second_tuner(cluster: Nodes, tmp_path: Path) -> None:
    """The last test with this cluster: it takes a node away."""
    home = new_home(tmp_path)
    question = (*SMALL, "--workload", "random:64:400:4", "--launches", "8", "--study", "hurt")
    arguments = ["run", *question, "--executor", cluster.executor]
    assert kill_after(arguments, home, 0.0, lambda: len(finished_rows(home, "hurt")) >= 2)
    assert nothing_is_left(cluster.folder, 20.0) == [], "servers end with the tuner"
    before = finished_rows(home, "hurt")
    there = _on_node(cluster, "127.0.0.4")
    with resumed(home, "hurt") as tuner:
        _wait(lambda: bool(_on_node(cluster, "127.0.0.4") - there), tuner)
        cluster.remove("127.0.0.4")
        with resumed(home, "hurt") as second:
            refused = second.communicate()[1]
        said = tuner.communicate()[1]
    assert second.returncode == 2, refused
    assert "another" in refused
    assert tuner.returncode == 0, said
    assert "node 127.0.0.4, or its process there, is gone; it is retried once" in said, said
    assert finished_rows(home, "hurt")[: len(before)] == before, (
        "no finished trial is lost or made again"
    )
    launches = rows(home, "hurt")
    assert sorted(row["number"] for row in launches) == list(range(len(launches)))
    assert {row["node"] for row in launches} <= {"127.0.0.3", "127.0.0.4"}, "b200 is another kind"
    assert shared_gpus(launches) == []
    assert nothing_is_left(cluster.folder, 0) == []


def resumed(home: Path, study: str) -> Process:
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    return start("resume", study, environment=environment, out=subprocess.PIPE, err=subprocess.PIPE)


def _wait(moment: Callable[[], bool], process: Process) -> None:
    while not moment():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def _on_node(cluster: Nodes, name: str) -> set[Path]:
    """The logs of servers that run on a node now."""
    return set(cluster.folder.glob(f"autotune-trial-*-{name}-*/trials/*/server.log"))
