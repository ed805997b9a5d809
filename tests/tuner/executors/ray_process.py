"""One process of Ray's in which a trial would run, broken off: ``python -m
tests.tuner.executors.ray_process FILE``.

Prints what it has of Ray; its child stands for a watchdog and writes to the file when the process
is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from autotune.tuner.executors.factory import prepare_environment

CHILD = """
import os, sys, time
tuner = os.getppid()
print(flush=True)
while os.getppid() == tuner:
    time.sleep(0.02)
open(sys.argv[1] + ".draft", "w").write("the tuner is gone")
os.replace(sys.argv[1] + ".draft", sys.argv[1])
"""


class Trial:
    """Holds a child as a trial holds its watchdog."""

    def begin(self, path: str) -> dict[str, Any]:
        from autotune.tuner.executors.ray import environment_of_ray_start

        self.child = subprocess.Popen(
            [sys.executable, "-S", "-c", CHILD, path],
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        assert self.child.stdout is not None
        self.child.stdout.readline()
        threads_of_ray = os.environ.get("OMP_NUM_THREADS")
        oom_of_ray = _oom_score()
        with environment_of_ray_start():
            threads, oom = os.environ.get("OMP_NUM_THREADS"), _oom_score()
        found = {"niceness": os.nice(0), "threads_of_ray": threads_of_ray, "threads": threads}
        return {**found, "oom_of_ray": oom_of_ray, "oom": oom, "oom_after": _oom_score()}


def _oom_score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


def main(path: str) -> None:
    prepare_environment(own_cluster=True)
    import ray

    from autotune.tuner.executors.ray import Started, create_queue, take_events
    from autotune.tuner.executors.ray.cluster import Cluster
    from tests.small_study import spec

    cluster = Cluster("", True, spec())
    queue = create_queue(cluster.driver_node_id)
    taken = {}
    for wait_s in (0.0, 1.0):
        for key in "12":
            queue.put(Started(key))
        taken[wait_s] = [[event.key for event in take_events(queue, wait_s)] for _ in range(2)]
    trial = ray.remote(num_cpus=0.001, num_gpus=4)(Trial).remote()
    print(json.dumps({**ray.get(trial.begin.remote(path)), "taken": list(taken.values())}))
    cluster.close()


if __name__ == "__main__":
    main(sys.argv[1])
