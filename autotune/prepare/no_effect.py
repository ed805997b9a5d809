"""Find the settings of a command that have no effect on a server's speed, by rule, without a launch that shows it.

Three kinds: options listed under ``no_effect`` in the engine card (parsers of the answers' text, flags without their
condition), settings of a typed command that the engine overrides or ignores, and pins (``--set``) without effect in
the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion

from autotune.engines.engine import ParsedCommand
from autotune.errors import BadInput
from autotune.prepare.candidates import Prepared
from autotune.prepare.engine_space import EngineSpace
from autotune.space.entry import in_range
from autotune.space.expression import evaluate
from autotune.space.fingerprint import effective
from autotune.study.recommendation import NoEffect
from autotune.trial import Configuration, Scalar, Trial


def no_effect_by_rule(prepared: Prepared, trial: Trial) -> list[NoEffect]:
    """The settings on a trial's command, and the pins, that have no effect."""
    space = prepared.spaces.get(trial.configuration.engine)
    if space is None:
        # A replayed table may have engines without a card.
        return []
    baseline = prepared.candidates.items[prepared.candidates.baseline].configuration
    typed = prepared.baseline_command is not None and trial.configuration == baseline
    on_command = list(_on_command(space, trial, typed))
    if typed:
        return on_command
    configuration = trial.configuration
    without = {name: value for name, value in space.pins.items() if configuration.knobs.get(name) != value}
    pinned = [NoEffect(knob=n, values=[v], reason=_why(space, configuration, n, v)) for n, v in without.items()]
    return on_command + pinned


def _on_command(space: EngineSpace, trial: Trial, typed: bool) -> Iterator[NoEffect]:
    try:
        parsed = space.engine.parse(trial.command, trial.engine_version)
    except (BadInput, InvalidVersion):
        # A server that somebody else runs, options that only the installed version knows, or a replayed version.
        return
    # A replayed row may have other columns than knobs, and leaves what it does not set to the engine.
    known = {name: value for name, value in trial.configuration.knobs.items() if value is not None}
    scope = space.context.scope({**space.engine.knobs(parsed, space.context).knobs, **known})
    for option in space.card.no_effect:
        if in_range(trial.engine_version, option.versions) and evaluate(option.when, scope):
            for flag in option.flags:
                name = flag.lstrip("-").replace("-", "_")
                if name in parsed.given:
                    yield NoEffect(knob=flag, values=[_shown(parsed.args[name])], reason=option.reason)
    if typed:
        yield from _overridden(space, parsed)


def _overridden(space: EngineSpace, parsed: ParsedCommand) -> Iterator[NoEffect]:
    """The knobs that were typed and that the engine sets otherwise."""
    typed = space.engine.knobs(parsed, space.context)
    defaults = space.engine.default_knobs(space.context)
    normalised = effective(space.card, typed, space.context).configuration
    for name, value in typed.knobs.items():
        if value not in (defaults[name], normalised.knobs[name]):
            yield NoEffect(knob=name, values=[value], reason=_why(space, normalised, name, value))


def _why(space: EngineSpace, configuration: Configuration, name: str, value: Scalar) -> str:
    """Why a knob's value has no effect on a configuration."""
    effects = effective(space.card, configuration.with_knobs(**{name: value}), space.context).effects
    reason = next((effect.reason for effect in effects if name in effect.set), None)
    return reason or f"it has no effect unless `{space.card.knobs[name].active}`"


def _shown(value: object) -> Scalar:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
