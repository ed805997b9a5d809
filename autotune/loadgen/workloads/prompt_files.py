"""Files of prompts: ``jsonl:FILE``, a request per line; ``sharegpt:FILE``, chosen by the rules of vLLM's sampler.

``sessions:FILE`` holds conversations of several turns, one JSON object per line. The form is that of AIPerf's
multi-turn input (https://docs.nvidia.com/aiperf, *Multi-Turn Conversations*): ``{"session_id": …, "turns": [{"text": …,
"delay": ms}, …]}``, with a length for every answer, and with what AIPerf has options for: turns of random text, a
system prompt, tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.requests import Content
from autotune.loadgen.tokenizers import Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
_ROW_FORM = (
    'write {"prompt": "text" or [token ids], "output_tokens": M}, {"messages": [{"role": "user", "content": "…"}], '
    '"output_tokens": M}, or {"input_tokens": N, "output_tokens": M} for a random prompt, with whole numbers > 0'
)

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
_SHAREGPT_FORM = 'a ShareGPT file is a JSON list of {"conversations": [{"from": "human", "value": "…"}, …]}'
_TURN_FORM = '{"user": "text", "output_tokens": N, "think_s": S} or {"input_tokens": N, "output_tokens": N}'
_SESSION_FORM = f'{{"turns": [{_TURN_FORM}, …], "system": "text", "tools": […]}}'
_MOST_TOKENS = 2**31
_MOST_THINK_S = 86400.0


def file_version(path: Path) -> tuple[int, int]:
    """Return a file's modification time in ns and its size, which differ when it was written anew."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def json_object(path: Path, number: int, line: str, form: str) -> dict[str, Any]:
    """A line of a file as a JSON object.

    Args:
        form: how to write one, the end of the message.

    Raises:
        MalformedFile: it is none.
    """
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, f"not JSON; {form}", number) from error
    if not isinstance(row, dict):
        raise MalformedFile(path, f"not an object; {form}", number)
    return row


class Row(NamedTuple):
    """One request of a file.

    Attributes:
        content: what the prompt says; None = random tokens.
        stated_tokens: the prompt's length where it is known already; else a tokenizer tells it.
    """

    content: Content | None
    stated_tokens: int | None
    output_tokens: int

    def input_tokens(self, tokenizer: Tokenizer) -> int:
        """The prompt's length; a chat's without its template."""
        if self.stated_tokens is not None:
            return self.stated_tokens
        if isinstance(self.content, str):
            return max(tokenizer.count(self.content), 1)
        return max(sum(tokenizer.count(part["content"]) for part in self.content or () if isinstance(part, dict)), 1)


def read_rows(path: Path) -> tuple[Row, ...]:
    """The requests of a file, in its order; kept until the file changes.

    Each line is a JSON object as `_ROW_FORM` says.

    Raises:
        BadInput: the file cannot be read as text.
        MalformedFile: a line is no request, or there is none.
    """
    try:
        return _read_rows(path, *file_version(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"workload file {path} cannot be read as UTF-8 text: {error}") from error


@lru_cache(maxsize=8)
def _read_rows(path: Path, *_: int) -> tuple[Row, ...]:
    # Not splitlines: JSON text may hold other separators of lines than the line feed.
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    requests = tuple(_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip())
    if not requests:
        raise MalformedFile(path, f"holds no request, one JSON object per line: {_ROW_FORM}", 1)
    return requests


def _row(path: Path, number: int, line: str) -> Row:
    row = json_object(path, number, line, _ROW_FORM)
    if "output_tokens" not in row:
        raise MalformedFile(path, 'no output_tokens; add "output_tokens": M, how many tokens to generate', number)
    content, stated, written = row.get("prompt", row.get("messages")), row.get("input_tokens"), row["output_tokens"]
    if not (_whole(written) and (stated is None or _whole(stated)) and (content is None or _known(content))):
        raise MalformedFile(path, _ROW_FORM, number)
    if content is stated is None:
        raise MalformedFile(path, f"neither prompt nor input_tokens; {_ROW_FORM}", number)
    if isinstance(content, list) and isinstance(content[0], int):
        stated = len(content)
    return Row(content, stated, written)


def _whole(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _known(content: Any) -> bool:
    """Return whether it is text, token ids, or messages."""
    if not isinstance(content, list) or not content:
        return bool(content) and is_text(content)
    return all(type(token) is int and token >= 0 for token in content) or all(
        isinstance(message, dict) and is_text(message.get("role")) and is_text(message.get("content"))
        for message in content
    )


def is_text(content: Any) -> bool:
    """Return whether it is text that can be sent: JSON may hold half a surrogate pair, which no UTF-8 has."""
    return isinstance(content, str) and not _SURROGATE.search(content)


class Conversations(NamedTuple):
    """Conversations of a file.

    Attributes:
        pairs: first and second turn of each conversation that has both, in the file's order.
        rows: everything in the list.
        skipped: rows that are no conversation.
    """

    pairs: list[tuple[str, str]]
    rows: int
    skipped: int


def conversations(path: Path) -> Conversations:
    """The conversations of a ShareGPT file; kept until the file changes.

    It is a JSON list (or one object per line) of ``{"conversations": [{"from": …, "value": "…"}, …]}``; the usual one,
    ShareGPT_V3_unfiltered_cleaned_split.json, is 640 MB with 94,000 conversations. It is read piece by piece, once
    per process, and only the first two turns are kept.

    Raises:
        BadInput: the file cannot be read.
        MalformedFile: it is not JSON, or holds no conversation.
    """
    try:
        return _read_conversations(path, *file_version(path))
    except OSError as error:
        raise BadInput(f"workload file {path} cannot be read: {error.strerror}") from error


def check_sharegpt(path: Path) -> None:
    """Raise what `conversations` would raise for a file that cannot be the right one, from its first row."""
    try:
        next(rows(path), None)
    except OSError as error:
        raise BadInput(f"workload file {path} cannot be read: {error.strerror}") from error


def sample(path: Path, prompts: int, generator: np.random.Generator, tokenizer: Tokenizer) -> list[Row]:
    """The first so many, in an order drawn by `generator`, that pass the filter; tokenizes no more than it must.

    The first turn is the prompt, and the second turn's length that of the answer.
    A file with fewer is refused: vLLM would send some twice, and the second time would come out of the prefix cache.

    Raises:
        BadInput: the file cannot be read, or holds fewer.
    """
    held = conversations(path)
    chosen: list[Row] = []
    for position in generator.permutation(len(held.pairs)).tolist():
        prompt, answer = held.pairs[position]
        read = tokenizer.count(prompt)
        if not FEWEST_TOKENS <= read <= MOST_INPUT_TOKENS:
            continue
        written = tokenizer.count(answer)
        if written >= FEWEST_TOKENS and read + written <= MOST_TOTAL_TOKENS:
            chosen.append(Row(prompt, read, written))
            if len(chosen) == prompts:
                return chosen
    raise BadInput(
        f"{prompts} prompts are asked for, but only {len(chosen)} of the {len(held.pairs)} conversations of {path} "
        f"pass vLLM's filter ({FEWEST_TOKENS} tokens or more each way, a prompt of at most {MOST_INPUT_TOKENS}, "
        f"{MOST_TOTAL_TOKENS} together): ask for fewer with sharegpt:{path}:N"
    )


@lru_cache(maxsize=2)
def _read_conversations(path: Path, *_: int) -> Conversations:
    pairs: list[tuple[str, str]] = []
    count = skipped = 0
    for row in rows(path):
        count += 1
        turns = _turns(row)
        if turns is None:
            skipped += 1
        elif len(turns) == 2:
            pairs.append((turns[0], turns[1]))
    if not pairs:
        raise MalformedFile(path, f"none of its {count} rows is a conversation of two turns; {_SHAREGPT_FORM}")
    return Conversations(pairs, count, skipped)


def _turns(row: Any) -> list[str] | None:
    """Return the text of the first two turns, or fewer where there are fewer; None when the row is no conversation."""
    turns = row.get("conversations") if isinstance(row, dict) else None
    if not isinstance(turns, list):
        return None
    said = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    texts = [value for value in said if isinstance(value, str)]
    return texts if len(texts) == len(said) else None


def rows(path: Path, piece: int = _PIECE) -> Iterator[Any]:
    """The elements of a file's list, or the objects of its lines, one after the other.

    Args:
        piece: characters to read at a time.

    Raises:
        OSError: the file cannot be read.
        MalformedFile: it is not JSON.
    """
    text, at, number, listed = "", 0, 1, False
    with path.open(encoding="utf-8-sig") as file:
        while True:
            at = _BETWEEN_ROWS.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
            sign = text[at : at + 1]
            if sign == "]":
                return
            if sign == "[" and number == 1 and not listed:
                listed, at = True, at + 1
                continue
            try:
                row, at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:  # Mostly: the rest of the row is in the next piece.
                more = _read_piece(path, file, piece) if len(text) - at <= _LONGEST_ROW else ""
                if not more and sign:
                    raise MalformedFile(path, f"row {number} is not JSON or cut off; {_SHAREGPT_FORM}") from error
                if not more and listed:
                    problem = f"ends after row {number - 1} without the end of its list: it is cut off"
                    raise MalformedFile(path, problem) from error
                if not more:
                    return
                text, at = text[at:] + more, 0
            else:
                number += 1
                yield row


def _read_piece(path: Path, file: TextIO, characters: int) -> str:
    try:
        return file.read(characters)
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"is not UTF-8 text; {_SHAREGPT_FORM}") from error


class Turn(NamedTuple):
    """What a user says in a session, and how long the answer is.

    Attributes:
        text: None = random text of `input_tokens`.
        think_s: seconds after the answer before it, or after the session's begin.
    """

    text: str | None
    input_tokens: int
    output_tokens: int
    think_s: float

    def tokens(self, tokenizer: Tokenizer) -> int:
        """Length of what the user says."""
        return self.input_tokens if self.text is None else max(tokenizer.count(self.text), 1)


class Session(NamedTuple):
    """One conversation of a file.

    Attributes:
        system: the system prompt; empty = none.
        tools: as of OpenAI's API; empty = none.
        line: where it stands in the file, from 1.
    """

    turns: tuple[Turn, ...]
    system: str
    tools: list[Any]
    line: int

    @property
    def preamble(self) -> str:
        """Text before the first turn: tools and system prompt, in the order in which chat templates put them."""
        return "\n\n".join(filter(None, (json.dumps(self.tools) if self.tools else "", self.system)))

    def longest(self, tokenizer: Tokenizer) -> int:
        """Tokens of the last turn's prompt and answer: of everything that is said."""
        preamble = tokenizer.count(self.preamble) if self.preamble else 0
        return preamble + sum(turn.tokens(tokenizer) + turn.output_tokens for turn in self.turns)


def read_sessions(path: Path) -> tuple[Session, ...]:
    """The sessions of a file, in its order; kept until the file changes.

    A line without turns gives the system prompt and the tools of all sessions below it that have none of their own.

    Raises:
        BadInput: the file cannot be read as text.
        MalformedFile: a line is no session, or there is none.
    """
    try:
        return _read_sessions(path, *file_version(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"sessions {path} cannot be read as UTF-8 text: {error}") from error


@lru_cache(maxsize=4)
def _read_sessions(path: Path, *_: int) -> tuple[Session, ...]:
    sessions = tuple(_sessions(path, path.read_text(encoding="utf-8-sig")))
    if not sessions:
        raise MalformedFile(path, f"holds no session, one JSON object per line: {_SESSION_FORM}", 1)
    return sessions


def _sessions(path: Path, text: str) -> Iterator[Session]:
    system, tools = "", list[Any]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = json_object(path, number, line, f"write {_SESSION_FORM}")
        if not row.keys() & {"turns", "system", "tools"}:
            raise MalformedFile(path, f"no session; write {_SESSION_FORM}", number)
        its_system, its_tools = row.get("system", system), row.get("tools", tools)
        if not is_text(its_system) or not isinstance(its_tools, list):
            raise MalformedFile(path, "system must be text and tools a list, as of OpenAI's API", number)
        if "turns" not in row:
            system, tools = its_system, its_tools
            continue
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise MalformedFile(path, f"turns must be a list of at least one; write {_SESSION_FORM}", number)
        read = tuple(_turn(path, number, place, turn) for place, turn in enumerate(turns, start=1))
        yield Session(read, its_system, its_tools, number)


def _turn(path: Path, number: int, place: int, turn: Any) -> Turn:
    if not isinstance(turn, dict):
        raise MalformedFile(path, f"turn {place} is no object; write {_TURN_FORM}", number)
    text = turn.get("user", turn.get("text"))
    if text is not None and not (text and is_text(text)):
        raise MalformedFile(path, f"turn {place}: what the user says must be text", number)
    written = _count(turn.get("output_tokens", turn.get("output_length")))
    if not written:
        raise MalformedFile(path, f"turn {place} has no output_tokens above 0, and no length is guessed", number)
    read = _count(turn.get("input_tokens"))
    if text is None and not read:
        raise MalformedFile(path, f"turn {place} has neither user nor input_tokens above 0; write {_TURN_FORM}", number)
    think_s = _seconds(turn.get("think_s"), turn.get("delay_ms", turn.get("delay", 0)))
    if think_s is None:
        raise MalformedFile(path, f"turn {place}: think_s must be seconds from 0 to a day (delay_ms: ms)", number)
    return Turn(text, read if text is None else 0, written, think_s)


def _count(value: object) -> int:
    """A number of tokens; 0 for what is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 < value < _MOST_TOKENS else 0


def _seconds(think_s: object, delay_ms: object) -> float | None:
    """The time in which a user thinks, by the one or the other; None for what is none."""
    value, unit = (delay_ms, 1e-3) if think_s is None else (think_s, 1.0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST_THINK_S / unit:
        return None
    return value * unit
