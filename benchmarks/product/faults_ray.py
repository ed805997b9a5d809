"""Ray nodes on this machine, each on a loopback address of its own, that can be taken away and come
back.

    python benchmarks/product/faults_ray.py NODES

is the process that holds them: it prints the cluster's address, takes lines ``remove IP`` and ``add
IP``, and ends all when its input is closed. `RayNodes` starts it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from faults_machine import TOKEN, processes_of

HEAD = "127.0.0.22"
FIRST = 23
NODES = 2
_ACCESS = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-the-faults-only-0123456789abcdef"}


class RayNodes:
    """A cluster of nodes of 8 GPUs each.

    Args:
        token: by which everything that runs on the nodes is found.
        count: of its nodes.
    """

    def __init__(self, token: str, count: int = NODES) -> None:
        self.token, self.names = token, [f"127.0.0.{FIRST + i}" for i in range(count)]
        self.environment = {**_ACCESS, "RAY_USAGE_STATS_ENABLED": "0"}
        # Ray's own clocks are left alone, and a node's files lie where paths are short.
        ours = {
            name: value
            for name, value in os.environ.items()
            if name not in ("LD_PRELOAD", "FAULTS_CLOCK")
        }
        self.temporary = tempfile.TemporaryDirectory(dir="/tmp", prefix="fr")
        environment = {
            **ours,
            **self.environment,
            TOKEN: token,
            "TMPDIR": self.temporary.name,
            "RAY_TMPDIR": "/tmp",
        }
        environment["AUTOTUNE_EMULATE_FAULT"] = "slow-start:0.1"
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.address = self._line("127.")

    def _line(self, begins: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(begins):
                return line.strip()
        raise RuntimeError("the Ray nodes have ended")

    def ask(self, what: str, name: str) -> None:
        """``remove`` a node as a power cut does, or ``add`` it again."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {name}\n")
        self._process.stdin.flush()
        self._line("done")

    def kill_worker(self) -> bool:
        """End a process that runs a trial; False where there is none."""
        for pid, command in processes_of(self.token).items():
            if (
                command.startswith("ray::")
                and "IDLE" not in command
                and "_QueueActor" not in command
            ):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False

    def close(self) -> None:
        """End the nodes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self.temporary.cleanup()


def serve(count: int, lines: IO[str]) -> None:
    """Hold the nodes until the input ends."""
    from ray.cluster_utils import Cluster

    os.setsid()
    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "node_ip_address": HEAD}
    cluster = Cluster(initialize_head=True, head_node_args=head)

    def add(name: str) -> None:
        cluster.add_node(num_cpus=1, num_gpus=8, resources={"h200": 1}, node_ip_address=name)

    for i in range(count):
        add(f"127.0.0.{FIRST + i}")
    print(cluster.address, flush=True)
    for line in lines:
        what, name = line.split()
        found = [node for node in cluster.list_all_nodes() if node.node_ip_address == name]
        for node in found if what == "remove" else []:
            cluster.remove_node(node, allow_graceful=False)
        if what == "add" and not found:
            add(name)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    serve(int(sys.argv[1]), sys.stdin)
