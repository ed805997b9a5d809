"""YAML that readers of YAML 1.1 and 1.2 alike read as the same values."""

from __future__ import annotations

import re
from typing import Any

import yaml

_PLAIN = re.compile(r"(?:--?[A-Za-z]|[A-Za-z/])[A-Za-z0-9_./:-]+")
"""Text that no reader takes for anything else: ``1e3`` is text to PyYAML and a number to Kubernetes and Compose."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _text)


def dump(*documents: Any) -> str:
    """One YAML document each, in the order of its keys, lines not folded."""
    # No allow_unicode: PyYAML would write line breaks such as U+0085 that it reads back as a space.
    return "---\n".join(yaml.dump(d, Dumper=_Dumper, sort_keys=False, width=2**20) for d in documents)
