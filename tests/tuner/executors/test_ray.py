"""A study on two Ray nodes of this machine: real Ray, real processes, emulated engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.product.cli import Finished, autotune, new_home, rows
from tests.product.test_real_path import nothing_is_left
from tests.tuner.executors.nodes import TOKEN, Nodes, nodes
from tests.tuner.executors.records import shared_gpus, side_by_side

SMALL = (
    "--model",
    "openai/gpt-oss-120b",
    "--hw",
    "h200",
    "--gpus",
    "4",
    "--on",
    "emulator",
    "--engine",
    "vllm",
)
"""Of which two trials fit on a node."""
LIGHT = ("--workload", "random:64:1200:4")
"""Seconds of an emulated server, and next to no work: longer than a busy machine takes to start the
next trial."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TOKEN.items():
            patch.setenv(name, value)
        with nodes(tmp_path_factory.mktemp("cluster"), ["h200:8", "h200:8"]) as found:
            yield found


def tuned(cluster: Nodes, home: Path, *arguments: str) -> Finished:
    return autotune("run", *arguments, "--executor", cluster.executor, home=home)


def test_four_gpu_trials_share_a_node_and_no_gpu_is_given_twice(
    cluster: Nodes, tmp_path: Path
) -> None:
    home = new_home(tmp_path)
    done = tuned(cluster, home, *SMALL, *LIGHT, "--launches", "8", "--study", "small")
    assert done.code == 0, done.err
    launches = rows(home, "small")
    assert {len(row["gpu_ids"]) for row in launches} == {4}
    assert {row["node"] for row in launches} == {"127.0.0.3", "127.0.0.4"}
    assert shared_gpus(launches) == []
    assert side_by_side(launches) > 0
    for row in launches:
        folder = home / "studies" / "small" / "trials" / f"{row['number']:04d}"
        assert (folder / "server.log").stat().st_size > 0, "logs come back from the nodes"
    assert nothing_is_left(cluster.folder, 0) == []
