"""Pieces of Markdown."""

import re
import shlex
from collections.abc import Mapping, Sequence

import yaml

from autotune.base import StringMap, beside, frozen
from autotune.engines import Scalar
from autotune.engines.command import plain
from autotune.load.metrics import readable
from autotune.load.metrics.table import title_of

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@frozen
class Facts:
    """Figures at the top: names and values, as Markdown text."""

    rows: StringMap


def printable(text: str) -> str:
    """Replace characters that UTF-8, HTML or XML cannot hold: control characters and surrogates."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def table(rows: Sequence[StringMap], numbers: str = "") -> str:
    """Return a table of rows, heading to cell; "" without any. Columns with ``r`` in `numbers` are
    right-aligned."""
    if not rows:
        return ""
    marks = ["--:" if numbers[i : i + 1] == "r" else "---" for i in range(len(rows[0]))]
    return "\n".join([row(*rows[0]), row(*marks), *(row(*one.values()) for one in rows)])


def row(*cells: object) -> str:
    """Return a row of a table."""
    escaped = (
        " ".join(str(cell).split()).replace("\\|", "|").replace("|", "\\|") for cell in cells
    )
    return f"| {' | '.join(escaped)} |"


def code(text: str) -> str:
    """Format inline code; backticks and line breaks inside are safe."""
    flat = " ".join(text.split()) or " "
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{ticks}{pad}{flat}{pad}{ticks}"


def block(text: str, language: str = "") -> str:
    """Format a fenced block that nothing inside can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def escape(text: str) -> str:
    """Escape external prose: Markdown's signs in it are shown, not interpreted."""
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def prose(text: str) -> str:
    """Escape as `escape`, and format what stands between two single backticks as code."""
    return re.sub(
        # A run of several backticks neither begins nor ends the code.
        r"(?<!`)\\`([^`]+)\\`(?!\\`)",
        lambda found: code(re.sub(r"\\(.)", r"\1", found[1])),
        escape(text),
    )


_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"(?:[^"\\]|\\.)*")+""")


def command(text: str, width: int) -> str:
    """Break the lines of a shell command at its options, with backslashes; here-documents stay as
    they are."""
    head, end, typed = text.rpartition("AUTOTUNE_EOF\n")
    try:
        # A quoted text of several lines leaves a quote open in its first.
        [shlex.split(line, comments=True) for line in typed.split("\n")]
    except ValueError:
        return text
    return head + end + "\n".join(_broken(line, width) for line in typed.split("\n"))


def _broken(line: str, width: int) -> str:
    if line.startswith("#"):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    units = list[str]()
    for word in _WORD.findall(line):
        if (
            units
            and not word.startswith("-")
            and units[-1].startswith("--")
            and " " not in units[-1]
        ):
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = [indent]
    for unit in units:
        if lines[-1].strip() and len(lines[-1]) + len(unit) + 3 > width:
            lines.append(f"{indent}  ")
        lines[-1] += f" {unit}" if lines[-1].strip() else unit
    return " \\\n".join(lines)


def capital(text: str) -> str:
    """Begin a sentence with a capital."""
    return text[:1].upper() + text[1:]


def count(number: int, one: str, several: str = "") -> str:
    """Format a count with its noun, e.g. ``1 point`` or ``2 points``."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def launches(number: int) -> str:
    """Format a count of launches, e.g. ``1 launch`` or ``2 launches``."""
    return count(number, "launch", "launches")


def title(metric: str) -> str:
    """Return a metric's usual name with its unit: ``p99_ttft_ms`` becomes ``P99 TTFT (ms)``."""
    name, unit = title_of(metric)
    return f"{name} ({unit})" if unit else name


def measure(metric: str, value: float) -> str:
    """Name a figure in a sentence: ``total TPS of 9,100.00 tok/s``."""
    name, unit = title_of(metric)
    name = name if name[1:2].isupper() or name[1:2].isdigit() else name[:1].lower() + name[1:]
    return f"{name} of {readable.number(value)} {unit}".strip()


def scalar(value: Scalar) -> str:
    """Format a knob's value; None is the engine's choice."""
    return "engine decides" if value is None else plain(value)


_SHORT: StringMap = yaml.safe_load(beside(__file__, "short_names.yaml"))


def short(name: str, value: Scalar) -> str:
    """Format a knob in a few characters, e.g. ``tp 8``."""
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f"{_SHORT.get(name, name.replace('_', ' '))} {'auto' if value is None else value}"


def knobs(values: Mapping[str, Scalar]) -> str:
    """Format each as ``name=value``, as code."""
    return ", ".join(code(f"{name}={scalar(value)}") for name, value in values.items())


def seconds(value: float) -> str:
    """Format a duration in the largest readable unit."""
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def time_left(seconds_left: float) -> str:
    """Format the remaining time of the budget."""
    return f"at most about {seconds(seconds_left)} left"
