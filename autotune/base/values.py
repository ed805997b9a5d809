"""The decorator of immutable dataclasses, and names of common types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Json = dict[str, Any]
"""An object of JSON or YAML."""
JsonObject = Mapping[str, Any]
"""The same, only read."""
Interval = tuple[float, float]
"""The lower and the upper end."""
Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[Kind]) -> type[Kind]:
    """Make a class a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True)(kind)
