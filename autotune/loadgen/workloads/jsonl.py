"""Workload file of the user: one JSON object per line."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.requests import Content
from autotune.loadgen.tokenizers import Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
_FORM = (
    'write {"prompt": "text" or [token ids], "output_tokens": M}, {"messages": [{"role": "user", "content": "…"}], '
    '"output_tokens": M}, or {"input_tokens": N, "output_tokens": M} for a random prompt, with whole numbers > 0'
)


class Row(NamedTuple):
    """One request.

    Attributes:
        content: what the prompt says; None = random tokens.
        stated_tokens: the prompt's length where the line gives it.
    """

    content: Content | None
    stated_tokens: int | None
    output_tokens: int

    @property
    def counted(self) -> bool:
        """Whether a tokenizer tells the prompt's length."""
        return self.stated_tokens is None

    def input_tokens(self, tokenizer: Tokenizer) -> int:
        """The prompt's length; a chat's without its template."""
        if self.stated_tokens is not None:
            return self.stated_tokens
        if isinstance(self.content, str):
            return max(tokenizer.count(self.content), 1)
        return max(sum(tokenizer.count(part["content"]) for part in self.content or () if isinstance(part, dict)), 1)


def read_rows(path: Path) -> tuple[Row, ...]:
    """The requests of a file, in its order; kept until the file changes.

    Raises:
        BadInput: the file cannot be read as text.
        MalformedFile: a line is no request, or there is none.
    """
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"workload file {path} cannot be read as UTF-8 text: {error}") from error


@lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int, size: int) -> tuple[Row, ...]:
    del changed_ns, size  # The file they belong to is another one when they differ.
    # Not splitlines: JSON text may hold other separators of lines than the line feed.
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    rows = tuple(_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip())
    if not rows:
        raise MalformedFile(path, f"holds no request, one JSON object per line: {_FORM}", 1)
    return rows


def _row(path: Path, number: int, line: str) -> Row:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, f"not JSON; {_FORM}", number) from error
    if not isinstance(row, dict):
        raise MalformedFile(path, f"not an object; {_FORM}", number)
    if "output_tokens" not in row:
        raise MalformedFile(path, 'no output_tokens; add "output_tokens": M, how many tokens to generate', number)
    content, stated, written = row.get("prompt", row.get("messages")), row.get("input_tokens"), row["output_tokens"]
    if not (_whole(written) and (stated is None or _whole(stated)) and (content is None or _known(content))):
        raise MalformedFile(path, _FORM, number)
    if content is stated is None:
        raise MalformedFile(path, f"neither prompt nor input_tokens; {_FORM}", number)
    if isinstance(content, list) and isinstance(content[0], int):
        stated = len(content)
    return Row(content, stated, written)


def _whole(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _known(content: Any) -> bool:
    """Whether it is text, token ids, or messages."""
    if not isinstance(content, list) or not content:
        return bool(content) and _is_text(content)
    return all(type(token) is int and token >= 0 for token in content) or all(
        isinstance(message, dict) and _is_text(message.get("role")) and _is_text(message.get("content"))
        for message in content
    )


def _is_text(content: Any) -> bool:
    """Whether it is text that can be sent: JSON may hold half a surrogate pair, which no UTF-8 has."""
    return isinstance(content, str) and not _SURROGATE.search(content)
