"""Which node runs which trial, by the GPUs that trials need: plain bookkeeping, no Ray here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A node of the cluster that has the study's hardware.

    Attributes:
        name: how it is called in rows and reports.
        node_id: Ray's.
        gpus: those that it has.
        kind: a resource of the node that names its hardware, of which a trial takes a little; empty: none.
    """

    name: str
    node_id: str
    gpus: int
    kind: str = ""


class Places:
    """The nodes in use and what runs on them.

    Args:
        most: so many nodes are used at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, Place] = {}
        self._order: list[str] = []
        self._retired: dict[str, str] = {}
        self._held: dict[str, tuple[str, int]] = {}

    @property
    def used(self) -> list[Place]:
        """Those that trials may run on: the first that were seen of those that are there."""
        fit = [self._known[name] for name in self._order if name in self._known and name not in self._retired]
        return fit[: self._most]

    @property
    def there(self) -> set[str]:
        """Ray's names of the nodes that are there, used or not."""
        return {place.node_id for place in self._known.values()}

    @property
    def spare(self) -> int:
        """Nodes that would do and are not used."""
        return sum(name not in self._retired for name in self._known) - len(self.used)

    def update(self, places: Iterable[Place]) -> None:
        """What is there now. A node that came back under another identity is the same one."""
        self._known = {place.name: place for place in places}
        self._order += sorted(name for name in self._known if name not in self._order)

    def retire(self, name: str, why: str) -> None:
        """Use a node no more."""
        self._retired[name] = why

    @property
    def retired(self) -> dict[str, str]:
        """Nodes that are used no more, and why."""
        return dict(self._retired)

    def free(self, place: Place) -> int:
        """GPUs of a node that no trial has or waits for; below zero where trials wait."""
        return place.gpus - sum(gpus for name, gpus in self._held.values() if name == place.name)

    def room(self, gpus: int) -> bool:
        """Whether a trial of so many GPUs would begin at once."""
        return any(self.free(place) >= gpus for place in self.used)

    def take(self, key: str, gpus: int, node: str = "", avoid: str = "") -> Place | None:
        """Give a trial its node; None where no node has so many GPUs.

        The fullest node on which it can begin, so that whole nodes stay free for trials that need one; else the one
        with the shortest queue.

        Args:
            key: of the trial, for `give_back`.
            node: the one that the trial asks for; another one where that is gone.
            avoid: a node that is chosen only where there is no other.
        """
        fit = [place for place in self.used if place.gpus >= gpus]
        fit = [place for place in fit if place.name == node] or fit
        fit = [place for place in fit if place.name != avoid] or fit
        if not fit:
            return None
        now = [place for place in fit if self.free(place) >= gpus]
        best = min(now, key=self.free) if now else max(fit, key=self.free)
        self._held[key] = (best.name, gpus)
        return best

    def give_back(self, key: str) -> None:
        """A trial has ended."""
        self._held.pop(key, None)
