"""What rows tell of nodes and GPUs: when each was in use, and by which launch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from autotune.tuner.study.timeline import covered_s

Row = dict[str, Any]


def interval(row: Row) -> tuple[float, float]:
    """When a launch began and ended, seconds since the epoch."""
    began = datetime.fromisoformat(row["started_at"]).timestamp()
    return began, began + sum(row["times_s"].values())


def overlap(one: Row, other: Row) -> bool:
    (a, b), (c, d) = interval(one), interval(other)
    return a < d and c < b


def shared_gpus(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """Pairs of launches that had a GPU of one node at the same time."""
    return [
        (one["number"], other["number"])
        for one, other in itertools.combinations(rows, 2)
        if one["node"] == other["node"]
        and set(one["gpu_ids"]) & set(other["gpu_ids"])
        and overlap(one, other)
    ]


def side_by_side(rows: Iterable[Row]) -> int:
    """Pairs of launches that ran on one node at the same time."""
    return sum(
        one["node"] == other["node"] and overlap(one, other)
        for one, other in itertools.combinations(rows, 2)
    )


def busy_share(rows: Sequence[Row], nodes: int) -> float:
    """The share of the nodes' time, from the first launch to the last one's end, in which they ran
    a launch."""
    by_node: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        by_node[row["node"]].append(interval(row))
    everything = [one for found in by_node.values() for one in found]
    whole = max(end for _, end in everything) - min(begin for begin, _ in everything)
    return sum(map(covered_s, by_node.values())) / (nodes * whole)
