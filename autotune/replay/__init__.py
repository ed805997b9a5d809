"""Recorded launches in place of servers: ``--on replay:FILE``.

    table       the rows, as values
    cells       what a cell's text stands for
    csv_file    reads a CSV
    rows_file   reads a study's ``results.jsonl``
    failures    what a table says of a launch that failed
    choosing    which rows a study may choose from, and which is its baseline
    commands    what stands for the command of a row

The rows are the only candidates, and each is what it says: no rule judges it, nothing is made of it. Rows of one
engine and equal knobs are repeats of one configuration.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from autotune.errors import BadInput, MalformedFile
from autotune.replay.csv_file import read_csv
from autotune.replay.reading import Reader
from autotune.replay.rows_file import read_rows
from autotune.replay.table import PLAIN, Row, Table
from autotune.space.library import Library

__all__ = ["PLAIN", "REPLAY", "Row", "Table", "digest", "file_of", "read_table", "table_of"]

REPLAY = "replay:"
"""How `StudySpec.on` begins where trials are answered by a file; the file's path follows."""


def file_of(on: str) -> Path | None:
    """The file that answers trials; None where servers do."""
    return Path(on.removeprefix(REPLAY)) if on.startswith(REPLAY) else None


def digest(path: Path) -> str:
    """The SHA-256 of a file's content; raises `BadInput` when it cannot be read."""
    return hashlib.sha256(_content(path)).hexdigest()


def read_table(path: Path, library: Library) -> Table:
    """The table in a file: a study's ``results.jsonl`` by its ending or first sign, else a CSV.

    Args:
        library: tells which engines are known, by which names and failures.

    Raises:
        BadInput: the file cannot be read.
        MalformedFile: its content is no table; names the line.
    """
    content = _content(path)
    if b"\0" in content or content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise MalformedFile(path, "is no text; a table is a CSV in UTF-8, or a study's results.jsonl")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MalformedFile(path, "is not UTF-8 text; spreadsheets save it as 'CSV UTF-8'", line) from error
    if not text.strip():
        raise MalformedFile(path, "the file is empty; a table has a header line and a line per launch")
    reader = Reader(path, library)
    rows_follow = path.suffix == ".jsonl" or text.lstrip().startswith("{")
    return read_rows(reader, text) if rows_follow else read_csv(reader, text)


def table_of(on: str, sha256: str | None, library: Library) -> Table:
    """The table that answers a study's trials.

    Raises:
        BadInput: it is gone, or has changed since the study began.
    """
    path = Path(on.removeprefix(REPLAY))
    found = digest(path)
    if sha256 is not None and found != sha256:
        raise BadInput(
            f"{path} has changed since the study began, and its figures cannot be mixed with the earlier ones: put "
            "the file back as it was, or begin a new study"
        )
    return _cached(path, found, library.roots[:-1], tuple(library.own_files("engines")))


@lru_cache(maxsize=2)
def _cached(path: Path, sha256: str, overlays: tuple[Path, ...], engines: tuple[Path, ...]) -> Table:
    """A table that was read for the question need not be read again for its candidates, nor for each launch."""
    del sha256
    return read_table(path, Library(overlays, engines))


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise BadInput(f"--on {REPLAY}{path}: that is a folder; name a CSV, or a study's results.jsonl")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"--on {REPLAY}{path}: there is no such file") from None
    except OSError as error:
        raise BadInput(f"--on {REPLAY}{path}: cannot be read ({error.strerror})") from error
