"""Jinja templates of the report: what they may call, and how they are written out."""

import statistics
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined, Template

from autotune.base import beside, redact
from autotune.load.metrics import readable
from autotune.load.metrics.table import title_of

from . import text

JINJA = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
JINJA.filters |= {
    "capital": text.capital,
    "code": text.code,
    "escape": text.escape,
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


@cache
def _compiled(template: str) -> Template:
    return JINJA.from_string(template)


def write(template: str, **known: object) -> str:
    """Return what a template makes of these variables, without spaces at its ends."""
    return _compiled(template).render(known).strip()
