"""Reads back the configuration that an engine really runs, from what its server and log report.

Asked for is one thing: a flag may do nothing, a variable may be ignored, a limit may be lowered. The knobs that the
engine tells are read back through its card (``resolved``), made effective as every configuration is, and compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from autotune.engines.engine import Engine
from autotune.errors import BadInput
from autotune.space.context import Context, default_of
from autotune.space.entry import in_range
from autotune.space.expression import Namespace, evaluate
from autotune.space.fingerprint import effective
from autotune.space.schema import Knob
from autotune.trial import Command, Configuration, Resolved, Scalar

_LEFT = (None, "auto")
"""Values that leave the choice to the engine."""
_MALFORMED = (NameError, AttributeError, TypeError, ValueError, ArithmeticError, LookupError)


class _NotReported(Exception):
    """No source gives a name that a reading needs."""


class _Reported(Namespace):
    """A source's settings; a missing name raises `_NotReported`, as None is a value."""

    def _value(self, name: str) -> Any:
        if name not in self:
            raise _NotReported(name)
        return super()._value(name)


@dataclass(frozen=True, slots=True)
class ReportedKnobs:
    """The knobs that a running engine reports.

    Attributes:
        values: those that the engine reports, as read.
        configuration: the effective configuration with them.
    """

    values: Mapping[str, Scalar]
    configuration: Configuration


def parse_reported(
    engine: Engine, asked: Configuration, context: Context, sources: Mapping[str, Mapping[str, Any]]
) -> ReportedKnobs:
    """Read the knobs back from what a running engine reports.

    Args:
        asked: the configuration as it was launched.
        sources: source name to the settings found there; see `space.serving.ResolvedSource`.
    """
    names = {name: _Reported(values) for name, values in sources.items()}
    reported: dict[str, Scalar] = {}
    try:
        for name, knob in engine.card.knobs.items():
            scope = {**context.scope({**asked.knobs, **reported}), **names}
            with suppress(_NotReported):
                value = _read(knob, scope, context.version)
                value = default_of(knob, scope, context.version) if value is None else value
                reported[name] = _as_spelt(value, asked.knobs[name])
        made = effective(engine.card, asked.with_knobs(**reported), context).configuration
    except _MALFORMED:
        # What it reports makes no configuration, e.g. a text where a size should be.
        return ReportedKnobs({}, asked)
    spelt = {name: _as_spelt(value, asked.knobs[name]) for name, value in made.knobs.items()}
    return ReportedKnobs(reported, Configuration(asked.engine, spelt))


def compare(engine: Engine, asked: Configuration, context: Context, command: Command, ran: ReportedKnobs) -> Resolved:
    """Compare what runs with what was asked for; the caller adds the source."""
    got = ran.configuration
    differs = {n: (v, got.knobs[n]) for n, v in asked.knobs.items() if _as_spelt(got.knobs[n], v) != v}
    notes = {name: _note(engine, name, asked, context, (command, got)) for name in differs}
    return Resolved(got.fingerprint, differs, notes=notes)


def _read(knob: Knob, scope: Mapping[str, Any], version: str) -> Scalar:
    """Evaluate the first reading that is reported; raises `_NotReported` when none is."""
    for reading in knob.resolved if knob.exists_in(version) else ():
        if not in_range(version, reading.versions):
            continue
        try:
            value = evaluate(reading.value, scope)
        except (_NotReported, *_MALFORMED):
            # A source that is not there, or tells it in another form than this version should.
            continue
        if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
            return value
    raise _NotReported


def _as_spelt(got: Scalar, asked: Scalar) -> Scalar:
    """What was asked for where the engine's value is only another spelling of it."""
    if isinstance(got, str) and isinstance(asked, str):
        return asked if got.casefold() == asked.casefold() else got
    if isinstance(got, int | float) and isinstance(asked, int | float):
        return asked if math.isclose(got, asked, rel_tol=1e-6) else got
    return got


def _note(engine: Engine, name: str, asked: Configuration, context: Context, run: tuple[Command, Configuration]) -> str:
    """Say in a sentence whether a setting had no effect, did not hold, or was the engine's own choice."""
    command, got = run
    title, knob = engine.card.title, engine.card.knobs[name]
    ran, wanted = f"{title} ran with {_code(name, got.knobs[name])}", asked.knobs[name]
    try:
        left = default_of(knob, context.scope(got.knobs), context.version)
    except _MALFORMED:
        # What the engine reported of other knobs is nothing that this one's default can be judged by.
        return f"{ran}, where {_code(name, wanted)} was asked for"
    setting = engine.setting(name, asked, context, command)
    if not setting and _typed(engine, name, command, context) == got.knobs[name] != wanted:
        return f"{ran}, as what was passed through to it says"
    if not setting and wanted in _LEFT:
        return f"{ran}, its own choice"
    if not setting and wanted == default_of(knob, context.scope(asked.knobs), context.version):
        return f"{ran} by itself, where {_code(name, wanted)} was expected of it"
    setting = _quoted(setting) if setting else _code(name, wanted)
    return f"{setting} {'did nothing' if got.knobs[name] == left else 'did not hold'}: {ran}"


def _typed(engine: Engine, name: str, command: Command, context: Context) -> Scalar:
    """A knob as the whole command line has it, what was passed through included; None where that cannot be read."""
    try:
        return engine.knobs(engine.parse(command, context.version), context).knobs[name]
    except BadInput:
        return None


def _code(name: str, value: Scalar) -> str:
    return _quoted(f"{name}={str(value).lower() if isinstance(value, bool) or value is None else value}")


def _quoted(text: str) -> str:
    """Quote as Markdown's inline code."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"
