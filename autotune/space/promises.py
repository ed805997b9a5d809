"""What a configuration gives up for speed: the marked values of its knobs (`Knob.gives_up`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pydantic import BaseModel, ConfigDict, Field

from autotune.space.context import Context, default_of
from autotune.space.expression import Namespace, evaluate, fill
from autotune.space.schema import EngineCard, GiveUpKind
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

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

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
    marked = [(name, knob) for name, knob in card.knobs.items() if knob.gives_up and name not in pinned]
    fixed = {"baseline": Namespace(baseline)}

    def given_up(configuration: Configuration) -> tuple[GivenUp, ...]:
        # A replayed row need not say everything.
        scope = {**context.scope({**dict.fromkeys(card.knobs), **configuration.knobs}), **fixed}
        rows = []
        for name, knob in marked:
            if name not in configuration.knobs:
                continue
            own = {**scope, "default": default_of(knob, scope, context.version)}
            for mark in knob.gives_up:
                if evaluate(mark.when, own):
                    keeps, what = evaluate(mark.keeps, own), fill(mark.what, own)
                    to = configuration.knobs[name]
                    rows.append(GivenUp(knob=name, from_=keeps, to=to, what=what, kind=mark.kind))
        return tuple(rows)

    return given_up
