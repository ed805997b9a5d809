"""What of a command is known to do nothing for the speed of a server, without a launch that would show it.

Three things: options that the engine's card calls idle (parsers of the answers' text, flags without their condition),
settings of a typed command that the engine overrides or ignores, and pins (``--set``) that have no effect in the
configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autotune.engines.engine import ParsedCommand
from autotune.errors import BadInput
from autotune.prepare.candidates import EngineSpace, Prepared
from autotune.space.entry import in_range
from autotune.space.expression import evaluate
from autotune.space.fingerprint import effective
from autotune.study.recommendation import NoEffect
from autotune.trial import Configuration, Scalar, Trial


def no_effect_finder(prepared: Prepared) -> Callable[[Trial], Sequence[NoEffect]]:
    """For a launch of the study, what on its command, or asked for, does nothing."""

    def no_effect_of(trial: Trial) -> list[NoEffect]:
        space = prepared.spaces.get(trial.configuration.engine)
        if space is None:
            # A replayed table may have engines that nothing is known of.
            return []
        typed = prepared.baseline_command is not None and trial.configuration == _baseline(prepared)
        return [*_on_command(space, trial, typed), *([] if typed else _pinned(space, trial.configuration))]

    return no_effect_of


def _baseline(prepared: Prepared) -> Configuration:
    return prepared.candidates.items[prepared.candidates.baseline].configuration


def _on_command(space: EngineSpace, trial: Trial, typed: bool) -> Iterator[NoEffect]:
    try:
        parsed = space.engine.parse(trial.command, trial.engine_version)
    except BadInput:
        # A server that somebody else runs, or options that only the installed version knows.
        return
    scope = space.context.scope(trial.configuration.knobs)
    for option in space.card.idle:
        if in_range(trial.engine_version, option.versions) and evaluate(option.when, scope):
            for flag in option.flags:
                name = flag.lstrip("-").replace("-", "_")
                if name in parsed.given:
                    yield NoEffect(knob=flag, values=[_shown(parsed.args[name])], reason=option.reason)
    if typed:
        yield from _overridden(space, parsed)


def _overridden(space: EngineSpace, parsed: ParsedCommand) -> Iterator[NoEffect]:
    """The knobs that were typed and that the engine takes otherwise."""
    raw = space.engine.knobs(parsed, space.context)
    usual = space.engine.default_knobs(space.context)
    made = effective(space.card, raw, space.context).configuration
    for name, value in raw.knobs.items():
        if value not in (usual[name], made.knobs[name]):
            yield NoEffect(knob=name, values=[value], reason=_why(space, made, name, value))


def _pinned(space: EngineSpace, configuration: Configuration) -> Iterator[NoEffect]:
    for name, value in space.pins.items():
        if configuration.knobs.get(name) != value:
            yield NoEffect(knob=name, values=[value], reason=_why(space, configuration, name, value))


def _why(space: EngineSpace, configuration: Configuration, name: str, value: Scalar) -> str:
    """Why a knob's value makes no difference to a configuration, in words."""
    applied = effective(space.card, configuration.with_knobs(**{name: value}), space.context).effects
    found = next((effect.reason for effect in applied if name in effect.set), None)
    return found or f"it has no effect unless `{space.card.knobs[name].active}`"


def _shown(value: object) -> Scalar:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
