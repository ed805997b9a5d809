"""Which machine is which, in what Ray tells of its nodes: plain data, no Ray here."""

from __future__ import annotations

import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ANSWER_S = 1.0
"""For the port of a node's Ray to be reached."""

Row = Mapping[str, Any]
"""A node as ``ray.nodes()`` tells it."""


def host_of(row: Row) -> str:
    """The machine's own name."""
    return str(row["NodeManagerHostname"])


def names_of(rows: Sequence[Row]) -> dict[str, str]:
    """How nodes are called, by id: by host name where that tells machines apart, else by Ray's name for the node.

    Nodes that are gone count too, so that a name stays when others come and go; one that came back has its name again.
    """
    machines = {(host_of(row), row["NodeName"]) for row in rows}
    hosts = Counter(host for host, _ in machines)
    alive = Counter((host_of(row), row["NodeName"]) for row in rows if row["Alive"])
    found = {}
    for row in rows:
        host, name = host_of(row), str(row["NodeName"])
        told = host if hosts[host] == 1 else name
        found[row["NodeID"]] = told if alive[host, name] <= 1 else f"{told}-{row['NodeID'][:6]}"
    return found


class Rebooted:
    """Tells nodes from those that were on the same machine before it was started again.

    Ray takes half a minute to see that a node is gone; a machine that is back before that is there twice, as two nodes.

    Args:
        answers: whether something listens at a host's port.
    """

    def __init__(self, answers: Callable[[str, int], bool] | None = None) -> None:
        self._answers = answers or listens
        self._seen: dict[str, int] = {}

    def without_ghosts(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, in which only those are alive that really are.

        Several Rays may run on one machine, so what decides is whether each answers at its own port. Two ids at one
        port cannot: the one that was heard of last counts.
        """
        for row in rows:
            self._seen.setdefault(row["NodeID"], len(self._seen))
        alike = defaultdict[tuple[str, str], list[Row]](list)
        for row in rows:
            if row["Alive"]:
                alike[host_of(row), row["NodeName"]].append(row)
        ghosts = {row["NodeID"] for same in alike.values() if len(same) > 1 for row in self._ghosts(same)}
        return [{**row, "Alive": False} if row["NodeID"] in ghosts else row for row in rows]

    def _ghosts(self, same: Sequence[Row]) -> list[Row]:
        at = defaultdict[tuple[str, int], list[Row]](list)
        for row in same:
            at[row["NodeManagerAddress"], int(row["NodeManagerPort"])].append(row)
        there = {port for port in at if self._answers(*port)}
        latest = [max(at[port], key=lambda row: self._seen[row["NodeID"]]) for port in there]
        # Where none can be reached from here, nothing is known.
        return [row for row in same if there and row not in latest]


def listens(host: str, port: int) -> bool:
    """Whether a connection can be made there."""
    try:
        socket.create_connection((host, port), ANSWER_S).close()
    except OSError:
        return False
    return True
