"""Names of the places on one node where launches run: shares of its GPUs, and the first share while the others idle.

They stand in the column ``node`` of a study whose launches run side by side on one machine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

_SHARE, _ALONE = "gpus ", " alone"


def share_name(gpus: Sequence[int]) -> str:
    """The place of a share of the GPUs, e.g. ``gpus 0-3``."""
    first, last = gpus[0], gpus[-1]
    whole = list(gpus) == list(range(first, last + 1))
    numbers = f"{first}-{last}" if whole and first != last else ",".join(map(str, gpus))
    return f"{_SHARE}{numbers}"


def alone(share: str) -> str:
    """The place where a launch has a share, and the other shares idle."""
    return share + _ALONE


def is_alone(place: str) -> bool:
    """True if launches of a place have the node to themselves although they use a share of it."""
    return place.startswith(_SHARE) and place.endswith(_ALONE)


def is_beside(place: str) -> bool:
    """True if launches of a place may share the node with others."""
    return place.startswith(_SHARE) and not is_alone(place)


def node_of_place(place: str) -> str:
    """Name the node of a place: empty for this machine, which shares are on; else the place is a node."""
    return "" if place.startswith(_SHARE) else place


def at_once(places: Collection[str]) -> int:
    """Count the launches that run at a time on some places, all of which are free: at least one."""
    return max(1, len({place for place in places if not is_alone(place)}))
