"""Text from Jinja templates."""

from functools import cache
from typing import Any


@cache
def jinja() -> Any:
    """Return the environment of all templates, to which a room adds its filters."""
    from jinja2 import Environment, StrictUndefined  # Only what people read needs it.

    return Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)


@cache
def _compiled(template: str) -> Any:
    return jinja().from_string(template)


def write(template: str, **known: object) -> str:
    """Return what a template makes of these variables, without spaces at its ends."""
    return str(_compiled(template).render(known).strip())
