"""The decorator of immutable dataclasses, and names of common types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Json = dict[str, Any]
"""An object of JSON or YAML."""
JsonObject = Mapping[str, Any]
"""The same, only read."""
StringDict = dict[str, str]
"""Strings by name, e.g. the variables of an environment."""
StringMap = Mapping[str, str]
"""The same, only read."""
FloatDict = dict[str, float]
"""Figures by name, e.g. metrics."""
FloatMap = Mapping[str, float]
"""The same, only read."""
Strings = tuple[str, ...]
Interval = tuple[float, float]
"""The lower and the upper end."""
Kind = TypeVar("Kind")
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[Kind]) -> type[Kind]:
    """Make a class a frozen dataclass with slots, which copies a ``{}`` for each instance."""
    for name in kind.__annotations__:
        if isinstance(default := getattr(kind, name, None), dict):
            setattr(kind, name, field(default_factory=default.copy))
    return dataclass(frozen=True, slots=True)(kind)


def by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
