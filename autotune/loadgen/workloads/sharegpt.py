"""Prompts of a real ShareGPT file, chosen by the rules of vLLM's sampler.

The file is a JSON list (or one object per line) of ``{"conversations": [{"from": …, "value": "…"}, …]}``; the usual
one, ShareGPT_V3_unfiltered_cleaned_split.json, is 640 MB with 94,000 conversations. It is read piece by piece, once
per process, and only the first two turns are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.tokenizers import Tokenizer

FEWEST_TOKENS = 4
MOST_INPUT_TOKENS = 1024
MOST_TOTAL_TOKENS = 2048
"""vLLM's filter (``is_valid_sequence`` in vllm/benchmarks/datasets.py): at least 4 tokens each way, at most 1024 of a
prompt, at most 2048 of prompt and answer."""

_PIECE = 1 << 22
_LONGEST_ROW = 1 << 26
"""Characters. What does not end within so many is not a row."""

_DECODER = json.JSONDecoder()
_BETWEEN_ROWS = re.compile(r"[\s,]*")
_FORM = 'a ShareGPT file is a JSON list of {"conversations": [{"from": "human", "value": "…"}, …]}'


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations of a file.

    Attributes:
        pairs: first and second turn of each conversation that has both, in the file's order.
        rows: everything in the list.
        skipped: rows that are no conversation.
    """

    pairs: list[tuple[str, str]]
    rows: int
    skipped: int


class Sample(NamedTuple):
    """One request: the first turn as prompt, the second turn's length as the answer's."""

    prompt: str
    input_tokens: int
    output_tokens: int


def conversations(path: Path) -> Conversations:
    """The conversations of a file; kept until the file changes.

    Raises:
        BadInput: the file cannot be read.
        MalformedFile: it is not JSON, or holds no conversation.
    """
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise BadInput(f"workload file {path} cannot be read: {error.strerror}") from error


def check(path: Path) -> None:
    """Raise what `conversations` would raise for a file that cannot be the right one, from its first row."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            next(iter(Rows(path, file)), None)
    except OSError as error:
        raise BadInput(f"workload file {path} cannot be read: {error.strerror}") from error


def sample(path: Path, prompts: int, generator: np.random.Generator, tokenizer: Tokenizer) -> list[Sample]:
    """The first so many, in an order drawn by `generator`, that pass the filter; tokenizes no more than it must.

    A file with fewer is refused: vLLM would send some twice, and the second time would come out of the prefix cache.

    Raises:
        BadInput: the file cannot be read, or holds fewer.
    """
    held = conversations(path)
    chosen: list[Sample] = []
    for position in generator.permutation(len(held.pairs)).tolist():
        prompt, answer = held.pairs[position]
        read = tokenizer.count(prompt)
        if not FEWEST_TOKENS <= read <= MOST_INPUT_TOKENS:
            continue
        written = tokenizer.count(answer)
        if written >= FEWEST_TOKENS and read + written <= MOST_TOTAL_TOKENS:
            chosen.append(Sample(prompt, read, written))
            if len(chosen) == prompts:
                return chosen
    raise BadInput(
        f"{prompts} prompts are asked for, but only {len(chosen)} of the {len(held.pairs)} conversations of {path} "
        f"pass vLLM's filter ({FEWEST_TOKENS} tokens or more each way, a prompt of at most {MOST_INPUT_TOKENS}, "
        f"{MOST_TOTAL_TOKENS} together): ask for fewer with sharegpt:{path}:N"
    )


@lru_cache(maxsize=2)
def _read(path: Path, changed_ns: int, size: int) -> Conversations:
    del changed_ns, size  # The file they belong to is another one when they differ.
    pairs: list[tuple[str, str]] = []
    rows = skipped = 0
    with path.open(encoding="utf-8-sig") as file:
        for row in Rows(path, file):
            rows += 1
            turns = _turns(row)
            if turns is None:
                skipped += 1
            elif len(turns) == 2:
                pairs.append((turns[0], turns[1]))
    if not pairs:
        raise MalformedFile(path, f"none of its {rows} rows is a conversation of two turns; {_FORM}")
    return Conversations(pairs, rows, skipped)


def _turns(row: Any) -> list[str] | None:
    """What the first two turns say, or fewer where there are fewer; None when the row is no conversation."""
    turns = row.get("conversations") if isinstance(row, dict) else None
    if not isinstance(turns, list):
        return None
    said = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    texts = [value for value in said if isinstance(value, str)]
    return texts if len(texts) == len(said) else None


class Rows:
    """The elements of a file's list, or the objects of its lines, one after the other; raises `MalformedFile`.

    Args:
        path: for messages.
        piece: characters to read at a time.
    """

    def __init__(self, path: Path, file: TextIO, piece: int = _PIECE) -> None:
        self._path, self._file, self._piece = path, file, piece
        self._text, self._at = "", 0

    def __iter__(self) -> Iterator[Any]:
        listed = self._next_sign() == "["
        self._at += listed
        number = 0
        while (sign := self._next_sign()) not in ("", "]"):
            number += 1
            yield self._row(number)
        if listed and not sign:
            raise MalformedFile(self._path, f"ends after row {number} without the end of its list: it is cut off")

    def _next_sign(self) -> str:
        """The first character of what comes next; empty at the end of the file."""
        while True:
            self._at = _BETWEEN_ROWS.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing too
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _row(self, number: int) -> Any:
        while True:
            try:
                row, self._at = _DECODER.raw_decode(self._text, self._at)
                return row
            except (ValueError, RecursionError) as error:  # Mostly: the rest of the row is in the next piece.
                if len(self._text) - self._at > _LONGEST_ROW or not self._more():
                    raise MalformedFile(self._path, f"row {number} is not JSON or cut off; {_FORM}") from error

    def _more(self) -> bool:
        """Read the next piece; whether there was one."""
        try:
            piece = self._file.read(self._piece)
        except UnicodeDecodeError as error:
            raise MalformedFile(self._path, f"is not UTF-8 text; {_FORM}") from error
        self._text, self._at = self._text[self._at :] + piece, 0
        return bool(piece)
