"""Text that commands print for people, from the templates in ``screens.yaml``."""

from autotune.base import Json, StringDict, beside
from autotune.engines.entry import parse_yaml
from autotune.outputs.report.templates import write

_SCREENS = parse_yaml(beside(__file__, "screens.yaml"))


def printed(name: str, **known: object) -> str:
    """Return what a template makes of these variables."""
    return write(_SCREENS[name], printed=printed, **known)


def cells(name: str, row: Json) -> StringDict:
    """Return the cells of a row, each by its column's template; an empty cell is a dash."""
    return {column: write(cell, **row) or "–" for column, cell in _SCREENS[name].items()}
