"""What a configuration gives up for speed: the marked values of its knobs (`Knob.gives_up`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pydantic import BaseModel, ConfigDict, Field

from autotune.space.context import Context, default_of
from autotune.space.expression import Namespace, evaluate, fill, names, template_names
from autotune.space.schema import EngineCard, GiveUpKind, Knob
from autotune.trial import Configuration, Scalar

UNASKED = frozenset({"no-prefix-caching"})
"""Never given up unless the user allows it or pins the knob: a workload cannot speak for traffic that shares more."""


class GivenUp(BaseModel):
    """A promise that a value of a knob breaks.

    Attributes:
        from_: the value that keeps it.
        what: a sentence for the people who use the server.
        kind: as ``--allow`` takes it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    knob: str
    from_: Scalar = Field(alias="from")
    to: Scalar
    what: str
    kind: GiveUpKind


def promises_of(
    card: EngineCard, context: Context, baseline: Mapping[str, Scalar], pinned: Collection[str] = ()
) -> Callable[[Configuration], tuple[GivenUp, ...]]:
    """The function that tells what a configuration of an engine gives up.

    Args:
        baseline: its knobs; the context to be kept is what it serves.
        pinned: knobs whose value the user chose: nothing is given up for speed there.
    """
    marked = {name: knob for name, knob in card.knobs.items() if knob.gives_up and name not in pinned}
    depends = sorted({*marked}.union(*map(_names, marked.values())) & card.knobs.keys())
    fixed = {"baseline": Namespace(baseline)}
    known: dict[tuple[object, ...], tuple[GivenUp, ...]] = {}

    def of_knob(name: str, knobs: Mapping[str, Scalar]) -> list[GivenUp]:
        # A replayed row need not say everything.
        scope = {**context.scope({**dict.fromkeys(card.knobs), **knobs}), **fixed}
        scope["default"] = default_of(marked[name], scope, context.version)
        return [
            GivenUp(
                knob=name,
                from_=evaluate(mark.keeps, scope),
                to=knobs[name],
                what=fill(mark.what, scope),
                kind=mark.kind,
            )
            for mark in marked[name].gives_up
            if evaluate(mark.when, scope)
        ]

    def given_up(configuration: Configuration) -> tuple[GivenUp, ...]:
        knobs = configuration.knobs
        key = tuple([knobs.get(name, ...) for name in depends])
        if key not in known:
            known[key] = tuple(row for name in marked if name in knobs for row in of_knob(name, knobs))
        return known[key]

    return given_up


def _names(knob: Knob) -> set[str]:
    """Names in the expressions of a knob's ``gives_up``, and in the conditions of the default that they refer to."""
    texts = [text for mark in knob.gives_up for text in (mark.when, mark.keeps)]
    texts += [case.when for case in knob.default] if isinstance(knob.default, list) else []
    used = {name for text in texts for name in names(text)}
    return used.union(*(template_names(mark.what) for mark in knob.gives_up))
