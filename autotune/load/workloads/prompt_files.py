"""Files of requests: ``jsonl:FILE``, ``sharegpt:FILE``, ``sessions:FILE`` and ``trace:FILE``.

``jsonl``: one request per line, as `_REQUEST_FORM` says. ``sharegpt``: a ShareGPT file, sampled by
vLLM's rules.

``sessions``: conversations of several turns, one JSON object per line, in the form of AIPerf's
multi-turn input (https://docs.nvidia.com/aiperf, *Multi-Turn Conversations*): ``{"session_id": …,
"turns": [{"text": …, "delay": ms}, …]}``, with a length for every answer, and with what AIPerf has
options for: turns of random text, a system prompt, tools.

``trace``: when requests came, how long they were and which prefixes they shared, in one of two
published forms, told apart by the first line. Mooncake (https://github.com/kvcache-ai/Mooncake,
FAST25-release), one JSON object per line: ``timestamp`` in ms, ``input_length``, ``output_length``,
``hash_ids``; each id stands for one block of 512 prompt tokens, the last one for what is left, and
equal ids are equal blocks. Azure's LLM inference traces
(https://github.com/Azure/AzurePublicDataset), CSV: ``TIMESTAMP`` (date and time),
``ContextTokens``, ``GeneratedTokens``; they say nothing of prefixes.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial, wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.random import Generator
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.base import BadInput, MalformedFile
from autotune.base.arrays import Floats, Ints

from ..requests import Content
from ..tokenizers import Tokenizer

FEWEST_TOKENS = 4
MOST_INPUT_TOKENS = 1024
MOST_TOTAL_TOKENS = 2048
"""vLLM's filter (``is_valid_sequence`` in vllm/benchmarks/datasets.py): at least 4 tokens each way,
at most 1024 of a prompt, at most 2048 of prompt and answer."""

BLOCK_TOKENS = 512
"""Prompt tokens of one of Mooncake's hash ids."""

_MOST_THINK_S = 86400.0
_MOST_MS = 1e13  # 300 years: larger values are no times of a trace

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_REQUEST_FORM = (
    '{"prompt": "text" or [token ids], "output_tokens": M}, {"messages": [{"role": "user", "content": "…"}], '
    '"output_tokens": M}, or {"input_tokens": N, "output_tokens": M} for a random prompt, with whole numbers > 0'
)
_SHAREGPT_FORM = (
    'a ShareGPT file is a JSON list of {"conversations": [{"from": "human", "value": "…"}, …]}'
)
_TURN_FORM = (
    '{"user": "text", "output_tokens": N, "think_s": S} or {"input_tokens": N, "output_tokens": N}'
)
_SESSION_FORM = f'{{"turns": [{_TURN_FORM}, …], "system": "text", "tools": […]}}'
_MOONCAKE_FORM = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}'
)
_AZURE_FORM = f"a header {','.join(_AZURE)} and rows such as 2023-11-16 18:15:46.6805900,374,44"

Half = Literal[1, 2]
_Held = TypeVar("_Held")
_AnyLine = TypeVar("_AnyLine", bound=BaseModel)
_Item = TypeVar("_Item")


def _kept(read: Callable[[Path], _Held]) -> Callable[[Path], _Held]:
    """Cache a reader's result until the file's time or size changes; `BadInput` for a file that is
    no text."""
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
        raise MalformedFile(
            path, f"is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error


def half_of(items: Sequence[_Item], half: Half | None) -> Sequence[_Item]:
    """Return one of each two neighbours, at random with a fixed seed (a sorted file has equal
    halves); None: all."""
    if half is None:
        return items
    toss = np.random.default_rng(len(items)).integers(0, 2, len(items) // 2)
    return [items[2 * pair + (int(side) + half) % 2] for pair, side in enumerate(toss)]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers; JSON text may hold other separators
    than line feeds."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())


def parsed_line(path: Path, number: int, line: str, form: type[_AnyLine], right: str) -> _AnyLine:
    """Read the JSON object on a line; raises `MalformedFile`, whose message ends with the expected
    form (`right`)."""
    try:
        return form.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
    problem = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        problem = "not JSON"
    # Entries of lists count from 1; names of the members of a union are left out.
    parts = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    if where := ".".join(part for part in parts if part.isalnum() or "_" in part):
        problem = f"{where}: {problem}"
    raise MalformedFile(path, f"{problem}; write {right}", number)


class _Line(BaseModel):
    """One request of a ``jsonl`` file; unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


Count = Annotated[int, Field(gt=0, lt=2**31)]
"""A number of tokens."""
_Text = Annotated[str, Field(min_length=1)]


class FileRequest(NamedTuple):
    """One request of a file, or one turn of its sessions.

    Attributes:
        content: the prompt's content, or the user's in a turn; None = random tokens.
        stated_tokens: its length where the file gives it; else a tokenizer counts it.
        think_s: seconds after the previous answer, or after the session's begin.
    """

    content: Content | None
    stated_tokens: int | None
    output_tokens: int
    think_s: float = 0.0

    def input_tokens(self, tokenizer: Tokenizer) -> int:
        """Return the prompt's length; a chat's without its template."""
        if self.stated_tokens is not None:
            return self.stated_tokens
        texts = [self.content] if isinstance(self.content, str) else []
        for message in self.content or ():
            if isinstance(message, dict):
                texts.append(message["content"])
        return max(sum(map(tokenizer.count, texts)), 1)


class _Message(_Line, extra="allow"):
    role: str
    content: str


class _RequestLine(_Line):
    prompt: _Text | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    messages: Annotated[list[_Message], Field(min_length=1)] | None = None
    input_tokens: Count | None = None
    output_tokens: Count

    @model_validator(mode="after")
    def _check(self) -> _RequestLine:
        if self.prompt is None and self.messages is None and self.input_tokens is None:
            raise ValueError("neither prompt nor input_tokens")
        return self

    @property
    def request(self) -> FileRequest:
        if self.messages is not None and self.prompt is None:
            messages = [message.model_dump() for message in self.messages]
            return FileRequest(messages, self.input_tokens, self.output_tokens)
        stated = len(self.prompt) if isinstance(self.prompt, list) else self.input_tokens
        return FileRequest(self.prompt, stated, self.output_tokens)


@_kept
def read_requests(path: Path) -> tuple[FileRequest, ...]:
    """Read a ``jsonl:`` file, in its order; raises `BadInput`, `MalformedFile` for a line of
    another form."""
    lines = _lines(path)
    requests = tuple(
        parsed_line(path, n, line, _RequestLine, _REQUEST_FORM).request for n, line in lines
    )
    if not requests:
        raise MalformedFile(
            path, f"holds no request, one JSON object per line: write {_REQUEST_FORM}", 1
        )
    return requests


class Conversations(NamedTuple):
    """Conversations of a ShareGPT file: the first two turns of each with two or more, in the file's
    order."""

    pairs: list[tuple[str, str]]
    rows: int
    skipped: int


@_kept
def conversations(path: Path) -> Conversations:
    """Read the conversations of a ShareGPT file.

    It is a JSON list (or one object per line) of ``{"conversations": [{"from": …, "value": "…"},
    …]}``; the usual one, ShareGPT_V3_unfiltered_cleaned_split.json, is 640 MB with 94,000
    conversations; only the first two turns are kept.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: it is not JSON, or holds no
    conversation.
    """
    pairs: list[tuple[str, str]] = []
    count = skipped = 0
    for row in rows(path):
        count += 1
        turns = row.get("conversations") if isinstance(row, dict) else None
        turns = turns[:2] if isinstance(turns, list) else [None]
        texts: list[Any] = [turn.get("value") if isinstance(turn, dict) else None for turn in turns]
        if not all(isinstance(text, str) for text in texts):
            skipped += 1
        elif len(texts) == 2:
            pairs.append((texts[0], texts[1]))
    if not pairs:
        raise MalformedFile(
            path, f"none of its {count} rows is a conversation of two turns; {_SHAREGPT_FORM}"
        )
    return Conversations(pairs, count, skipped)


def check_sharegpt(path: Path) -> None:
    """Raise `BadInput` for a file that is not readable; its content is checked on use."""
    with _readable(path), path.open(encoding="utf-8-sig") as file:
        file.read(1)


def sample(
    path: Path,
    prompts: int,
    generator: Generator,
    tokenizer: Tokenizer,
    half: Half | None = None,
) -> list[FileRequest]:
    """Choose the first ones, in an order drawn by `generator`, that pass vLLM's filter; `half` as
    in `half_of`.

    The first turn is the prompt, and the second turn's length that of the answer. No more is
    tokenized than must be. A file with fewer is refused: vLLM would send some twice, and the second
    time would come out of the prefix cache.

    Raises `BadInput`: the file cannot be read, or holds fewer.
    """
    pairs = half_of(conversations(path).pairs, half)
    chosen = []
    for position in generator.permutation(len(pairs)).tolist():
        prompt, answer = pairs[position]
        read = tokenizer.count(prompt)
        if not FEWEST_TOKENS <= read <= MOST_INPUT_TOKENS:
            continue
        written = tokenizer.count(answer)
        if written >= FEWEST_TOKENS and read + written <= MOST_TOTAL_TOKENS:
            chosen.append(FileRequest(prompt, read, written))
            if len(chosen) == prompts:
                return chosen
    raise BadInput(
        f"{prompts} prompts are requested, but only {len(chosen)} of the {len(pairs)} conversations of {path} "
        f"pass vLLM's filter ({FEWEST_TOKENS} tokens or more each way, a prompt of at most {MOST_INPUT_TOKENS}, "
        f"{MOST_TOTAL_TOKENS} together): ask for fewer with sharegpt:{path}:N"
    )


def rows(path: Path) -> list[Any]:
    """Return the elements of a file's list, or of its lines; raises `MalformedFile` for invalid
    JSON."""
    text = path.read_text(encoding="utf-8-sig")
    whole = [text] if text.lstrip().startswith("[") else []
    try:
        # Texts within JSON may hold other line breaks.
        read = [json.loads(part) for part in whole or text.split("\n") if part.strip()]
        return list(*read) if whole else read
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, f"is not JSON or cut off ({error}); {_SHAREGPT_FORM}") from error


class Session(NamedTuple):
    """One conversation of a ``jsonl`` file; `tools` are OpenAI tool definitions, maybe none."""

    turns: tuple[FileRequest, ...]
    system: str
    tools: list[Any]
    line: int

    @property
    def preamble(self) -> str:
        """Return the text before the first turn: tools and system prompt, in the order of chat
        templates."""
        tools = json.dumps(self.tools) if self.tools else ""
        return "\n\n".join(filter(None, (tools, self.system)))

    def longest(self, tokenizer: Tokenizer) -> int:
        """Return the tokens of the last turn's prompt and answer: of the whole conversation."""
        preamble = tokenizer.count(self.preamble) if self.preamble else 0
        return preamble + sum(
            turn.input_tokens(tokenizer) + turn.output_tokens for turn in self.turns
        )


class _Turn(_Line):
    user: _Text | None = Field(default=None, validation_alias=AliasChoices("user", "text"))
    input_tokens: Count | None = None
    output_tokens: Count = Field(validation_alias=AliasChoices("output_tokens", "output_length"))
    think_s: float | None = Field(default=None, ge=0, le=_MOST_THINK_S)
    delay_ms: float = Field(
        default=0, ge=0, le=1e3 * _MOST_THINK_S, validation_alias=AliasChoices("delay_ms", "delay")
    )

    @model_validator(mode="after")
    def _check(self) -> _Turn:
        if self.user is None and self.input_tokens is None:
            raise ValueError("neither user nor input_tokens above 0")
        return self

    @property
    def request(self) -> FileRequest:
        think_s = self.delay_ms / 1e3 if self.think_s is None else self.think_s
        stated = self.input_tokens if self.user is None else None
        return FileRequest(self.user, stated, self.output_tokens, think_s)


class _SessionLine(_Line):
    turns: Annotated[list[_Turn], Field(min_length=1)] | None = None
    system: str | None = None
    tools: list[Any] | None = None


@_kept
def read_sessions(path: Path) -> tuple[Session, ...]:
    """Read the sessions of a file, in its order.

    A line without turns gives the system prompt and the tools of all sessions below it that have
    none of their own.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: a line is no session, or there is
    none.
    """
    sessions = list[Session]()
    shared = _SessionLine()
    for number, line in _lines(path):
        row = parsed_line(path, number, line, _SessionLine, _SESSION_FORM)
        if not row.model_fields_set:
            raise MalformedFile(path, f"no session; write {_SESSION_FORM}", number)
        system = shared.system if row.system is None else row.system
        tools = shared.tools if row.tools is None else row.tools
        if row.turns is None:
            shared = _SessionLine(system=system, tools=tools)
        else:
            turns = tuple(turn.request for turn in row.turns)
            sessions.append(Session(turns, system or "", tools or [], number))
    if not sessions:
        raise MalformedFile(path, f"holds no session, one JSON object per line: {_SESSION_FORM}", 1)
    return tuple(sessions)


class Trace(NamedTuple):
    """Requests of a trace, in its order.

    Attributes:
        send_s: seconds after the first, shape (n,), ascending.
        output_tokens: shape (n,), at least 1.
        blocks: hash ids of each prompt's blocks of `BLOCK_TOKENS`; None where the trace has none.
        lines: line number of each in the file, from 1.
    """

    send_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    blocks: Sequence[tuple[int, ...] | None]
    lines: Ints

    @property
    def rate(self) -> float:
        """Return requests per second, from the first to the last; at most one per millisecond (the
        resolution)."""
        return len(self.lines) / max(float(self.send_s[-1]), 1e-3 * len(self.lines))

    def part(self, half: Half | None) -> Trace:
        """Return one half of the requests, by time; all of them without a half."""
        middle = len(self.lines) // 2
        if half is None or not middle:
            return self
        columns: list[Any] = [column[(half - 1) * middle : half * middle] for column in self]
        cut = Trace(*columns)
        return cut._replace(send_s=cut.send_s - cut.send_s[0])


_TraceRow = tuple[float, int, int, tuple[int, ...] | None]
"""Seconds, prompt tokens, answer tokens (at least one, as engines require), hash ids."""


class _MooncakeLine(_Line):
    timestamp: float = Field(ge=0, le=_MOST_MS)
    input_length: Count
    output_length: int = Field(ge=0, lt=2**31)
    hash_ids: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> _MooncakeLine:
        expected = math.ceil(self.input_length / BLOCK_TOKENS)
        if self.hash_ids is not None and len(self.hash_ids) != expected:
            raise ValueError(
                f"{len(self.hash_ids)} hash_ids for {self.input_length} prompt tokens; in Mooncake's form each is "
                f"{BLOCK_TOKENS} tokens, so {expected} are expected"
            )
        return self


@_kept
def read_trace(path: Path) -> Trace:
    """Read the requests of a trace; raises `BadInput`, `MalformedFile` for another form, or
    decreasing times."""
    lines = _lines(path)
    first_number, first = next(lines, (1, ""))
    columns = [name.strip() for name in _cells(first)]
    parse: Callable[[Path, int, str], _TraceRow] = _mooncake
    if first.lstrip().startswith("{"):
        lines = chain([(first_number, first)], lines)
    elif all(name in columns for name in _AZURE):
        parse = partial(_azure, [columns.index(name) for name in _AZURE])
    elif first:
        problem = f"not a trace: write {_MOONCAKE_FORM} (Mooncake), or {_AZURE_FORM} (Azure)"
        raise MalformedFile(path, problem, first_number)
    requests = list[_TraceRow]()
    numbers = list[int]()
    for number, line in lines:
        request = parse(path, number, line)
        if requests and request[0] < requests[-1][0]:
            problem = f"its time is before that of line {numbers[-1]}; sort the trace by time"
            raise MalformedFile(path, problem, number)
        requests.append(request)
        numbers.append(number)
    if not requests:
        raise MalformedFile(
            path, f"holds no request; a line per request: {_MOONCAKE_FORM}, or {_AZURE_FORM}", 1
        )
    at_s, read, written, blocks = zip(*requests, strict=True)
    send_s = np.array(at_s) - at_s[0]
    return Trace(send_s, np.array(read), np.array(written), blocks, np.array(numbers))


def _mooncake(path: Path, number: int, line: str) -> _TraceRow:
    row = parsed_line(path, number, line, _MooncakeLine, _MOONCAKE_FORM)
    return row.timestamp / 1e3, row.input_length, max(row.output_length, 1), row.hash_ids


def _azure(places: Sequence[int], path: Path, number: int, line: str) -> _TraceRow:
    cells = _cells(line)
    try:
        at, *counts = (cells[place].strip() for place in places)
        time = datetime.fromisoformat(at)
        read, written = map(int, counts)
        if not (0 < read < 2**31 and 0 <= written < 2**31):
            raise ValueError("no numbers of tokens")
    except (ValueError, IndexError) as error:
        raise MalformedFile(
            path, f"no row of an Azure trace: write {_AZURE_FORM}", number
        ) from error
    # The zone is UTC, which only some of the published files name.
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - _EPOCH).total_seconds(), read, max(written, 1), None


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error:
        return []
