"""Measured points that tests compare with; README.md says where they are from."""

from __future__ import annotations

import csv
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
LAB, SWEEP = _FOLDER / "performance_lab.csv", _FOLDER / "r1_concurrency.csv"
BESIDE = _FOLDER.parents[2] / "shared" / "data"
"""The published files themselves, and dumps of the engines' parsers, where they lie beside the
repository."""


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of one of the tables, by column."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
