"""Figures as people read them: three significant digits, and gains in words. JSON has every
digit."""

import math
from collections.abc import Iterable

from autotune.base import Interval

from .table import TABLE, is_number

_DIGITS = 3
_MOST_DIGITS = 6


def number(value: object, digits: int = _DIGITS) -> str:
    """Format a measured figure with significant digits; counts are exact; None is an en dash."""
    if not is_number(value):
        return "–"
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    rounded = float(f"{value:.{digits}g}")
    before_point = math.floor(math.log10(abs(rounded))) + 1 if rounded else digits
    return f"{rounded:,.{max(0, digits - before_point)}f}"


def numbers(values: Iterable[object]) -> list[str]:
    """Format figures that are compared: with more digits where different ones would look equal."""
    compared = list(values)
    for digits in range(_DIGITS, _MOST_DIGITS + 1):
        shown = [number(value, digits) for value in compared]
        if len(set(shown)) == len(set(compared)):
            break
    return shown


def interval(bounds: Iterable[float] | None) -> str:
    """Format an interval of a figure, e.g. ``6,000 to 7,000``, or ``6,000`` without a width; None
    is ``–``."""
    return "–" if bounds is None else " to ".join(dict.fromkeys(numbers(bounds)))


def percent(value: float | None) -> str:
    """Format a signed percentage, e.g. ``+51.7 %``, ``+142 %``, or ``-0.03 %``, whose sign is its
    point."""
    if value is None:
        return "–"
    return f"{'-' if value <= -0.005 else '+'}{_size(value)} %"


def percents(bounds: Interval | None) -> str:
    """Format an interval of percentages, e.g. ``-1.5 % to +2.3 %``."""
    return "–" if bounds is None else " to ".join(dict.fromkeys(map(percent, bounds)))


def beyond(excess: float) -> str:
    """Format by what share a limit is exceeded, e.g. ``12 %`` or ``115,000 %``."""
    return f"{float(f'{100 * excess:.{_DIGITS}g}'):,.0f} %"


def _size(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return number(size)
    return f"{size:.2f}" if 0.005 <= size < 0.05 else f"{size:.1f}"


def change(before: object, after: object) -> str:
    """Return the change of a metric in percent."""
    if not isinstance(before, int | float) or not isinstance(after, int | float) or not before:
        return "–"
    return percent((after / before - 1) * 100)


def changed(metric: str, gain: float | None) -> float | None:
    """Return the change of a metric in percent for a gain, which is positive where the metric
    became better."""
    row = TABLE.get(metric)
    if gain is None or row is None or row.maximise:
        return gain
    return 100 * (100 / (100 + gain) - 1) if gain > -100 else math.inf


def changes(metric: str, bounds: Interval | None) -> Interval | None:
    """Return the interval of the change of a metric for that of a gain; None for none."""
    if bounds is None:
        return None
    low, high = sorted(changed(metric, bound) or 0.0 for bound in bounds)
    return low, high


def gain(metric: str, percent_better: float | None) -> str:
    """Format a gain as the change of its metric: ``+41.4 %``, or ``-58.6 %`` for a cost."""
    return percent(changed(metric, percent_better))


def gains(metric: str, bounds: Interval | None) -> str:
    """Format an interval of a gain as that of the change of its metric."""
    return percents(changes(metric, bounds))


def gain_in_words(metric: str, percent_better: float | None, other: str = "") -> str:
    """Format a gain (over another command) for a sentence.

    Such as ``+41.4 %``, ``costs 58.6 % less``, or ``takes 3.1 % more time than the recipe``.
    """
    moved = changed(metric, percent_better)
    less = TABLE[metric].less if metric in TABLE else ""
    if moved is None or not less:
        return percent(moved) + (f" over {other}" if other else "")
    words = less.format(f"{_size(moved)} %") + (f" than {other}" if other else "")
    return words if moved <= 0 else words.replace(" less", " more", 1)


def gain_within(
    metric: str,
    percent_better: float | None,
    ci95: Interval | None,
    other: str = "",
) -> str:
    """Format a gain for a sentence, with its interval in brackets."""
    sure = f"95 % interval {gains(metric, ci95)}" if ci95 else "no interval"
    return f"{gain_in_words(metric, percent_better, other)} ({sure})"


def gain_heading(metric: str) -> str:
    """Return the heading of a column of gains."""
    row = TABLE.get(metric)
    return "Gain" if row is None or row.maximise else "Change (less is better)"
