"""Earlier launches in a CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.replay import read_table
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Configuration


def table_lessons(path: Path, spec: StudySpec) -> Iterator[tuple[Configuration, Mapping[str, Mapping[str, Any]], bool]]:
    """Per row its configuration, its metrics by workload, and whether it failed; raises `BadInput`."""
    for row in read_table(path, library_of(spec)).rows:
        yield row.configuration, row.metrics, row.failure is not None
