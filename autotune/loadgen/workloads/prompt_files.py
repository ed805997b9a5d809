"""Files of requests: ``jsonl:FILE``, ``sharegpt:FILE``, ``sessions:FILE`` and ``trace:FILE``.

``jsonl``: one request per line, as `_REQUEST_FORM` says. ``sharegpt``: a ShareGPT file, sampled by vLLM's rules.

``sessions``: conversations of several turns, one JSON object per line, in the form of AIPerf's multi-turn input
(https://docs.nvidia.com/aiperf, *Multi-Turn Conversations*): ``{"session_id": …, "turns": [{"text": …, "delay": ms},
…]}``, with a length for every answer, and with what AIPerf has options for: turns of random text, a system prompt,
tools.

``trace``: when requests came, how long they were and which prefixes they shared, in one of two published forms, told
apart by the first line. Mooncake (https://github.com/kvcache-ai/Mooncake, FAST25-release), one JSON object per line:
``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids``; each id stands for one block of 512 prompt
tokens, the last one for what is left, and equal ids are equal blocks. Azure's LLM inference traces
(https://github.com/Azure/AzurePublicDataset), CSV: ``TIMESTAMP`` (date and time), ``ContextTokens``,
``GeneratedTokens``; they say nothing of prefixes.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial, wraps
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.requests import Content
from autotune.loadgen.tokenizers import Tokenizer

FEWEST_TOKENS = 4
MOST_INPUT_TOKENS = 1024
MOST_TOTAL_TOKENS = 2048
"""vLLM's filter (``is_valid_sequence`` in vllm/benchmarks/datasets.py): at least 4 tokens each way, at most 1024 of a
prompt, at most 2048 of prompt and answer."""

BLOCK_TOKENS = 512
"""Prompt tokens of one of Mooncake's hash ids."""

_MOST_TOKENS = 2**31
_MOST_THINK_S = 86400.0
_MOST_MS = 1e13
"""300 years: what is beyond is no time of a trace."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_REQUEST_FORM = (
    'write {"prompt": "text" or [token ids], "output_tokens": M}, {"messages": [{"role": "user", "content": "…"}], '
    '"output_tokens": M}, or {"input_tokens": N, "output_tokens": M} for a random prompt, with whole numbers > 0'
)
_SHAREGPT_FORM = 'a ShareGPT file is a JSON list of {"conversations": [{"from": "human", "value": "…"}, …]}'
_TURN_FORM = '{"user": "text", "output_tokens": N, "think_s": S} or {"input_tokens": N, "output_tokens": N}'
_SESSION_FORM = f'{{"turns": [{_TURN_FORM}, …], "system": "text", "tools": […]}}'
_MOONCAKE_FORM = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}'
_AZURE_FORM = f"a header {','.join(_AZURE)} and rows such as 2023-11-16 18:15:46.6805900,374,44"

_Held = TypeVar("_Held")


def _kept(read: Callable[[Path], _Held]) -> Callable[[Path], _Held]:
    """Keep what a reader made of a file until the file's time or size changes; `BadInput` where it is no text file."""
    cached = lru_cache(maxsize=4)(lambda path, *_version: read(path))

    @wraps(read)
    def kept(path: Path) -> _Held:
        with _readable(path):
            status = path.stat()
            return cached(path, status.st_mtime_ns, status.st_size)

    return kept


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(f"workload file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers; JSON text may hold other separators than line feeds."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())


def json_object(path: Path, number: int, line: str, form: str) -> dict[str, Any]:
    """Parse a line of a file as a JSON object; `form`, how to write one, ends the message.

    Raises `MalformedFile`: it is none.
    """
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, f"not JSON; {form}", number) from error
    if not isinstance(row, dict):
        raise MalformedFile(path, f"not an object; {form}", number)
    return row


def _is_text(content: Any) -> bool:
    """Return whether it is text that can be sent: JSON may hold half a surrogate pair, which no UTF-8 has."""
    return isinstance(content, str) and not _SURROGATE.search(content)


def _is_count(value: Any) -> TypeGuard[int]:
    """Return whether it is a number of tokens above 0."""
    return type(value) is int and 0 < value < _MOST_TOKENS


class FileRequest(NamedTuple):
    """One request of a file, or one turn of its sessions.

    Attributes:
        content: what the prompt (or the user, in a turn) says; None = random tokens.
        stated_tokens: the length of that where the file gives it; else a tokenizer tells it.
        think_s: seconds after the answer before it, or after the session's begin.
    """

    content: Content | None
    stated_tokens: int | None
    output_tokens: int
    think_s: float = 0.0

    def input_tokens(self, tokenizer: Tokenizer) -> int:
        """Return the prompt's length; a chat's without its template."""
        if self.stated_tokens is not None:
            return self.stated_tokens
        if isinstance(self.content, str):
            return max(tokenizer.count(self.content), 1)
        return max(sum(tokenizer.count(part["content"]) for part in self.content or () if isinstance(part, dict)), 1)


@_kept
def read_requests(path: Path) -> tuple[FileRequest, ...]:
    """Read the requests of a ``jsonl:`` file, in its order.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: a line is no request as `_REQUEST_FORM` says, or there
    is none.
    """
    requests = tuple(_request(path, number, line) for number, line in _lines(path))
    if not requests:
        raise MalformedFile(path, f"holds no request, one JSON object per line: {_REQUEST_FORM}", 1)
    return requests


def _request(path: Path, number: int, line: str) -> FileRequest:
    row = json_object(path, number, line, _REQUEST_FORM)
    if "output_tokens" not in row:
        raise MalformedFile(path, 'no output_tokens; add "output_tokens": M, how many tokens to generate', number)
    content, stated, written = row.get("prompt", row.get("messages")), row.get("input_tokens"), row["output_tokens"]
    stated_right = stated is None or _is_count(stated)
    if not (_is_count(written) and stated_right and (content is None or _is_content(content))):
        raise MalformedFile(path, _REQUEST_FORM, number)
    if content is stated is None:
        raise MalformedFile(path, f"neither prompt nor input_tokens; {_REQUEST_FORM}", number)
    if isinstance(content, list) and isinstance(content[0], int):
        stated = len(content)
    return FileRequest(content, stated, written)


def _is_content(content: Any) -> bool:
    """Return whether it is text, token ids, or messages."""
    if not isinstance(content, list) or not content:
        return bool(content) and _is_text(content)
    return all(type(token) is int and token >= 0 for token in content) or all(
        isinstance(message, dict) and _is_text(message.get("role")) and _is_text(message.get("content"))
        for message in content
    )


class Conversations(NamedTuple):
    """Conversations of a ShareGPT file.

    Attributes:
        pairs: first and second turn of each conversation that has both, in the file's order.
    """

    pairs: list[tuple[str, str]]
    rows: int
    skipped: int


@_kept
def conversations(path: Path) -> Conversations:
    """Read the conversations of a ShareGPT file.

    It is a JSON list (or one object per line) of ``{"conversations": [{"from": …, "value": "…"}, …]}``; the usual one,
    ShareGPT_V3_unfiltered_cleaned_split.json, is 640 MB with 94,000 conversations; only the first two turns are kept.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: it is not JSON, or holds no conversation.
    """
    pairs: list[tuple[str, str]] = []
    count = skipped = 0
    for row in rows(path):
        count += 1
        turns = row.get("conversations") if isinstance(row, dict) else None
        turns = turns[:2] if isinstance(turns, list) else [None]
        said: list[Any] = [turn.get("value") if isinstance(turn, dict) else None for turn in turns]
        if not all(isinstance(text, str) for text in said):
            skipped += 1
        elif len(said) == 2:
            pairs.append((said[0], said[1]))
    if not pairs:
        raise MalformedFile(path, f"none of its {count} rows is a conversation of two turns; {_SHAREGPT_FORM}")
    return Conversations(pairs, count, skipped)


def check_sharegpt(path: Path) -> None:
    """Raise `BadInput` for a file that cannot be read; what it holds is looked at when it is needed."""
    with _readable(path), path.open(encoding="utf-8-sig") as file:
        file.read(1)


def sample(path: Path, prompts: int, generator: np.random.Generator, tokenizer: Tokenizer) -> list[FileRequest]:
    """Choose the first so many, in an order drawn by `generator`, that pass vLLM's filter.

    The first turn is the prompt, and the second turn's length that of the answer. No more is tokenized than must be.
    A file with fewer is refused: vLLM would send some twice, and the second time would come out of the prefix cache.

    Raises `BadInput`: the file cannot be read, or holds fewer.
    """
    held = conversations(path)
    chosen: list[FileRequest] = []
    for position in generator.permutation(len(held.pairs)).tolist():
        prompt, answer = held.pairs[position]
        read = tokenizer.count(prompt)
        if not FEWEST_TOKENS <= read <= MOST_INPUT_TOKENS:
            continue
        written = tokenizer.count(answer)
        if written >= FEWEST_TOKENS and read + written <= MOST_TOTAL_TOKENS:
            chosen.append(FileRequest(prompt, read, written))
            if len(chosen) == prompts:
                return chosen
    raise BadInput(
        f"{prompts} prompts are asked for, but only {len(chosen)} of the {len(held.pairs)} conversations of {path} "
        f"pass vLLM's filter ({FEWEST_TOKENS} tokens or more each way, a prompt of at most {MOST_INPUT_TOKENS}, "
        f"{MOST_TOTAL_TOKENS} together): ask for fewer with sharegpt:{path}:N"
    )


def rows(path: Path) -> list[Any]:
    """Return the elements of a file's list, or what stands on its lines; the file is read at once, as vLLM does.

    Raises `OSError`: the file cannot be read; `UnicodeDecodeError`: it is no text; `MalformedFile`: it is not JSON.
    """
    text = path.read_text(encoding="utf-8-sig")
    whole = [text] if text.lstrip().startswith("[") else []
    try:
        # Texts within JSON may hold other line breaks.
        read = [json.loads(part) for part in whole or text.split("\n") if part.strip()]
        return list(*read) if whole else read
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, f"is not JSON or cut off ({error}); {_SHAREGPT_FORM}") from error


class Session(NamedTuple):
    """One conversation of a file.

    Attributes:
        tools: as of OpenAI's API; empty = none.
        line: where it stands in the file, from 1.
    """

    turns: tuple[FileRequest, ...]
    system: str
    tools: list[Any]
    line: int

    @property
    def preamble(self) -> str:
        """Text before the first turn: tools and system prompt, in the order in which chat templates put them."""
        return "\n\n".join(filter(None, (json.dumps(self.tools) if self.tools else "", self.system)))

    def longest(self, tokenizer: Tokenizer) -> int:
        """Return the tokens of the last turn's prompt and answer: of everything that is said."""
        preamble = tokenizer.count(self.preamble) if self.preamble else 0
        return preamble + sum(turn.input_tokens(tokenizer) + turn.output_tokens for turn in self.turns)


@_kept
def read_sessions(path: Path) -> tuple[Session, ...]:
    """Read the sessions of a file, in its order.

    A line without turns gives the system prompt and the tools of all sessions below it that have none of their own.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: a line is no session, or there is none.
    """
    sessions, system, tools = list[Session](), "", list[Any]()
    for number, line in _lines(path):
        row = json_object(path, number, line, f"write {_SESSION_FORM}")
        if not row.keys() & {"turns", "system", "tools"}:
            raise MalformedFile(path, f"no session; write {_SESSION_FORM}", number)
        its_system, its_tools = row.get("system", system), row.get("tools", tools)
        if not _is_text(its_system) or not isinstance(its_tools, list):
            raise MalformedFile(path, "system must be text and tools a list, as of OpenAI's API", number)
        if "turns" not in row:
            system, tools = its_system, its_tools
            continue
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise MalformedFile(path, f"turns must be a list of at least one; write {_SESSION_FORM}", number)
        read = tuple(_turn(path, number, f"turn {place}", turn) for place, turn in enumerate(turns, start=1))
        sessions.append(Session(read, its_system, its_tools, number))
    if not sessions:
        raise MalformedFile(path, f"holds no session, one JSON object per line: {_SESSION_FORM}", 1)
    return tuple(sessions)


def _turn(path: Path, number: int, which: str, turn: Any) -> FileRequest:
    if not isinstance(turn, dict):
        raise MalformedFile(path, f"{which} is no object; write {_TURN_FORM}", number)
    text = turn.get("user", turn.get("text"))
    if text is not None and not (text and _is_text(text)):
        raise MalformedFile(path, f"{which}: what the user says must be text", number)
    written, read = turn.get("output_tokens", turn.get("output_length")), turn.get("input_tokens")
    if not _is_count(written):
        raise MalformedFile(path, f"{which} has no output_tokens above 0, and no length is guessed", number)
    if text is None and not _is_count(read):
        raise MalformedFile(path, f"{which} has neither user nor input_tokens above 0; write {_TURN_FORM}", number)
    think, unit = turn.get("think_s"), 1.0
    if think is None:
        think, unit = turn.get("delay_ms", turn.get("delay", 0)), 1e-3
    if not _is_number(think, _MOST_THINK_S / unit):
        raise MalformedFile(path, f"{which}: think_s must be seconds from 0 to a day (delay_ms: ms)", number)
    return FileRequest(text, read if text is None else None, written, think * unit)


def _is_number(value: Any, most: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


class Trace(NamedTuple):
    """Requests of a trace, in its order.

    Attributes:
        send_s: seconds after the first, shape (n,), ascending.
        output_tokens: shape (n,), at least 1.
        blocks: hash ids of each prompt's blocks of `BLOCK_TOKENS`; None where the trace tells none.
        lines: where each stands in the file, from 1.
    """

    send_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    blocks: Sequence[tuple[int, ...] | None]
    lines: Ints

    @property
    def rate(self) -> float:
        """Requests per second, from the first to the last; at most one a millisecond, as times are in such."""
        return len(self.lines) / max(float(self.send_s[-1]), 1e-3 * len(self.lines))


_TraceRow = tuple[float, int, int, tuple[int, ...] | None]
"""Seconds, prompt tokens, answer tokens, hash ids."""


@_kept
def read_trace(path: Path) -> Trace:
    """Read the requests of a trace.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: it has neither form, a line is broken, or its time is
    before the line's above.
    """
    lines = _lines(path)
    first_number, first = next(lines, (1, ""))
    columns = [name.strip() for name in _cells(first)]
    parse: Callable[[Path, int, str], _TraceRow] = _mooncake
    if first.lstrip().startswith("{"):
        lines = chain([(first_number, first)], lines)
    elif all(name in columns for name in _AZURE):
        parse = partial(_azure, [columns.index(name) for name in _AZURE])
    elif first:
        problem = f"neither form of a trace: write {_MOONCAKE_FORM} (Mooncake), or {_AZURE_FORM} (Azure)"
        raise MalformedFile(path, problem, first_number)
    found, numbers = list[_TraceRow](), list[int]()
    for number, line in lines:
        row = parse(path, number, line)
        if found and row[0] < found[-1][0]:
            problem = f"its time is before that of line {numbers[-1]}; sort the trace by time"
            raise MalformedFile(path, problem, number)
        found.append(row)
        numbers.append(number)
    if not found:
        raise MalformedFile(path, f"holds no request; a line per request: {_MOONCAKE_FORM}, or {_AZURE_FORM}", 1)
    at_s, read, written, blocks = zip(*found, strict=True)
    send_s = np.array(at_s) - at_s[0]
    return Trace(send_s, np.array(read, np.int64), np.array(written, np.int64), blocks, np.array(numbers, np.int64))


def _mooncake(path: Path, number: int, line: str) -> _TraceRow:
    row = json_object(path, number, line, f"write {_MOONCAKE_FORM}")
    at_ms, ids = row.get("timestamp"), row.get("hash_ids")
    if not _is_number(at_ms, _MOST_MS):
        problem = f"timestamp {at_ms!r:.40} is no number of milliseconds from 0 on; write {_MOONCAKE_FORM}"
        raise MalformedFile(path, problem, number)
    read, written = _lengths(path, number, {name: row.get(name) for name in ("input_length", "output_length")})
    if ids is None:
        return at_ms / 1e3, read, written, None
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**63 for one in ids):
        raise MalformedFile(path, f"hash_ids must be a list of whole numbers; write {_MOONCAKE_FORM}", number)
    expected = math.ceil(read / BLOCK_TOKENS)
    if len(ids) != expected:
        problem = (
            f"{len(ids)} hash_ids for {read} prompt tokens; in Mooncake's form each stands for {BLOCK_TOKENS} tokens, "
            f"so that there are {expected}"
        )
        raise MalformedFile(path, problem, number)
    return at_ms / 1e3, read, written, tuple(ids)


def _azure(places: Sequence[int], path: Path, number: int, line: str) -> _TraceRow:
    cells = _cells(line)
    try:
        at, read, written = (cells[place].strip() for place in places)
        time = datetime.fromisoformat(at)
        counts = dict(zip(_AZURE[1:], (int(read), int(written)), strict=True))
    except (ValueError, IndexError) as error:
        raise MalformedFile(path, f"no row of an Azure trace: write {_AZURE_FORM}", number) from error
    # Some of the published files name the zone, which is UTC, and others do not.
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - _EPOCH).total_seconds(), *_lengths(path, number, counts), None


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error:
        return []


def _lengths(path: Path, number: int, counts: Mapping[str, Any]) -> tuple[int, int]:
    """Check the tokens of a prompt and its answer; an answer of none, which no engine can be asked for, gets one."""
    for place, (name, value) in enumerate(counts.items()):
        if not _is_count(value) and not (place == 1 and type(value) is int and value == 0):
            raise MalformedFile(path, f"{name} {value!r:.40} is no whole number above 0", number)
    read, written = counts.values()
    return read, max(written, 1)
