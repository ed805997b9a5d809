"""Reads settings that a Python program printed: dictionaries, ``key=value`` lists, and the ``repr`` of objects in them.

Engines print what they resolved for people, with enumerations (``<CompilationMode.NONE: 0>``), objects
(``KvCacheConfig(dtype='auto')``) and bare words (``dtype=torch.bfloat16``) among the literals. An object becomes a
mapping of its fields, an enumeration its member's name, a bare word a text. What cannot be read ends the reading; what
came before it counts.
"""

from __future__ import annotations

import ast
import re
from typing import Any

_STRING = re.compile(r"""[bru]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)
_MEMBER = re.compile(r"<(?:(?:\w+\.)*(\w+): )?[^<>]*>")
_CALL = re.compile(r"[A-Za-z_][\w.]*\(")
_WORD = re.compile(r"[^\s,()\[\]{}=]+")
_NAME = re.compile(r"([A-Za-z_]\w*)=")
_GAP = re.compile(r"[\s,]*")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_DEEPEST = 40
_UNREADABLE = (ValueError, SyntaxError)


def settings(text: str) -> dict[str, Any]:
    """The settings in a text: of a dictionary its entries, of ``a=1, b=2`` or ``a=1 b=2`` each; ``{}`` of neither."""
    text = text.strip()
    reader = _Reader(text)
    if not text.startswith("{"):
        return reader.fields("")
    return {str(key): value for key, value in reader.entries().items()}


class _Reader:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def fields(self, closer: str) -> dict[str, Any]:
        """``name=value`` pairs up to a closing bracket, or the end."""
        fields: dict[str, Any] = {}
        while True:
            self._skip()
            name = _NAME.match(self._text, self._at)
            if name is None or self._ends(closer):
                break
            self._at = name.end()
            if self._peek() in ("", " ", ",", closer):
                fields[name[1]] = ""
                continue
            try:
                fields[name[1]] = self._value()
            except _UNREADABLE:
                self._at = len(self._text)  # what follows might belong elsewhere than it seems
        self._close(closer)
        return fields

    def entries(self) -> dict[Any, Any]:
        """A dictionary, from its opening bracket on."""
        self._at += 1
        entries: dict[Any, Any] = {}
        while not self._ends("}"):
            try:
                key = self._value()
                self._skip()
                if self._peek() != ":":
                    raise ValueError("no value")
                self._at += 1
                entries[key if isinstance(key, str | int | float | bool | None) else str(key)] = self._value()
            except _UNREADABLE:
                self._at = len(self._text)
        self._close("}")
        return entries

    def _items(self, closer: str) -> list[Any]:
        self._at += 1
        items = []
        while not self._ends(closer):
            items.append(self._value())
        self._close(closer)
        return items

    def _value(self) -> Any:
        self._skip()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("nested too deep")
        opener = self._peek()
        try:
            if opener == "{":
                return self.entries()
            return self._items(_CLOSERS[opener]) if opener in _CLOSERS else self._single()
        finally:
            self._depth -= 1

    def _single(self) -> Any:
        text = self._take(_STRING)
        if text is not None:
            return ast.literal_eval(text[0])
        member = self._take(_MEMBER)
        if member is not None:
            return member[1] or member[0]
        if self._take(_CALL) is not None:
            return self._object()
        word = self._take(_WORD)
        if word is None:
            raise ValueError("nothing that is known")
        if word[0].endswith(":"):
            self._at -= 1
        return _plain(word[0].removesuffix(":"))

    def _object(self) -> Any:
        """The fields of an object; without names (``PosixPath('/x')``) its only content, or all."""
        self._skip()
        if _NAME.match(self._text, self._at) or self._peek() == ")":
            return self.fields(")")
        self._at -= 1
        items = self._items(")")
        return items[0] if len(items) == 1 else items

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _skip(self) -> None:
        self._take(_GAP)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _ends(self, closer: str) -> bool:
        self._skip()
        return self._peek() in ("", closer)

    def _close(self, closer: str) -> None:
        if closer and self._peek() == closer:
            self._at += 1


def _plain(word: str) -> Any:
    """A number, True, False or None; any other word as it is."""
    try:
        value = ast.literal_eval(word)
    except _UNREADABLE:
        return word
    return value if isinstance(value, bool | int | float | None) else word
