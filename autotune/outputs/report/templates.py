"""Jinja templates of the report: what they may call, and how they are written out."""

import statistics
from typing import Any

import yaml

from autotune.base import beside, redact
from autotune.base.templates import jinja, write
from autotune.load.metrics import readable
from autotune.load.metrics.table import title_of

from . import text

__all__ = ["JINJA", "templates_of", "write"]

JINJA = jinja()
JINJA.filters |= {
    "capital": text.capital,
    "code": text.code,
    "escape": text.escape,
    "number": readable.number,
    "scalar": text.scalar,
    "title": text.title,
}
JINJA.globals |= {
    "readable": readable,
    "redact": redact,
    "statistics": statistics,
    "text": text,
    "title_of": title_of,
}


def templates_of(file: str) -> Any:
    """Return the content of a file of templates in this folder."""
    return yaml.safe_load(beside(__file__, file))
