"""Recorded launches in place of servers: ``--on replay:FILE``.

    table        the rows as values, and what the text of a cell means
    files        reads a CSV, or a study's ``results.jsonl``
    candidates   the candidates and the baseline among the rows, and the command of a row
    archive      the form of a bundle: members that are checked
    bundle       a whole study in an archive, whose launches are answered in their order

The rows of a table are the only candidates, and each is taken as it is: no rule judges it. Rows of one engine and equal
knobs are repeats of one configuration.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from autotune.errors import BadInput, MalformedFile
from autotune.replay.archive import BEGINNING, unpack
from autotune.replay.files import Reader, read_csv, read_rows
from autotune.replay.table import PLAIN, Row, Table
from autotune.space.library import Library
from autotune.study.results import RESULTS

__all__ = ["PLAIN", "REPLAY", "Row", "Table", "content_of", "digest", "file_of", "read_table", "table_of"]

REPLAY = "replay:"
"""How `StudySpec.on` begins for a replay; the file's path follows."""


def file_of(on: str) -> Path | None:
    """The table's file where ``on`` is a replay; else None."""
    return Path(on.removeprefix(REPLAY)) if on.startswith(REPLAY) else None


def digest(path: Path) -> str:
    """The SHA-256 of a file's content; raises `BadInput` when it cannot be read."""
    return hashlib.sha256(content_of(path)).hexdigest()


def read_table(path: Path, library: Library) -> Table:
    """The table in a file: a study's ``results.jsonl`` by its ending or first sign, that of a bundle, else a CSV.

    Raises `BadInput` where the file cannot be read, `MalformedFile`, with the line, where it is no table.

    Args:
        library: the engine cards, for names and failure patterns.
    """
    content = content_of(path)
    if content.startswith(BEGINNING):
        return read_rows(Reader(path, library), unpack(path, content)[1].get(RESULTS, b"").decode())
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
    """Read the table of a study; raises `BadInput` where it is gone, or has changed since the study began."""
    path = Path(on.removeprefix(REPLAY))
    content = digest(path)
    check_unchanged(path, content, sha256)
    return _cached(path, content, library.roots[:-1], tuple(library.own_files("engines")))


def check_unchanged(path: Path, content: str, sha256: str | None) -> None:
    """Raise `BadInput` where a file's digest is not the one that a study began with; None: it begins now."""
    if sha256 is not None and content != sha256:
        raise BadInput(
            f"{path} has changed since the study began, and its figures cannot be mixed with the earlier ones: put "
            "the file back as it was, or begin a new study"
        )


@lru_cache(maxsize=2)
def _cached(path: Path, sha256: str, overlays: tuple[Path, ...], engines: tuple[Path, ...]) -> Table:
    """Read a table once for the specification, its candidates and all launches."""
    del sha256
    return read_table(path, Library(overlays, engines))


def content_of(path: Path) -> bytes:
    """A replayed file's content; raises `BadInput` when it cannot be read."""
    if path.is_dir():
        raise BadInput(f"--on {REPLAY}{path}: that is a folder; name a CSV, or a study's results.jsonl")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"--on {REPLAY}{path}: there is no such file") from None
    except OSError as error:
        raise BadInput(f"--on {REPLAY}{path}: cannot be read ({error.strerror})") from error
