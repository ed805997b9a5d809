"""Earlier launches in a CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import BadInput
from autotune.trial import Configuration


def table_lessons(path: Path) -> Iterator[tuple[Configuration, Mapping[str, Mapping[str, Any]], bool]]:
    """Per row its configuration, its metrics by workload, and whether it failed; raises `BadInput`."""
    raise BadInput(f"--from {path}: tables cannot be learned from in this version; give a study or its results.jsonl")
