"""Candidates near the launched ones: settings that are tried beside the best only (`Knob.beside`).

The candidates of a study are a product of what each knob may be. More knobs would multiply it, and
most of their values matter little or not at all on a node. So these values are added to the best
launched configurations, and what was found to be good goes with their neighbours of the product.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from autotune.engines import (
    Candidate,
    CandidateSet,
    Configuration,
    EngineSpace,
    Enumeration,
    Library,
    Scalar,
    broken_rules,
    default_of,
)
from autotune.node.unread import with_unread_settings

from ..study.spec import StudySpec
from .left_out import leave_out_refused, leave_out_unasked, leave_out_unjudged
from .predicted_memory import MemoryPlans, leave_out_by_memory, promises_kept

STEPS = 2
"""Values that are tried beside a configuration at once, and knobs of the product in which one may
differ to get its good values."""


class Nearby:
    """Candidates of a study that differ in a few settings from launched ones, of the same engines.

    Args:
        product: the candidates without them, the baseline first.
    """

    def __init__(
        self,
        spec: StudySpec,
        library: Library,
        spaces: Mapping[str, EngineSpace],
        plans: MemoryPlans,
        product: Sequence[Candidate],
    ) -> None:
        self._spec = spec
        self._library = library
        # Without those of which the baseline alone is a candidate; a space file says all that is
        # searched.
        self._spaces = {
            name: space
            for name, space in spaces.items()
            if space.space.configurations and name not in library.narrowed
        }
        self._plans = plans
        self._product = product
        self._around = dict[Configuration, list[Configuration]]()

    def around(self, one: Configuration) -> Sequence[Configuration]:
        """List the configurations near one that may be launched: `STEPS` values beside it, and its
        own such values in its neighbours of the product."""
        if one not in self._around:
            space = self._spaces.get(one.engine)
            found = [*space.beside(one, STEPS), *self._moved(space, one)] if space else []
            if self._spec.keeps_unread:
                # Without names that no figure of the simulator is about.
                found = [c for c in found if not self._names_new(c)]
            self._around[one] = self._left(space, found) if space and found else []
        return self._around[one]

    def extended(self, candidates: CandidateSet, more: Sequence[Configuration]) -> CandidateSet:
        """Return a set with more configurations behind its own; without those that are not of the
        spaces."""
        spaces, first = self._spaces, len(candidates)
        new = [Candidate(one, spaces[one.engine].context.version) for one in more if self._has(one)]
        if not new:
            return candidates
        given_up, _ = promises_kept([self._product[0], *new], spaces, self._plans)
        asked = (
            {}
            if self._spec.keeps_unread
            else {first + i: c.configuration for i, c in enumerate(new)}
        )
        return replace(
            candidates,
            items=[*candidates.items, *new],
            given_up={
                **candidates.given_up,
                **{first + i - 1: rows for i, rows in given_up.items()},
            },
            unseen=candidates.unseen | with_unread_settings(asked, spaces),
        )

    def _names_new(self, one: Configuration) -> bool:
        """Return whether a knob has a text value, such as a kernel's name, that no candidate of the
        product has."""
        return any(
            isinstance(value, str) and value not in self._product_values.get((one.engine, name), ())
            for name, value in one.knobs.items()
        )

    @cached_property
    def _product_values(self) -> Mapping[tuple[str, str], set[Scalar]]:
        """Return the values of each engine's knobs in the product."""
        found = dict[tuple[str, str], set[Scalar]]()
        for one in self._product:
            for name, value in one.configuration.knobs.items():
                found.setdefault((one.configuration.engine, name), set()).add(value)
        return found

    @cached_property
    def _values(self) -> Mapping[tuple[str, str], set[Scalar]]:
        """Return the values of each engine's knobs, in the product and beside it."""
        found = {key: {*values} for key, values in self._product_values.items()}
        for engine, space in self._spaces.items():
            for name, knob in space.card.knobs.items():
                beside = {value for case in knob.beside for value in case.values}
                found.setdefault((engine, name), set()).update(beside)
        return found

    def _has(self, one: Configuration) -> bool:
        """Return whether a configuration may have been launched in this study."""
        space = self._spaces.get(one.engine)
        if space is None or one.knobs.keys() != space.card.knobs.keys():
            return False
        scope, version = space.context.scope(one.knobs), space.context.version
        return (
            all(
                value in self._values[one.engine, name]
                or value == default_of(space.card.knobs[name], scope, version)
                for name, value in one.knobs.items()
            )
            and space.effective(one.knobs) == one
            and not broken_rules(space.card, one, space.context)
        )

    def _moved(self, space: EngineSpace, one: Configuration) -> list[Configuration]:
        """List the neighbours in the product of a configuration beside it, each with the values that
        it has beside the product."""
        mine = [c.configuration for c in self._product if c.configuration.engine == one.engine]
        if one in mine:
            return []
        apart = [_differing(one, other) for other in mine]
        nearest = min(range(len(mine)), key=lambda i: len(apart[i]), default=None)
        if nearest is None:
            return []
        own = {name: one.knobs[name] for name in apart[nearest]}
        moved = [
            space.effective({**other.knobs, **own})
            for other in mine
            if 0 < len(_differing(mine[nearest], other)) <= STEPS
        ]
        return [c for c in moved if not broken_rules(space.card, c, space.context)]

    def _left(self, space: EngineSpace, found: Sequence[Configuration]) -> list[Configuration]:
        """Return those that the study may launch."""
        here = replace(space, space=Enumeration([*dict.fromkeys(found)]))
        leave_out_unasked(self._spec, here)
        leave_out_unjudged(self._spec, here, self._library)
        leave_out_refused(here)
        leave_out_by_memory(self._spec, here, self._plans)
        return here.space.configurations


def _differing(one: Configuration, other: Configuration) -> list[str]:
    """List the knobs of a configuration in which another one differs."""
    return [name for name, value in one.knobs.items() if other.knobs.get(name) != value]
