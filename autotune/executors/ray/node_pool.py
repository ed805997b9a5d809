"""Which node runs which trial, by the GPUs that trials need, and what nodes are called: bookkeeping, no Ray here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NodeInfo = Mapping[str, Any]
"""A node as ``ray.nodes()`` returns it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster that has the study's hardware.

    Attributes:
        name: its name in rows and reports.
        node_id: Ray's id.
        gpus: how many it has.
        kind: a resource of the node that names its hardware, of which a trial takes a little; empty: none.
    """

    name: str
    node_id: str
    gpus: int
    kind: str = ""


class NodePool:
    """The nodes in use and the trials on them.

    Args:
        most: the most nodes to use.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._present: dict[str, Node] = {}
        self._order: list[str] = []
        self.retired: dict[str, str] = {}
        """Names of nodes that are used no more, and why."""
        self._assigned: dict[str, tuple[str, int]] = {}

    @property
    def used(self) -> list[Node]:
        """The nodes that trials may run on: the first that were seen of those that are present."""
        fit = [self._present[name] for name in self._order if name in self._present and name not in self.retired]
        return fit[: self._most]

    @property
    def present_ids(self) -> set[str]:
        """Ray's ids of the nodes that are present, used or not."""
        return {node.node_id for node in self._present.values()}

    @property
    def unused(self) -> int:
        """How many present nodes would do and are not used."""
        return sum(name not in self.retired for name in self._present) - len(self.used)

    def update(self, nodes: Iterable[Node]) -> None:
        """Set the present nodes. A node that came back under another id is the same one."""
        self._present = {node.name: node for node in nodes}
        self._order += sorted(name for name in self._present if name not in self._order)

    def free_gpus(self, node: Node) -> int:
        """GPUs of a node that no trial has or waits for; below zero where trials wait."""
        return node.gpus - sum(gpus for name, gpus in self._assigned.values() if name == node.name)

    def has_room(self, gpus: int) -> bool:
        """Whether a trial of so many GPUs would start at once."""
        return any(self.free_gpus(node) >= gpus for node in self.used)

    def assign(self, key: str, gpus: int, wanted: str = "", avoid: str = "") -> Node | None:
        """Assign a node to a trial; None where no node has so many GPUs.

        The fullest node on which it can start, so that whole nodes stay free for trials that need one; else the one
        with the shortest queue.

        Args:
            key: of the trial, for `release`.
            wanted: the node that the trial names; another one is assigned where it is gone.
            avoid: a node that is assigned only where there is no other.
        """
        fit = [node for node in self.used if node.gpus >= gpus]
        fit = [node for node in fit if node.name == wanted] or fit
        fit = [node for node in fit if node.name != avoid] or fit
        if not fit:
            return None
        now = [node for node in fit if self.free_gpus(node) >= gpus]
        best = min(now, key=self.free_gpus) if now else max(fit, key=self.free_gpus)
        self._assigned[key] = (best.name, gpus)
        return best

    def release(self, key: str) -> None:
        """Free the GPUs of a trial that has ended."""
        self._assigned.pop(key, None)


def host_of(info: NodeInfo) -> str:
    """The machine's own name."""
    return str(info["NodeManagerHostname"])


def names_of(infos: Sequence[NodeInfo]) -> dict[str, str]:
    """Name each node, by id: by host name where that tells machines apart, else by Ray's name for the node.

    Nodes that are gone count too, so that a name stays when others come and go; one that came back has its name again.
    """
    machines = {(host_of(info), info["NodeName"]) for info in infos}
    hosts = Counter(host for host, _ in machines)
    alive = Counter((host_of(info), info["NodeName"]) for info in infos if info["Alive"])
    names = {}
    for info in infos:
        host, ray_name = host_of(info), str(info["NodeName"])
        name = host if hosts[host] == 1 else ray_name
        names[info["NodeID"]] = name if alive[host, ray_name] <= 1 else f"{name}-{info['NodeID'][:6]}"
    return names
