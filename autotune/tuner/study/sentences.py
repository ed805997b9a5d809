"""Sentences for people, from the Jinja templates of a room's ``sentences.yaml``."""

from autotune.base import beside
from autotune.base.templates import write
from autotune.engines import parse_yaml


def sentences(module: str, name: str, **known: object) -> list[str]:
    """Return the lines of a template, without empty ones; it lies beside a module, given by its
    ``__file__``."""
    text = write(parse_yaml(beside(module, "sentences.yaml"))[name], **known)
    return list(filter(str.strip, text.split("\n")))
