"""Read back the configuration of a running engine from its server's reports and its log.

Asked for is one thing: a flag may do nothing, a variable may be ignored, a limit may be lowered.
The knobs that the engine tells are read back through its card (``resolved``), made effective as
every configuration is, and compared.

Engines print what they resolved for people, with enumerations (``<CompilationMode.NONE: 0>``),
objects (``KvCacheConfig(dtype='auto')``) and bare words (``dtype=torch.bfloat16``) among the
literals. An object becomes a mapping of its fields, an enumeration its member's name, a bare word a
text. What cannot be read ends the reading; what came before it counts.
"""

import ast
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from autotune.base import Json, JsonObject

from .command import Command, Configuration, Resolved, Scalar
from .context import Context, default_of, effective
from .engine import Engine
from .expression import Namespace, Scope, evaluate
from .schema import Knob

_STRING = re.compile(r"""[bru]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)
_MEMBER = re.compile(r"<(?:(?:\w+\.)*(\w+): )?[^<>]*>")
_CALL = re.compile(r"[A-Za-z_][\w.]*\(")
_WORD = re.compile(r"[^\s,()\[\]{}=]+")
_NAME = re.compile(r"([A-Za-z_]\w*)=")
_GAP = re.compile(r"[\s,]*")
_DEEPEST = 40
_UNREADABLE = (ValueError, SyntaxError)
_LEFT = (None, "auto")  # Values that leave the choice to the engine
_MALFORMED = (NameError, AttributeError, TypeError, ValueError, ArithmeticError, LookupError)


def settings(text: str) -> Json:
    """Read the settings in a text, a printed dictionary or ``a=1, b=2`` or ``a=1 b=2``; ``{}`` for
    anything else."""
    reader = _Reader(text.strip())
    if not reader.past("{"):
        return reader.fields("")
    return {str(key): value for key, value in reader.entries().items()}


class _Reader:
    """One pass over a text; methods start after the opening bracket."""

    def __init__(self, text: str) -> None:
        self._rest = text
        self._depth = 0

    def fields(self, closer: str) -> Json:
        """Read ``name=value`` pairs up to a closing bracket, or the end."""
        fields: Json = {}
        while not self._ends(closer) and (name := self._take(_NAME)):
            if self._rest[:1] in ("", " ", ",", closer):
                fields[name[1]] = ""
                continue
            try:
                fields[name[1]] = self._value()
            except _UNREADABLE:
                self._rest = ""  # Because the rest might belong elsewhere than it seems
        self.past(closer)
        return fields

    def entries(self) -> dict[Any, Any]:
        """Read the entries of a dictionary."""
        entries: dict[Any, Any] = {}
        while not self._ends("}"):
            try:
                key = self._value()
                self._take(_GAP)
                if not self.past(":"):
                    raise ValueError("no value")
                plain = isinstance(key, str | int | float | bool | None)
                entries[key if plain else str(key)] = self._value()
            except _UNREADABLE:
                self._rest = ""
        self.past("}")
        return entries

    def _items(self, closer: str) -> list[Any]:
        items = []
        while not self._ends(closer):
            items.append(self._value())
        self.past(closer)
        return items

    def _value(self) -> Any:
        self._take(_GAP)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("nested too deep")
        try:
            if self.past("{"):
                return self.entries()
            for opener, closer in ("[]", "()"):
                if self.past(opener):
                    return self._items(closer)
            if text := self._take(_STRING):
                return ast.literal_eval(text[0])
            if member := self._take(_MEMBER):
                return member[1] or member[0]
            return self._object() if self._take(_CALL) else self._word()
        finally:
            self._depth -= 1

    def _object(self) -> Any:
        """Read the fields of an object; without names (``PosixPath('/x')``) its only content, or
        all of it."""
        if self._ends(")") or _NAME.match(self._rest):
            return self.fields(")")
        items = self._items(")")
        return items[0] if len(items) == 1 else items

    def _word(self) -> Any:
        """Read a number, True, False or None; any other word unchanged. A colon after it is not
        part of it."""
        match = self._take(_WORD)
        word = match[0].removesuffix(":") if match else ""
        if not match or not word:
            raise ValueError("nothing that is known")
        self._rest = match[0].removeprefix(word) + self._rest
        try:
            value = ast.literal_eval(word)
        except _UNREADABLE:
            return word
        return value if isinstance(value, bool | int | float | None) else word

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._rest)
        if match:
            self._rest = self._rest[match.end() :]
        return match

    def _ends(self, closer: str) -> bool:
        """Skip a gap; return whether a bracket, or the end, follows."""
        self._take(_GAP)
        return self._rest[:1] in ("", closer)

    def past(self, sign: str) -> bool:
        """Skip a sign; return False if it is not at this position."""
        here = self._rest.startswith(sign)
        self._rest = self._rest.removeprefix(sign)
        return here


class _NotReported(Exception):
    """No source reports a name that a reading needs."""


class _Reported(Namespace):
    """A source's settings; a missing name raises `_NotReported`, as None is a value."""

    def _value(self, name: str) -> Any:
        if name not in self:
            raise _NotReported(name)
        return super()._value(name)


def parse_reported(
    engine: Engine, asked: Configuration, context: Context, sources: Mapping[str, JsonObject]
) -> tuple[dict[str, Scalar], Configuration]:
    """Parse the knobs reported by an engine's `sources`; returns them, and the effective
    configuration with them."""
    names = {name: _Reported(values) for name, values in sources.items()}
    reported: dict[str, Scalar] = {}
    try:
        for name, knob in engine.card.knobs.items():
            scope = {**context.scope({**asked.knobs, **reported}), **names}
            with suppress(_NotReported):
                value = _read(knob, scope, context.version)
                value = default_of(knob, scope, context.version) if value is None else value
                reported[name] = _as_spelt(value, asked.knobs[name])
        made = effective(engine.card, asked.with_knobs(**reported), context)
    except _MALFORMED:
        # A report may make no configuration, e.g. with a text where a size should be.
        return {}, asked
    spelt = {name: _as_spelt(value, asked.knobs[name]) for name, value in made.knobs.items()}
    return reported, Configuration(asked.engine, spelt)


def compare(
    engine: Engine, asked: Configuration, context: Context, command: Command, got: Configuration
) -> Resolved:
    """Compare the running settings with the requested ones; the caller adds the source."""
    differs = {
        n: (v, got.knobs[n]) for n, v in asked.knobs.items() if _as_spelt(got.knobs[n], v) != v
    }
    notes = {name: _note(engine, name, asked, context, (command, got)) for name in differs}
    return Resolved(got.fingerprint, differs, notes=notes)


def _read(knob: Knob, scope: Scope, version: str) -> Scalar:
    """Evaluate the first reported reading; raises `_NotReported` for none."""
    for expression in knob.expressions(knob.resolved, version):
        try:
            value = evaluate(expression, scope)
        except (_NotReported, *_MALFORMED):
            # A source that is not there, or tells it in another form than this version should.
            continue
        if isinstance(value, Scalar) and not (
            isinstance(value, float) and not math.isfinite(value)
        ):
            return value
    raise _NotReported


def _as_spelt(got: Scalar, asked: Scalar) -> Scalar:
    """Return the requested value if the engine's value is another spelling of it."""
    if isinstance(got, str) and isinstance(asked, str):
        return asked if got.casefold() == asked.casefold() else got
    if isinstance(got, int | float) and isinstance(asked, int | float):
        return asked if math.isclose(got, asked, rel_tol=1e-6) else got
    return got


def _note(
    engine: Engine,
    name: str,
    asked: Configuration,
    context: Context,
    run: tuple[Command, Configuration],
) -> str:
    """Describe in a sentence whether a setting had no effect, was overridden, or was the engine's
    own choice."""
    command, got = run
    knob = engine.card.knobs[name]
    ran = f"{engine.card.title} ran with {_code(name, got.knobs[name])}"
    wanted = asked.knobs[name]
    try:
        left = default_of(knob, context.scope(got.knobs), context.version)
    except _MALFORMED:
        # This default depends on knobs that the engine changed.
        return f"{ran}, but {_code(name, wanted)} was requested"
    setting = engine.setting(name, asked, context, command)
    if wanted in knob.words or (not setting and wanted in _LEFT):
        return f"{ran}, its own choice"
    if not setting and wanted == default_of(knob, context.scope(asked.knobs), context.version):
        return f"{ran} by itself, but {_code(name, wanted)} was expected"
    setting = _quoted(setting) if setting else _code(name, wanted)
    return f"{setting} {'had no effect' if got.knobs[name] == left else 'was overridden'}: {ran}"


def _code(name: str, value: Scalar) -> str:
    return _quoted(
        f"{name}={str(value).lower() if isinstance(value, bool) or value is None else value}"
    )


def _quoted(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").split()) + "`"
