"""What nodes send to the tuner, and what Ray Tune is given."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ray.tune.search import Searcher

from autotune.executors.ray import Task, TrialQueueSearcher, pack, unpack
from autotune.executors.ray.cluster import Node
from autotune.trial import Command, Configuration, Role, Trial


def test_a_folder_arrives_without_what_is_no_file_of_ours(tmp_path: Path) -> None:
    """Servers write into their folder what they like; it must not cost the result."""
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
    """Where nothing runs it would sleep for a second between two times that it asks, and go on for minutes."""
    searcher, task = TrialQueueSearcher(), Task("0.1", trial(0), 8, Node("a", "id-a", 8))
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
    return Trial(number, Role.SEARCH, Configuration("vllm", {}), "0.11", Command(("vllm",)), ("chat",))
