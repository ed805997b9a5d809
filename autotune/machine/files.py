"""Reads what the kernel says in small files; what cannot be read says nothing."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
"""This machine itself; every other root is another one, laid out in a folder."""


def text(path: Path) -> str:
    """A file's content without white space around it; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """A file that holds one whole number, decimal or as ``0x…``; None when it does not."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None
