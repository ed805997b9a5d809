"""Forty launches on four nodes of eight GPUs against forty on one: minutes of emulated engines.

pytest -m slow tests/tuner/executors/test_four_nodes.py
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.product.cli import autotune, rows
from tests.product.test_real_path import nothing_is_left
from tests.tuner.executors.nodes import TOKEN, nodes
from tests.tuner.executors.records import busy_share, shared_gpus

WORKLOAD = "random:64:1000:4"
"""A quarter of a minute of an emulated server, and next to no work: two processors carry four of
them."""
QUESTION = (
    *("--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", "--on", "emulator"),
    *("--workload", WORKLOAD, "--launches", "40"),
)


def truth(home: Path, study: str) -> float:
    """What the simulated node gives for the recommended command, without noise."""
    found = json.loads((home / "studies" / study / "recommendation.json").read_text())
    settings = [f"{name}={value}" for name, value in found["env"].items()]
    version = ("--engine-version", found["engine_version"])
    question = (
        "--hw",
        "h200",
        "--workload",
        WORKLOAD,
        *version,
        "--json",
        "--",
        *settings,
        *found["argv"],
    )
    done = autotune("simulate", *question, home=home)
    assert done.code == 0, f"{done.err}\n{shlex.join(question)}"
    return float(done.json["total_token_throughput"])


@pytest.mark.slow
def test_four_nodes_find_what_one_finds_and_are_kept_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)
    with nodes(tmp_path, ["h200:8"] * 4) as cluster:
        done = autotune(
            "run", *QUESTION, "--executor", cluster.executor, "--study", "four", home=home
        )
        assert done.code == 0, done.err
        assert nothing_is_left(cluster.folder, 0) == []
    launches = rows(home, "four")
    assert sorted(row["number"] for row in launches) == list(range(40))
    assert shared_gpus(launches) == []
    first = [row for row in launches if row["role"] == "baseline"]
    assert len({row["node"] for row in first}) == 4, "the baseline is measured on every node"
    assert busy_share(launches, 4) >= 0.75
    done = autotune("run", *QUESTION, "--study", "one", home=home)
    assert done.code == 0, done.err
    assert truth(home, "four") == pytest.approx(truth(home, "one"), rel=0.02)
