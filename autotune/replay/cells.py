"""What the text of a table's cell stands for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from autotune.trial import Scalar

_WHOLE = re.compile(r"[-+]?(?:0|[1-9]\d{0,14})")
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9]\d*)\.\d*|\.\d+|(?:0|[1-9]\d*)(?:\.\d*)?[eE][-+]?\d{1,3})")
_EXACT = 2.0**53
_BOOLEANS = {"true": True, "false": False}


def scalar(text: str) -> Scalar:
    """The value of a knob's cell.

    Empty is None (not set); a whole number, however it is written, an int; ``true`` and ``false`` in any case, as
    spreadsheets write them, a bool. All else is the text without the blanks around it: also ``007`` and whole numbers
    beyond 15 digits, which are names and lose nothing so.
    """
    text = text.strip()
    if not text:
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        value = float(text)
        return whole(value) if math.isfinite(value) else text
    return _BOOLEANS.get(text.lower(), text)


def whole(value: float) -> int | float:
    """A whole number as an integer, where nothing is lost by that."""
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


def number(text: str) -> int | float | None:
    """The number in a metric's cell, None where it is none; not finite for ``nan`` and ``inf``."""
    try:
        value = float(text)
    except ValueError:
        return None
    # Python also takes 1_000 for a number; nobody who writes tables does.
    if "_" in text:
        return None
    return int(text) if text.isdecimal() and value < _EXACT else value


def unmixed(values: Iterable[Scalar]) -> bool:
    """Whether booleans and numbers do not meet: Python, and so every look-up, takes True for 1."""
    kinds = {type(value) for value in values}
    return bool not in kinds or not kinds & {int, float}


def shown(value: Scalar) -> str:
    """A value as a cell would hold it; ``empty`` for None."""
    if value is None:
        return "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


def same(one: Scalar, other: Scalar) -> bool:
    """Whether two values are one: True is not 1."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)
