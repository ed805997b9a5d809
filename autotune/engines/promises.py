"""Trade-offs of a configuration for speed: marked values of its knobs (`Knob.gives_up`), shorter
requests."""

from collections.abc import Callable, Collection, Mapping

from pydantic import ConfigDict, Field

from autotune.base import frozen

from .command import Configuration, Knobs, Scalar
from .context import Context, default_of
from .entry import Entry
from .expression import Namespace, evaluate, fill, names, template_names
from .schema import EngineCard, GiveUpKind, Knob

UNASKED = frozenset({"no-prefix-caching", "coarse-streaming"})
"""Trade-offs that must be allowed or pinned, even if nothing else runs: no workload represents
other traffic."""


LONGEST = "longest_request_tokens"
BY_LENGTH = ("context_length", LONGEST)


class GivenUp(Entry):
    """Trade-off of a knob's value (or `LONGEST`, if no single knob decides), with the value that
    avoids it.

    `what` is a sentence for the people who use the server, `kind` as ``--allow`` takes it.
    """

    model_config = ConfigDict(populate_by_name=True)

    knob: str
    from_: Scalar = Field(alias="from")
    to: Scalar
    what: str
    kind: GiveUpKind


TradeOffs = tuple[GivenUp, ...]
TradeOffsOf = Callable[[Configuration], TradeOffs]


def promises_of(
    card: EngineCard,
    context: Context,
    baseline: Knobs,
    pinned: Collection[str] = (),
    kinds: Collection[str] | None = None,
    own: Knobs | None = None,
) -> TradeOffsOf:
    """Make the function that lists the trade-offs of a configuration of an engine.

    Args:
        baseline: its knobs.
        pinned: knobs whose value the user chose: nothing is given up for speed there.
        kinds: of promises that are asked about; None: all.
        own: values of the user's command: with these nothing is given up.
    """
    marked = {
        name: knob
        for name, knob in card.knobs.items()
        if name not in pinned and any(kinds is None or one.kind in kinds for one in knob.gives_up)
    }
    depends = sorted({*marked}.union(*map(_names, marked.values())) & card.knobs.keys())
    fixed = {"baseline": Namespace(baseline)}
    known: dict[tuple[object, ...], TradeOffs] = {}

    def of_knob(name: str, knobs: Knobs) -> list[GivenUp]:
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

    def given_up(configuration: Configuration) -> TradeOffs:
        knobs = configuration.knobs
        key = tuple([knobs.get(name, ...) for name in depends])
        if key not in known:
            known[key] = tuple(
                row
                for name in marked
                if name in knobs and knobs[name] != (own or {}).get(name, ...)
                for row in of_knob(name, knobs)
            )
        return known[key]

    return given_up


def admitted(configuration: Configuration, context: Context) -> int:
    """Return the tokens of the longest request that a configuration's options admit, independent of
    its memory."""
    length = configuration.knobs.get("context_length")
    return length if isinstance(length, int) else context.model.architecture.context_limit


NOTICED = {
    "context_length": "context",
    "prefix_caching": "prefix caching",
    "kv_cache_dtype": "KV cache",
    "memory_fraction": "memory fraction",
}
"""Knobs whose value the users of a server may notice."""
_SHORT = {
    None: "the engine's",
    True: "on",
    False: "off",
    "auto": "bf16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
}


def noticed(knob: str, value: Scalar, context_limit: int) -> str:
    """Return a value of a knob in `NOTICED` in words."""
    if knob == "context_length":
        return str(value) if isinstance(value, str) else f"{value or context_limit:,}"
    return _SHORT.get(value if isinstance(value, bool | str | None) else str(value), str(value))


@frozen
class Promised:
    """The longest request that a recommended command serves unless the user allows less: the
    baseline's.

    Attributes:
        tokens: as predicted of the baseline; 0: known only once it has run.
        most: what the user left of the context by pinning it; 0: all.
    """

    tokens: int = 0
    most: int = 0

    def broken_by(self, configuration: Configuration, longest: int, baseline: int = 0) -> TradeOffs:
        """Return the trade-off, one of `BY_LENGTH`, of such a longest request against the
        baseline's."""
        promised = min(baseline or self.tokens, self.most or baseline or self.tokens)
        if longest >= promised:
            return ()
        knob = "context_length" if configuration.knobs.get("context_length") == longest else LONGEST
        what = f"requests of more than {longest} tokens, input and output together, are refused"
        return (GivenUp(knob=knob, from_=promised, to=longest, what=what, kind="shorter-context"),)


def given_up_by(
    configurations: Collection[Configuration],
    baseline: Configuration,
    marks: Mapping[str, TradeOffsOf],
    longest_of: Callable[[Configuration], int],
    promised: Promised,
) -> dict[int, TradeOffs]:
    """Return the trade-offs (`marks`, by engine) of configurations, by position; the baseline has
    none."""
    by_position = dict[int, TradeOffs]()
    for position, one in enumerate(configurations):
        if one is not baseline and one.engine in marks:
            trade_offs = marks[one.engine](one) + promised.broken_by(one, longest_of(one))
            if trade_offs:
                by_position[position] = trade_offs
    return by_position


def _names(knob: Knob) -> frozenset[str]:
    """Return the names in a knob's ``gives_up``, and in the conditions of the default that it
    refers to."""
    texts = [text for mark in knob.gives_up for text in (mark.when, mark.keeps)]
    texts += [case.when for case in knob.default]
    return names(*texts) | template_names(*(mark.what for mark in knob.gives_up))
