"""Filters configurations by their commands: an engine version's own parser must accept every option."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.engines.engine import Engine
from autotune.errors import BadInput
from autotune.space.context import Context
from autotune.space.expression import names, template_names
from autotune.space.schema import Addition, Knob
from autotune.trial import Configuration, Scalar

RULE = "not in this version's --help"


def accepted(
    engine: Engine, context: Context, configurations: Sequence[Configuration]
) -> tuple[list[Configuration], dict[str, int]]:
    """The configurations whose command the engine version's parser accepts, and how many it refuses, by its message.

    A command line is made of parts: the options of one knob, or what goes along with every configuration. Each is
    parsed once per values of the knobs that it depends on. A configuration counts for the first part that is refused.
    """
    left, counts = list(configurations), Counter[str]()
    for part, depends in _parts(engine, context).items():
        one_of_each = {_values(one, depends): one for one in left}
        refusals = {values: _refusal(engine, context, part, one) for values, one in one_of_each.items()}
        if any(refusals.values()):
            said = [refusals[_values(one, depends)] for one in left]
            counts.update(refusal for refusal in said if refusal is not None)
            left = [one for one, refusal in zip(left, said, strict=True) if refusal is None]
    return left, dict(counts)


def _values(configuration: Configuration, names: Sequence[str]) -> tuple[Scalar, ...]:
    return tuple([configuration.knobs[name] for name in names])


def _parts(engine: Engine, context: Context) -> dict[str | None, tuple[str, ...]]:
    """Names of the knobs that each part's options depend on; a part is a knob's name, None what every command has."""
    of_model = context.model.engines.get(engine.name)
    always = [*(of_model.always if of_model else []), *engine.card.always]
    used: dict[str | None, set[str]] = {name: {name} | _names(knob) for name, knob in engine.card.knobs.items()}
    used[None] = _names_of(always)
    return {part: tuple(name for name in engine.card.knobs if name in knobs) for part, knobs in used.items()}


def _refusal(engine: Engine, context: Context, knob: str | None, configuration: Configuration) -> str | None:
    """The parser's message where it refuses a part of a configuration's command, e.g. an unrecognised option."""
    scope, table = context.scope(configuration.knobs), engine.table(context.version)
    try:
        if knob is None:
            additions = engine.always(scope, context)
        else:
            additions = engine.knob_additions(knob, scope, context.version)
        # What another version's parser refuses this one may take: that is found out at launch.
        if table.borrowed or not any(addition.args or addition.config for addition in additions):
            return None
        command = engine.command_with(additions, scope, context)
        parsed = engine.parse(command, context.version)
        # A parser that takes beginnings of options reads one that it lost as another that begins alike: the
        # beginning of the right one gives back what was asked for.
        options = [word.partition("=")[0].partition(".")[0] for word in command.argv if word.startswith("--")]
        lost = [option for option in options if option not in table.flags]
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
