"""Several Ray nodes on this machine, as a process of their own that ends with whoever started it.

    python -m tests.tuner.executors.nodes h200:8 h200:8 b200:4

Each node has a loopback address of its own. Prints the address of the cluster; then takes lines
``remove IP`` from stdin, and ends when that is closed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HEAD = "127.0.0.2"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-the-tests-only-0123456789abcdef"}
"""Whatever the machine's own settings are: for the cluster and for whoever joins it."""


@dataclass(frozen=True)
class Nodes:
    """The cluster that runs.

    Attributes:
        folder: below it lie the folders of trials that run.
    """

    address: str
    folder: Path
    process: subprocess.Popen[str]

    @property
    def executor(self) -> str:
        return f"ray:{self.address}"

    def remove(self, name: str) -> None:
        """Take a node away as a power cut would; returns when it is gone."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"remove {name}\n")
        self.process.stdin.flush()
        assert _line(self.process.stdout) == f"removed {name}"


@contextmanager
def nodes(folder: Path, kinds: Sequence[str]) -> Iterator[Nodes]:
    """A cluster of nodes with these GPUs, ``KIND:COUNT``, named 127.0.0.3 and so on."""
    environment = {
        **os.environ,
        **TOKEN,
        "TMPDIR": str(folder),
        "RAY_TMPDIR": "/tmp",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (
        (folder / "cluster.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.tuner.executors.nodes", *kinds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=Path(__file__).resolve().parents[3],
            text=True,
        ) as process,
    ):
        try:
            address = _line(process.stdout)
            assert address.startswith(HEAD), (folder / "cluster.log").read_text()
            yield Nodes(address, folder, process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    # Ray's own words may come before ours.
    for line in stream:
        if line.startswith(("127.", "removed")):
            return line.strip()
    return ""


def main(kinds: Sequence[str]) -> None:
    from ray.cluster_utils import Cluster

    os.setsid()
    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "node_ip_address": HEAD}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for index, (kind, _, count) in enumerate(kind.partition(":") for kind in kinds):
        own = {"resources": {kind: 1}, "node_ip_address": f"127.0.0.{3 + index}"}
        cluster.add_node(num_cpus=1, num_gpus=int(count), **own)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        name = line.split()[1]
        (node,) = (node for node in cluster.list_all_nodes() if node.node_ip_address == name)
        cluster.remove_node(node, allow_graceful=False)
        print(f"removed {name}", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
