"""Filters configurations by their commands: an engine version's own parser must accept every option."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.engines.engine import Engine
from autotune.errors import BadInput
from autotune.space.context import Context
from autotune.space.expression import names, template_names
from autotune.space.schema import Addition, Knob
from autotune.trial import Configuration, Scalar

RULE = "not in this version's --help"


@dataclass(slots=True)
class _Part:
    """A part of a command line that depends on few knobs, with what the parser said of it so far.

    Attributes:
        knob: whose options it is; None: what goes along with every configuration.
        depends: the knobs that it depends on.
        said: their values to the parser's refusal, None = taken.
    """

    knob: str | None
    depends: tuple[str, ...]
    said: dict[tuple[Scalar, ...], str | None] = field(default_factory=dict)


class Parser:
    """Asks the parser of one engine's version; each part of a command line once per values that it depends on."""

    def __init__(self, engine: Engine, context: Context) -> None:
        self._engine, self._context = engine, context
        table = engine.table(context.version)
        self._flags = table.flags
        # What another version's parser refuses this one may take: that is found out at launch.
        self._knows = not table.borrowed
        of_model = context.model.engines.get(engine.name)
        always = [*(of_model.always if of_model else []), *engine.card.always]
        self._parts = [_Part(name, self._only_knobs({name} | _names(knob))) for name, knob in engine.card.knobs.items()]
        self._parts.append(_Part(None, self._only_knobs(_names_of(always))))

    def refusal(self, configuration: Configuration) -> str | None:
        """Say why this version's parser refuses a configuration's command; None when it accepts it."""
        knobs = configuration.knobs
        scope: dict[str, Any] = {}
        for part in self._parts:
            key = tuple(knobs[name] for name in part.depends)
            if key not in part.said:
                scope = scope or self._context.scope(knobs)
                part.said[key] = self._ask(part, scope)
            if part.said[key] is not None:
                return part.said[key]
        return None

    def accepted(self, configurations: Sequence[Configuration]) -> tuple[list[Configuration], dict[str, int]]:
        """Keep the configurations that are accepted; and count the others by their refusal."""
        refusals = [self.refusal(configuration) for configuration in configurations]
        kept = [c for c, refusal in zip(configurations, refusals, strict=True) if refusal is None]
        return kept, Counter(refusal for refusal in refusals if refusal is not None)

    def _only_knobs(self, found: set[str]) -> tuple[str, ...]:
        return tuple(name for name in self._engine.card.knobs if name in found)

    def _ask(self, part: _Part, scope: Mapping[str, Any]) -> str | None:
        engine, context = self._engine, self._context
        try:
            if part.knob is None:
                additions = engine.always(scope, context)
            else:
                additions = engine.knob_additions(part.knob, scope, context.version)
            if not self._knows or not any(addition.args or addition.config for addition in additions):
                return None
            command = engine.command_with(additions, scope, context)
            parsed = engine.parse(command, context.version)
            # A parser that takes beginnings of options reads one that it lost as another that begins alike: the
            # beginning of the right one gives back what was asked for.
            options = [word.partition("=")[0].partition(".")[0] for word in command.argv if word.startswith("--")]
            lost = [option for option in options if option not in self._flags]
            if lost and part.knob is not None:
                read = engine.knobs(parsed, context).knobs
                lost = [] if read[part.knob] == scope[part.knob] else lost
        except BadInput as error:
            return str(error)
        return f"{engine.name} {context.version}: error: unrecognized arguments: {lost[0]}" if lost else None


def _names(knob: Knob) -> set[str]:
    cases = knob.default if isinstance(knob.default, list) else []
    conditions = [knob.active, *(case.when for case in cases)]
    return {name for condition in conditions for name in names(condition)} | _names_of(knob.emit)


def _names_of(additions: Sequence[Addition]) -> set[str]:
    found: set[str] = set()
    for addition in additions:
        found |= names(addition.when)
        texts = [*addition.args, *addition.env.values(), *addition.config.values()]
        found |= {name for text in texts if isinstance(text, str) for name in template_names(text)}
    return found
