"""Filters configurations by their commands: an engine version's own parser must accept every option."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.engines.engine import Engine
from autotune.errors import BadInput
from autotune.space.context import Context
from autotune.space.expression import names, template_names
from autotune.space.schema import Addition, Knob
from autotune.trial import Configuration, Scalar

RULE = "not in this version's --help"


class Parser:
    """Asks the parser of one engine's version; each part of a command line once per values that it depends on.

    A part is the options of one knob, or (None) what goes along with every configuration.
    """

    def __init__(self, engine: Engine, context: Context) -> None:
        self._engine, self._context = engine, context
        table = engine.table(context.version)
        self._flags = table.flags
        # What another version's parser refuses this one may take: that is found out at launch.
        self._knows = not table.borrowed
        of_model = context.model.engines.get(engine.name)
        always = [*(of_model.always if of_model else []), *engine.card.always]
        used: dict[str | None, set[str]] = {name: {name} | _names(knob) for name, knob in engine.card.knobs.items()}
        used[None] = _names_of(always)
        self._parts = {part: tuple(name for name in engine.card.knobs if name in used[part]) for part in used}
        self._refusals: dict[tuple[str | None, tuple[Scalar, ...]], str | None] = {}

    def refusal(self, configuration: Configuration) -> str | None:
        """Say why this version's parser refuses a configuration's command; None when it accepts it."""
        knobs = configuration.knobs
        scope: dict[str, Any] = {}
        for part, depends in self._parts.items():
            key = part, tuple(knobs[name] for name in depends)
            if key not in self._refusals:
                scope = scope or self._context.scope(knobs)
                self._refusals[key] = self._ask(part, scope)
            if self._refusals[key] is not None:
                return self._refusals[key]
        return None

    def accepted(self, configurations: Sequence[Configuration]) -> tuple[list[Configuration], dict[str, int]]:
        """Keep the configurations that are accepted; and count the others by their refusal."""
        refusals = [self.refusal(configuration) for configuration in configurations]
        kept = [c for c, refusal in zip(configurations, refusals, strict=True) if refusal is None]
        return kept, Counter(refusal for refusal in refusals if refusal is not None)

    def _ask(self, knob: str | None, scope: Mapping[str, Any]) -> str | None:
        engine, context = self._engine, self._context
        try:
            if knob is None:
                additions = engine.always(scope, context)
            else:
                additions = engine.knob_additions(knob, scope, context.version)
            if not self._knows or not any(addition.args or addition.config for addition in additions):
                return None
            command = engine.command_with(additions, scope, context)
            parsed = engine.parse(command, context.version)
            # A parser that takes beginnings of options reads one that it lost as another that begins alike: the
            # beginning of the right one gives back what was asked for.
            options = [word.partition("=")[0].partition(".")[0] for word in command.argv if word.startswith("--")]
            lost = [option for option in options if option not in self._flags]
            if lost and knob is not None:
                read = engine.knobs(parsed, context).knobs
                lost = [] if read[knob] == scope[knob] else lost
        except BadInput as error:
            return str(error)
        return f"{engine.name} {context.version}: error: unrecognized arguments: {lost[0]}" if lost else None


def _names(knob: Knob) -> set[str]:
    cases = knob.default if isinstance(knob.default, list) else []
    conditions = [knob.active, *(case.when for case in cases)]
    return {name for condition in conditions for name in names(condition)} | _names_of(knob.emit)


def _names_of(additions: Sequence[Addition]) -> set[str]:
    used: set[str] = set()
    for addition in additions:
        used |= names(addition.when)
        texts = [*addition.args, *addition.env.values(), *addition.config.values()]
        used |= {name for text in texts if isinstance(text, str) for name in template_names(text)}
    return used
