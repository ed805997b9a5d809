"""Connection to Ray: the nodes that can run a study's trials, their names, and their assignment."""

import contextlib
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from typing import Any

import ray

import autotune
from autotune.base import BadInput, CannotGoOn, JsonObject, StringDict, frozen
from autotune.engines.machine import is_kind

from ...study.spec import StudySpec

CONNECT_S = 5.0
REACH_S = 1.0
"""Seconds to reach the port of a running Ray."""
VERSION_S = 120.0
"""Seconds for a node to report its version: its first worker process may load from a slow disk."""
ANSWER_S = 20.0
"""Seconds for a head node's first answer, which may be slow."""
HEAD_S = 15.0
"""Seconds for an unresponsive head node to return. Ray silently ends the tuner's process after 60
s."""
ACCELERATOR = "accelerator_type:"
"""Prefix of the resources with which Ray names detected GPUs."""

_WORKERS = {
    # Ray would kill the watchdog with the process that ran a trial, and nobody would end its
    # server's other processes.
    "RAY_kill_child_processes_on_worker_exit": "0",
    # Ray would have servers and load yield to every other process.
    "RAY_worker_niceness": "0",
}
"""Additional environment of processes that run trials, on top of that of ``ray start``."""
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""First words of an HTTP/2 client: the preface and an empty SETTINGS frame."""
_FRAME_HEAD = 9
_SETTINGS = 4
_NOT_JOINED = (ConnectionError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError)
"""Errors of Ray if a cluster cannot be joined."""


NodeInfo = JsonObject
"""A node as ``ray.nodes()`` returns it."""


@frozen
class Node:
    """Node with the study's hardware; a trial takes a little of the resource `kind` that names it,
    if any."""

    name: str
    node_id: str
    gpus: int
    kind: str = ""


class Cluster:
    """A connection to a Ray cluster.

    Args:
        address: ``HOST:PORT`` of the head node; empty: the cluster that runs on this machine, else
            a new one.
        own: whether to start a cluster of this machine alone, which declares the node's GPUs;
            without an address.

    Raises:
        BadInput: nothing answers there, or it is another version of Ray or of Python.
    """

    def __init__(self, address: str, own: bool, spec: StudySpec) -> None:
        self._hardware = spec.hardware
        self._needs_gpus = self._hardware.vendor != "cpu"
        self._versions = VersionCheck()
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        if address:
            _join(address)
        elif own:
            gpus = self._hardware.gpus if self._needs_gpus else 0
            # Ray starts a process for each processor beforehand.
            _start(spec, num_gpus=gpus, num_cpus=1)
        else:
            try:
                with _quiet():
                    _init(address="auto")
            except ConnectionError:
                _start(spec)
            except _NOT_JOINED as error:
                raise _cannot_be_joined("of this machine", "HOST:PORT", error) from error
        self.driver_node_id: str = ray.get_runtime_context().get_node_id()
        self._head: str = ray.get_runtime_context().gcs_address

    def nodes(self) -> list[Node]:
        """List the current nodes with the study's hardware."""
        self.check_head()
        infos = _node_infos()
        names = names_of(infos)
        kind = self._hardware.name
        found = []
        for info in infos:
            node_id, gpus = info["NodeID"], self._gpus(info)
            fits = not self._needs_gpus or kind == "local" or _is_of(info, kind)
            if info["Alive"] and gpus > 0 and fits:
                own = kind if kind in info["Resources"] else ""
                found.append(Node(names[node_id], node_id, gpus, own))
        return found

    def check(self, needs: Sequence[int]) -> None:
        """Raise `BadInput` if a candidate fits no node, or a node lacks this version of
        autotune."""
        nodes = self.nodes()
        if not nodes:
            alive = [info for info in _node_infos() if info["Alive"]]
            resources = "; ".join(f"{host_of(info)}: {_resources(info)}" for info in alive)
            name = self._hardware.name
            raise BadInput(
                f"no node of the Ray cluster has {name}: {resources}. On each such node: ray start "
                f'--address HOST:PORT --num-gpus {self._hardware.gpus} --resources \'{{"{name}": '
                f"1}}'"
            )
        largest = max(node.gpus for node in nodes)
        most = max(needs, default=1)
        if largest < most:
            raise BadInput(
                f"a candidate needs {most} GPUs on one node, but the largest {self._hardware.name} "
                f"node of the cluster has {largest}; use --gpus {largest}"
            )
        fit = [node for node in nodes if node.gpus >= most]
        for _, problem in self._versions.admit(fit, ALL_COMPLETED)[1]:
            raise BadInput(problem)

    def admitted(self, least: int) -> tuple[list[Node], list[tuple[Node, str]]]:
        """Return the nodes of at least this number of GPUs that may get trials, and the excluded
        ones with reasons.

        One that has joined since the last time is asked which autotune it has, and is in neither
        until it answers.
        """
        return self._versions.admit([node for node in self.nodes() if node.gpus >= least])

    def check_head(self) -> None:
        """Raise `CannotGoOn` if the head node is gone: calls of Ray would not return."""
        wait_for_head(self._head, HEAD_S)

    def answers(self) -> bool:
        """Return whether the head node is reachable."""
        return _listens(self._head)

    def close(self) -> None:
        """Leave the cluster: Ray ends our remaining work there."""
        ray.shutdown()

    def _gpus(self, info: NodeInfo) -> int:
        # Without GPUs a node counts as one device.
        return int(info["Resources"].get("GPU", 0)) if self._needs_gpus else 1


def _ask_version(node: Node) -> Future[str]:
    version: Future[str] = (
        ray.remote(num_cpus=0, max_retries=0)(_version)
        .options(label_selector={"ray.io/node-id": node.node_id})
        .remote()
        .future()
    )
    return version


def _version() -> str:
    return autotune.__version__


class VersionCheck:
    """Admit the nodes with this autotune version. Each is checked before its first trial, also if
    it joins later."""

    def __init__(self, ask: Callable[[Node], Future[str]] = _ask_version) -> None:
        self._ask = ask
        self._answers: dict[str, tuple[Future[str], float]] = {}
        self._reported: set[str] = set()

    def admit(
        self, nodes: Sequence[Node], wait_for: str = FIRST_COMPLETED
    ) -> tuple[list[Node], list[tuple[Node, str]]]:
        """Return the suitable nodes, and the others, once each, with the problem in a sentence.

        Nodes that have yet to answer are in neither. While there are no others they are waited for,
        with `ALL_COMPLETED` in any case.
        """
        for node in nodes:
            if node.node_id not in self._answers:
                self._answers[node.node_id] = (self._ask(node), time.monotonic())
        if wait_for == ALL_COMPLETED or not any(map(self._is_over, nodes)):
            wait([self._answers[node.node_id][0] for node in nodes], VERSION_S, wait_for)
        suitable = []
        refused = []
        for node in filter(self._is_over, nodes):
            problem = self._problem(node)
            if not problem:
                suitable.append(node)
            elif node.node_id not in self._reported:
                self._reported.add(node.node_id)
                refused.append((node, problem))
        return suitable, refused

    def _is_over(self, node: Node) -> bool:
        version, since_s = self._answers[node.node_id]
        return version.done() or time.monotonic() - since_s >= VERSION_S

    def _problem(self, node: Node) -> str:
        version = self._answers[node.node_id][0]
        name = f"node {node.name} of the Ray cluster"
        if not version.done():
            return f"{name} has not answered for {VERSION_S:g} s"
        if error := version.exception():
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return (
                f"{name} cannot run autotune: install autotune {autotune.__version__} in the "
                f"environment in which `ray start` runs there ({lines[-1].strip()})"
            )
        if version.result() == autotune.__version__:
            return ""
        return f"{name} has autotune {version.result()}; here is {autotune.__version__}"


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError:
        return False
    return True


def _node_infos() -> list[NodeInfo]:
    try:
        return list(ray.nodes())  # type: ignore[no-untyped-call]
    except ray.exceptions.RayError as error:
        raise head_is_gone(error) from error


def wait_for_head(address: str, wait_s: float) -> None:
    """Wait for a head node's answer; raises `CannotGoOn` after this time."""
    deadline_s = time.monotonic() + wait_s
    while not _listens(address):
        if time.monotonic() >= deadline_s:
            raise CannotGoOn(f"the Ray cluster no longer answers (its head at {address} is gone)")
        time.sleep(0.2)


def head_is_gone(error: BaseException) -> CannotGoOn:
    """Make the error for a head node lost during a study."""
    return CannotGoOn(f"the Ray cluster no longer answers ({_first_line(error)})")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_of(info: NodeInfo, hardware: str) -> bool:
    """Return whether a node declares a kind of hardware, or Ray detected its GPUs as such."""
    if hardware in info["Resources"]:
        return True
    return any(
        is_kind(name.removeprefix(ACCELERATOR).replace("-", " "), hardware)
        for name in info["Resources"]
        if name.startswith(ACCELERATOR)
    )


def _resources(info: NodeInfo) -> str:
    shown = [
        f"{value:g} {name}"
        for name, value in sorted(info["Resources"].items())
        if not name.startswith(("node:", "memory", "object_store"))
    ]
    return ", ".join(shown) or "nothing"


def _join(address: str) -> None:
    """Join the cluster of a head node.

    It is greeted in HTTP/2 first, as Ray's gRPC speaks it: Ray would ask anything else for a
    quarter of an hour. Source: RFC 9113, sections 3.4 (the first frame is SETTINGS) and 4.1.
    """
    host, _, port = address.rpartition(":")
    problem = ""
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.settimeout(ANSWER_S)
                connection.sendall(_HTTP2)
                with connection.makefile("rb") as answer:
                    head = answer.read(_FRAME_HEAD)
                if len(head) < _FRAME_HEAD or head[3] != _SETTINGS:
                    problem = "another service listens there"
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        raise BadInput(
            f"no Ray cluster answers at {address} ({problem}); start one with: ray start --head "
            "--port 6379"
        )
    # Ray takes the address of an outside interface for this machine's, where a cluster on loopback
    # has none.
    own = host.startswith("127.") and host != "127.0.0.1"
    try:
        with _quiet():
            _init(address=address, **({"_node_ip_address": host} if own else {}))
    except _NOT_JOINED as error:
        raise _cannot_be_joined(f"at {address}", address, error) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discard the messages that Ray's C++ part writes to stderr each second while it is refused."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _cannot_be_joined(which: str, address: str, error: BaseException) -> BadInput:
    return BadInput(
        f"the Ray cluster {which} cannot be joined: {_first_line(error)}. Run autotune on one of "
        f"its machines (after `ray start --address {address}` there), with Ray {ray.__version__} "
        f"and Python {platform.python_version()}; a cluster with a token wants RAY_AUTH_MODE=token "
        "here and the token of the head's ~/.ray/auth_token"
    )


def _start(spec: StudySpec, **declared: int) -> None:
    """Start a cluster of this machine only: on loopback, without a dashboard."""
    _init(
        address="local",
        resources={spec.hardware.name: 1},
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        **declared,
    )


def _init(**options: Any) -> None:
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGTERM)
    ray.init(
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        runtime_env={"env_vars": _WORKERS},
        **options,
    )
    if before is not None:
        # Ray would exit on SIGTERM without a word; here it is an interruption like any other.
        signal.signal(signal.SIGTERM, before)


class NodePool:
    """The nodes in use, up to a limit, and their trials."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._present: dict[str, Node] = {}
        self._order: list[str] = []
        self.retired: StringDict = {}
        """Retired nodes, with reasons."""
        self._assigned: dict[str, tuple[str, int]] = {}

    @property
    def used(self) -> list[Node]:
        """List the nodes that trials may run on: the first seen ones of those present."""
        return [
            self._present[name]
            for name in self._order
            if name in self._present and name not in self.retired
        ][: self._most]

    @property
    def present_ids(self) -> set[str]:
        """Return Ray's ids of the present nodes, used or not."""
        return {node.node_id for node in self._present.values()}

    @property
    def unused(self) -> int:
        """Count the suitable present nodes that are not used."""
        return sum(name not in self.retired for name in self._present) - len(self.used)

    def update(self, nodes: Iterable[Node]) -> None:
        """Set the present nodes. A node that returns under another id is the same one."""
        self._present = {node.name: node for node in nodes}
        self._order += sorted(name for name in self._present if name not in self._order)

    def free_gpus(self, node: Node) -> int:
        """Count a node's GPUs not used or reserved by trials; below zero if trials wait."""
        return node.gpus - sum(gpus for name, gpus in self._assigned.values() if name == node.name)

    def has_room(self, gpus: int) -> bool:
        """Return whether a trial of this number of GPUs would start at once."""
        return any(self.free_gpus(node) >= gpus for node in self.used)

    def assign(self, key: str, gpus: int, wanted: str = "", avoid: str = "") -> Node | None:
        """Assign a node to a trial; None if no node has this number of GPUs.

        The fullest node on which it can start, so that whole nodes stay free for trials that need
        one; else the one with the shortest queue. Another than `wanted` is assigned where that is
        gone, and `avoid` where it is the only one.
        """
        fit = [node for node in self.used if node.gpus >= gpus]
        fit = [node for node in fit if node.name == wanted] or fit
        fit = [node for node in fit if node.name != avoid] or fit
        now = [node for node in fit if self.free_gpus(node) >= gpus]
        best = min(now, key=self.free_gpus) if now else max(fit, key=self.free_gpus, default=None)
        if best:
            self._assigned[key] = (best.name, gpus)
        return best

    def release(self, key: str) -> None:
        """Free the GPUs of a trial that has ended."""
        self._assigned.pop(key, None)


def host_of(info: NodeInfo) -> str:
    return str(info["NodeManagerHostname"])


def names_of(infos: Sequence[NodeInfo]) -> StringDict:
    """Name each node, by id: by host name if that is unique, else by Ray's name for the node.

    Nodes that are gone count too, so that a name stays when others come and go; one that came back
    has its name again.
    """
    hosts = Counter(host for host, _ in {(host_of(info), info["NodeName"]) for info in infos})
    alive = Counter((host_of(info), info["NodeName"]) for info in infos if info["Alive"])
    names = {}
    for info in infos:
        host, ray_name, node_id = host_of(info), str(info["NodeName"]), info["NodeID"]
        name = host if hosts[host] == 1 else ray_name
        names[node_id] = name if alive[host, ray_name] <= 1 else f"{name}-{node_id[:6]}"
    return names
