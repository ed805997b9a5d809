"""What is known of each Ray node: its name, whether it is still there, and which autotune it has."""

from __future__ import annotations

import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import ray

import autotune
from autotune.executors.ray.node_pool import Node

CONNECT_S = 1.0
"""For the port of a node's Ray to be reached."""
VERSION_S = 120.0
"""For a node to say its version: its first worker process may have to be read from a slow disk."""

NodeInfo = Mapping[str, Any]
"""A node as ``ray.nodes()`` returns it."""
Version = Future[str]
"""A node's version of autotune, once it has answered."""


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


def listens(host: str, port: int) -> bool:
    """Whether a TCP connection can be made."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True


class RebootDetector:
    """Tells nodes from those that were on the same machine before it was started again.

    Ray takes half a minute to see that a node is gone; a machine that is back before that is listed as two nodes.

    Args:
        answers: whether something listens at a host's port.
    """

    def __init__(self, answers: Callable[[str, int], bool] = listens) -> None:
        self._answers = answers
        self._first_seen: dict[str, int] = {}

    def without_ghosts(self, infos: Sequence[NodeInfo]) -> list[NodeInfo]:
        """The nodes, of which only those that really run are ``Alive``.

        Several Rays may run on one machine, so what decides is whether each answers at its own port. Two ids at one
        port cannot: the one that was seen last counts.
        """
        for info in infos:
            self._first_seen.setdefault(info["NodeID"], len(self._first_seen))
        by_machine = defaultdict[tuple[str, str], list[NodeInfo]](list)
        for info in infos:
            if info["Alive"]:
                by_machine[host_of(info), info["NodeName"]].append(info)
        ghosts = {info["NodeID"] for same in by_machine.values() if len(same) > 1 for info in self._ghosts(same)}
        return [{**info, "Alive": False} if info["NodeID"] in ghosts else info for info in infos]

    def _ghosts(self, same: Sequence[NodeInfo]) -> list[NodeInfo]:
        by_port = defaultdict[tuple[str, int], list[NodeInfo]](list)
        for info in same:
            by_port[info["NodeManagerAddress"], int(info["NodeManagerPort"])].append(info)
        open_ports = {port for port in by_port if self._answers(*port)}
        latest = [max(by_port[port], key=lambda info: self._first_seen[info["NodeID"]]) for port in open_ports]
        # Where none can be reached from here, nothing is known.
        return [info for info in same if open_ports and info not in latest]


@dataclass(frozen=True, slots=True)
class _Query:
    version: Version
    since_s: float

    @property
    def over(self) -> bool:
        return self.version.done() or time.monotonic() - self.since_s >= VERSION_S


def ask_version(node: Node) -> Version:
    """Ask a node of the cluster for its version of autotune."""
    remote = ray.remote(num_cpus=0, max_retries=0)(_version)
    version: Version = remote.options(label_selector={"ray.io/node-id": node.node_id}).remote().future()
    return version


class VersionCheck:
    """Admits the nodes that have this autotune. Each is asked before it gets a trial, those that join later too.

    Args:
        ask: asks a node.
    """

    def __init__(self, ask: Callable[[Node], Version] = ask_version) -> None:
        self._ask = ask
        self._queries: dict[str, _Query] = {}
        self._reported: set[str] = set()

    def problems(self, nodes: Sequence[Node]) -> list[str]:
        """What is wrong with some nodes, a sentence for each; waits until all have answered."""
        self._answered(nodes)
        wait([self._queries[node.node_id].version for node in nodes], VERSION_S)
        return [problem for node in nodes if (problem := self._problem(node))]

    def admit(self, nodes: Sequence[Node]) -> tuple[list[Node], list[tuple[Node, str]]]:
        """The nodes that will do, and those that will not, once each, with what is wrong.

        Nodes that have yet to answer are in neither. While there are no others they are waited for.
        """
        answered = self._answered(nodes)
        if nodes and not answered:
            wait([self._queries[node.node_id].version for node in nodes], VERSION_S, FIRST_COMPLETED)
            answered = self._answered(nodes)
        problems = {node: self._problem(node) for node in answered}
        refused = [(node, why) for node, why in problems.items() if why and node.node_id not in self._reported]
        self._reported |= {node.node_id for node, _ in refused}
        return [node for node, why in problems.items() if not why], refused

    def _answered(self, nodes: Sequence[Node]) -> list[Node]:
        for node in nodes:
            if node.node_id not in self._queries:
                self._queries[node.node_id] = _Query(self._ask(node), time.monotonic())
        return [node for node in nodes if self._queries[node.node_id].over]

    def _problem(self, node: Node) -> str:
        """One sentence; empty where nothing is wrong."""
        version, name = self._queries[node.node_id].version, f"node {node.name} of the Ray cluster"
        if not version.done():
            return f"{name} has not answered for {VERSION_S:g} s"
        error = version.exception()
        if error is not None:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return (
                f"{name} cannot run autotune: install autotune {autotune.__version__} in the environment in which "
                f"`ray start` runs there ({lines[-1] if lines else type(error).__name__})"
            )
        if version.result() == autotune.__version__:
            return ""
        return f"{name} has autotune {version.result()}; here is {autotune.__version__}"


def _version() -> str:
    return autotune.__version__
