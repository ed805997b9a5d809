"""Place launches on one clock, and sum up the time that a study has used."""

from collections.abc import Iterable, Mapping, Sequence

from autotune.base import Evidence, Interval, by_key

from ..trial import Launch
from .spec import node_of_place

_VIRTUAL = (Evidence.SIMULATED, Evidence.REPLAYED)


def start_times(launches: Iterable[Launch], several: bool = True) -> Mapping[int, float]:
    """Return the start time of each launch by its number, seconds; since the epoch for real time.

    Where it did not, every launch begins, in the order of their numbers, as soon as those before it
    have begun and its GPUs are free. The same GPUs of a node run one after the other, also where a
    clock was set back; all else side by side. Where not `several`, rows name no nodes of the study:
    there is one place, whatever its host is called.
    """
    found = {}
    free: dict[tuple[str, str], float] = {}
    latest = 0.0
    # Virtual launches have no time of their own on the clock.
    begun = [
        (0.0 if row.result.evidence in _VIRTUAL else row.result.began_s or 0.0, row)
        for row in launches
    ]
    for began_s, launch in sorted(begun, key=lambda pair: (pair[0], pair[1].number)):
        result = launch.result
        gpus = (
            [(node_of_place(result.node), gpu) for gpu in result.gpu_ids or ("",)]
            if several
            else [("", "")]
        )
        latest = max(began_s or latest, *(free.get(gpu, 0.0) for gpu in gpus))
        found[launch.number] = latest
        free |= dict.fromkeys(gpus, latest + result.seconds)
    return found


def node_s(launches: Sequence[Launch]) -> float:
    """Return the time in which at least one launch ran on a node, summed over the nodes."""
    # Ignore the hosts that rows name where no trial was bound to a node.
    several = any(launch.trial.node for launch in launches)
    begins = start_times(launches, several)
    ran = by_key(
        (
            node_of_place(launch.result.node) if several else "",
            (begins[launch.number], begins[launch.number] + launch.result.seconds),
        )
        for launch in launches
    )
    return sum(map(covered_s, ran.values()))


def covered_s(intervals: Sequence[Interval]) -> float:
    """Return the total length of the union of intervals (start, end); gaps do not count."""
    total = 0.0
    reached = float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
