"""Two launches at a time on the halves of an emulated node: real processes, real HTTP, and nothing
left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from autotune.tuner.study.timeline import covered_s
from tests.product.cli import autotune, finished_rows, kill_after, new_home, rows
from tests.product.processes import start
from tests.product.test_real_path import launched_processes, nothing_is_left
from tests.tuner.executors.records import interval, shared_gpus, side_by_side

QUESTION = [
    *(
        "run",
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
    ),
    *("--workload", "random:64:200:4", "--launches", "12", "--study", "s"),
]
ALONE, HALVES = "gpus 0-3 alone", {"gpus 0-3", "gpus 4-7"}


def test_two_launches_run_at_a_time_and_outlive_no_kill(tmp_path: Path) -> None:
    home = new_home(tmp_path)

    def both_halves_run() -> bool:
        return len(finished_rows(home, "s")) >= 4 and len(launched_processes(home)) >= 2

    assert kill_after(QUESTION, home, 0.5, both_halves_run)
    assert nothing_is_left(home, 5.0) == []
    before = finished_rows(home, "s")
    done = autotune("resume", "s", home=home)
    assert done.code == 0, done.err
    assert nothing_is_left(home, 0) == []
    assert finished_rows(home, "s")[: len(before)] == before
    launches = sorted(rows(home, "s"), key=lambda row: int(row["number"]))
    assert [row["number"] for row in launches] == list(range(len(launches)))
    assert [row["node"] for row in launches[:3]] == [ALONE, *sorted(HALVES)]
    assert {row["node"] for row in launches[3:]} == HALVES
    assert {"".join(row["gpu_ids"]) for row in launches} == {"0123", "4567"}
    anywhere = [{**row, "node": "here"} for row in launches]
    assert shared_gpus(anywhere) == []
    assert side_by_side(anywhere) > len(launches) // 3
    assert "## Do the nodes differ?" in (home / "studies" / "s" / "report.md").read_text()
    # One node was in use, at least half of the time by two launches of four GPUs each.
    cost = json.loads((home / "studies" / "s" / "recommendation.json").read_text())["study_cost"]
    assert cost["node_hours"] == pytest.approx(
        covered_s([interval(row) for row in launches]) / 3600
    )
    assert cost["gpu_hours"] == pytest.approx(
        4 * sum(sum(row["times_s"].values()) for row in launches) / 3600
    )
    assert cost["gpu_hours"] < 8 * cost["node_hours"]


def test_a_study_on_a_part_of_a_node_tells_hours_of_the_node_and_of_its_gpus(
    tmp_path: Path,
) -> None:
    home = new_home(tmp_path)
    part = ("--on", "simulator", "--launches", "4", "--gpu-hour-price", "3", "--json")
    done = autotune(*QUESTION, *part, home=home)
    assert done.code == 0, done.err
    launches, cost = rows(home, "s"), done.json["study_cost"]
    hours = sum(sum(row["times_s"].values()) for row in launches) / 3600
    assert cost["node_hours"] == pytest.approx(hours)
    assert (cost["gpu_hours"], cost["cost"]) == (
        pytest.approx(4 * hours),
        pytest.approx(3 * 4 * hours),
    )
    told = f"{hours:#.3g} node-hours of the simulated node ({4 * hours:#.3g} GPU-hours)"
    assert told in (home / "studies" / "s" / "report.md").read_text()
    outlook = next(line for line in done.err.splitlines() if "node-hours" in line)
    assert len(set(re.findall(r"([\d.]+) (?:node-)?hours", outlook))) == 1, (
        "a launch at a time on one node"
    )


def test_launches_that_slow_each_other_are_made_one_at_a_time(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    environment = {
        **os.environ,
        "AUTOTUNE_HOME": str(home),
        "AUTOTUNE_EMULATE_FAULT": "slow-beside-others:0.25",
    }
    with start(*QUESTION, environment=environment, err=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if " 4/12" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 130, rest
    assert nothing_is_left(home, 0) == []
    (why,) = (line for line in said if "one at a time from here on" in line)
    assert why.startswith("launches side by side slow each other by ")
    launches = rows(home, "s")
    assert launches[3]["node"] == launches[3]["bound_node"] == ALONE
    assert "Traceback" not in rest


def test_one_at_a_time_can_be_asked_for(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    done = autotune(*QUESTION, "--executor", "local:1", "--launches", "1", home=home)
    assert done.code == 0, done.err
    assert {row["gpu_ids"] for row in rows(home, "s") if "gpu_ids" in row} == set()
    refused = autotune(*QUESTION, "--executor", "local:0", "--study", "t", home=home)
    assert refused.code == 2
    assert "local:1" in refused.err
