"""What stands for the command of a row: the engine's own where the row tells it whole, else its name and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.engines import Engine
from autotune.errors import BadInput
from autotune.replay.cells import shown
from autotune.replay.choosing import known_version
from autotune.replay.table import UNKNOWN, VERSION
from autotune.space.candidates import Candidate
from autotune.space.context import Context
from autotune.space.knobs import default_of
from autotune.space.schema import Knob
from autotune.study.recommendation import STAND_IN
from autotune.study.spec import AUTO
from autotune.trial import Command, Configuration, Scalar

_NO_COMMAND = (BadInput, ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What values that nobody checked may do to the expressions of an engine's card."""


def command_of(candidate: Candidate, kind: Engine | None, context: Context | None) -> Command:
    """The command of a row's configuration, or what stands for it.

    An engine's own command needs an engine and a version that we know, and columns that are knobs of its card or
    options of its parser; and read back, it must say what the row says.

    Args:
        kind: the row's engine; None: it is not known.
        context: its version is that of rows which tell none.
    """
    configuration, told = candidate.configuration, candidate.engine_version
    if kind is None or context is None:
        return stand_in(configuration)
    version = context.version if told == UNKNOWN else known_version(kind, told)
    if version is None:
        return stand_in(configuration)
    try:
        return _own(configuration, kind, replace(context, version=version))
    except _NO_COMMAND:
        return stand_in(configuration)


def stand_in(configuration: Configuration) -> Command:
    """Engine and columns, readable, and not to be mistaken for a command."""
    words = [f"--{_flag(name)}={shown(value)}" for name, value in configuration.knobs.items() if value is not None]
    return Command((f"{STAND_IN}{configuration.engine}", *words))


def _flag(name: str) -> str:
    return name.lstrip("-")


def _own(configuration: Configuration, kind: Engine, context: Context) -> Command:
    """The engine's command; raises one of `_NO_COMMAND` where there is none."""
    card = kind.card
    mine = {name: value for name, value in configuration.knobs.items() if name in card.knobs}
    rest = {n: v for n, v in configuration.knobs.items() if n not in card.knobs and n != VERSION and v is not None}
    given = {name: value for name, value in mine.items() if value is not None and not _is_auto(card.knobs[name], value)}
    for name, value in given.items():
        if (reason := card.knobs[name].refuses(value)) is not None:
            raise BadInput(f"{name}={value}: {reason}")
    # What is not set is not on the command line, also where the engine's defaults on a whole node would set it.
    scope = context.scope(given)
    unset = {name: default_of(card.knobs[name], scope, context.version) for name in card.on_node if name not in given}
    knobs = kind.default_knobs(context, {**unset, **given})
    command = kind.command(Configuration(kind.name, knobs), context, _options(rest))
    parsed = kind.parse(command, context.version)
    back = kind.knobs(parsed, context).knobs
    if any(back[name] != value for name, value in given.items()):
        raise BadInput("the command does not say what the row says")
    for name, value in rest.items():
        # A parser that completes abbreviations would make an option of any column's name.
        option = _flag(name).replace("-", "_")
        known = parsed.args.get(option, False) if name.startswith("-") else parsed.args[option]
        if value is False and known is not False:
            raise BadInput(f"{name} is off in the row, and on by default")
    return command


def _is_auto(knob: Knob, value: Scalar) -> bool:
    """Whether a value leaves the choice to the engine: ``auto``, where that is no value of the knob's own."""
    return value == AUTO and value not in (knob.choices or ())


def _options(columns: Mapping[str, Scalar]) -> list[str]:
    words: list[str] = []
    for name, value in columns.items():
        flag = name if name.startswith("-") else f"--{name.replace('_', '-')}"
        if value is not False:
            words += [flag] if value is True else [flag, shown(value)]
    return words
