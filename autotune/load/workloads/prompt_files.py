"""Files of requests: ``jsonl:FILE``, ``sharegpt:FILE``, ``sessions:FILE``; `traces` reads those of
``trace:FILE``.

``jsonl``: requests that stand alone. ``sharegpt``: conversations, sampled by vLLM's rules.
``sessions``: conversations of several turns, in the form of AIPerf's multi-turn input
(https://docs.nvidia.com/aiperf, *Multi-Turn Conversations*) with turns of random text, a system
prompt and tools besides.

Rows are JSON objects, one per line or in a list, or those of a CSV table. ``request_keys.yaml`` has
the names by which tools call the parts of a request, the keys that wrap requests, and those by
which a form is recognised: another tool's form is a name there.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.random import Generator
from pydantic import (
    AliasChoices,
    AliasGenerator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from autotune.base import BadInput, Json, MalformedFile, StringDict, beside
from autotune.engines.entry import parse_yaml

from ..requests import Content, spoken
from ..tokenizers import Approximate, Tokenizer

FEWEST_TOKENS = 4
MOST_INPUT_TOKENS = 1024
MOST_TOTAL_TOKENS = 2048
"""vLLM's filter (``is_valid_sequence`` in vllm/benchmarks/datasets.py): at least 4 tokens each way,
at most 1024 of a prompt, at most 2048 of prompt and answer."""

_MOST_THINK_S = 86400.0
_MODERATE_BYTES = 2**24
"""A file that is read when it is named; conversations of more are well above the usual number."""

KEYS = parse_yaml(beside(__file__, "request_keys.yaml"))

_MEDIA = frozenset(KEYS["media"])

Half = Literal[1, 2]
Form = Literal["jsonl", "sharegpt", "sessions", "trace"]
Said: TypeAlias = Counter[str]
"""How many requests, or parts of them, were left out or changed, by the words for it."""
_Held = TypeVar("_Held")
_AnyLine = TypeVar("_AnyLine", bound=BaseModel)
_Item = TypeVar("_Item")


def kept(read: Callable[..., _Held]) -> Callable[..., _Held]:
    """Cache a reader's result until the file's time or size changes; `BadInput` for a file that is
    no text."""
    cached = lru_cache(maxsize=4)(lambda path, _version, *more: read(path, *more))

    @wraps(read)
    def reader(path: Path, *more: object) -> _Held:
        with _readable(path):
            status = path.stat()
            return cached(path, (status.st_mtime_ns, status.st_size), *more)

    return reader


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


class _Cells(StringDict):
    """A row of a table, by the names of its header; without its empty cells."""


def row_config(kind: str) -> ConfigDict:
    """Return how rows of a kind are read: by the names of ``request_keys.yaml``; unknown keys are
    ignored."""
    names = KEYS["names"].get(kind, {})
    alias = AliasGenerator(validation_alias=lambda part: AliasChoices(*names.get(part, [part])))
    return ConfigDict(strict=True, frozen=True, defer_build=True, alias_generator=alias)


Count = Annotated[int, Field(gt=0, lt=2**31)]
"""A number of tokens."""


def _joined(value: Any, info: ValidationInfo) -> Any:
    """Return one text for the parts of a message; parts of another kind are counted."""
    if not isinstance(value, list) or not value or isinstance(value[0], int):
        return value
    texts: list[Any] = []
    said: Any = info.context
    for part in value:
        inside = part if isinstance(part, dict) else {"text": part}
        text = inside.get("text", inside.get("contents"))
        texts += text if isinstance(text, list) else [text]
        if text is None:
            kind = str(inside.get("type")).removeprefix("input_").removesuffix("_url")
            said[f"{kind} parts not sent"] += 1
    return "\n".join(text for text in texts if isinstance(text, str))


_Joined = BeforeValidator(_joined)


def _count_media(row: Json, said: Said) -> bool:
    """Count the parts beside a row's text, which are not sent; return whether it has any."""
    found = {name: row[name] for name in _MEDIA.intersection(row) if row[name]}
    for name, media in found.items():
        parts = len(media) if isinstance(media, list) else 1
        said[f"{name.removesuffix('s')} parts not sent"] += parts
    return bool(found)


class FileRequest(NamedTuple):
    """One request of a file, or one turn of its sessions.

    Attributes:
        content: the prompt's content, or the user's in a turn; None = random tokens.
        stated_tokens: its length where the file gives it; else a tokenizer counts it.
        output_tokens: 0 where the file has the answer itself, which a tokenizer counts.
        think_s: seconds after the previous answer, or after the session's begin.
        at: its time in a trace, in the trace's unit.
        blocks: hash ids of its blocks; empty where it shares nothing.
        line: its row in the file, from 1.
    """

    content: Content | None
    stated_tokens: int | None
    output_tokens: int
    think_s: float = 0.0
    answer: str = ""
    at: float = 0.0
    blocks: tuple[int, ...] = ()
    line: int = 0

    def input_tokens(self, tokenizer: Tokenizer) -> int:
        """Return the prompt's length; a chat's without its template."""
        if self.stated_tokens is not None:
            return self.stated_tokens
        return max(sum(map(tokenizer.count, spoken(self.content))), 1)

    def written(self, tokenizer: Tokenizer) -> int:
        """Return the answer's length."""
        return self.output_tokens or max(tokenizer.count(self.answer), 1)


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)
    role: str
    content: Annotated[str | None, _Joined]


class RequestLine(BaseModel):
    """A request as tools write it."""

    model_config = row_config("request")
    prompt: Annotated[
        str | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None, _Joined
    ] = None
    messages: Annotated[list[_Message], Field(min_length=1)] | None = None
    system: Any = None
    tools: Any = None
    answer: Any = None
    input_tokens: Count | None = None
    output_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, row: Any, info: ValidationInfo) -> Any:
        if not isinstance(row, dict):
            return row
        said: Any = info.context
        if _count_media(row, said):
            row = {"text_input": "", **row}
        if "messages" in row:
            # Beside them a prompt's other names mean something else.
            own = KEYS["names"]["request"]["prompt"]
            return {name: value for name, value in row.items() if name not in own}
        return row

    @model_validator(mode="after")
    def _check(self) -> RequestLine:
        if self.prompt is None and self.messages is None and self.input_tokens is None:
            raise ValueError("neither text nor input_tokens")
        return self

    @property
    def request(self) -> FileRequest:
        """Return the request; its answer's length is 0 where the file has the answer, or nothing of
        it."""
        content: Any = self.prompt
        answer = self.answer if isinstance(self.answer, str) else ""
        if self.messages is not None:
            content = [message.model_dump() for message in self.messages]
            if self.output_tokens is None and content[-1]["role"] == "assistant":
                answer = "".join(spoken([content.pop()]))
        elif self.system and isinstance(content, str):
            parts = {"system": self.system, "user": content}
            content = [{"role": role, "content": text} for role, text in parts.items()]
        if self.tools and isinstance(content, list):
            content = {"messages": content, "tools": self.tools}
        stated = len(self.prompt) if isinstance(self.prompt, list) else self.input_tokens
        return FileRequest(content, stated, self.output_tokens or 0, answer=answer)


@dataclass
class Reading:
    """A file that is being read as one of the forms, and what of it is not sent."""

    path: Path
    form: Form
    output_len: int | None = None
    said: Said = field(default_factory=Counter)

    def refused(self, number: int | None, problem: str, row: Any = None) -> BadInput:
        """Return the error of a row, with the right way to write it; for a row of another form that
        form."""
        forms = KEYS["forms"]
        right = f"write {forms[self.form]['write']}"
        if isinstance(row, dict):
            fit = [n for n, one in forms.items() if any(row.keys() >= {*k} for k in one["has"])]
            if fit and self.form not in fit:
                right = f"such rows are read as {fit[0]}:{self.path}"
        return MalformedFile(self.path, f"{problem}; {right}", number)

    def rows(self) -> Iterator[tuple[int, Any]]:
        """Yield the requests (or sessions) of a file, without what wraps them, with the numbers of
        its rows."""
        with self.path.open(encoding="utf-8-sig") as file:
            first = file.read(99).lstrip() or "{}"
            if first[0] == "{":
                first = (first if "\n" in first else first + file.readline()).partition("\n")[0]
        found: Iterable[tuple[int, Any]] = self._cells()
        if first[0] == "[" or (first[0] == "{" and first.rstrip()[-1] != "}"):
            whole = self._parsed(self.path.read_bytes().decode("utf-8-sig"), None)
            found = enumerate(whole if isinstance(whole, list) else [whole], start=1)
        elif first[0] == "{" or self.form == "sharegpt":
            found = self._lines()
        for number, row in found:
            for one in self._unwrapped(number, row):
                yield number, one

    def _parsed(self, text: str, number: int | None) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = "not JSON" if number else f"not JSON or cut off ({error})"
            raise self.refused(number, problem) from None

    def _lines(self) -> Iterator[tuple[int, Any]]:
        # JSON text may hold other separators than line feeds.
        with self.path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, self._parsed(line, number)

    def _cells(self) -> Iterator[tuple[int, _Cells]]:
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            try:
                for row in table:
                    if None in row or None in row.values():
                        raise self.refused(table.line_num, "more or fewer cells than its header")
                    cells = ((name.strip(), cell.strip()) for name, cell in row.items())
                    yield table.line_num, _Cells(one for one in cells if one[1])
            except csv.Error as error:
                raise self.refused(table.line_num, f"no table ({error})") from error

    def _unwrapped(self, number: int, row: Any) -> list[Any]:
        if not isinstance(row, dict):
            return [row]
        for key in filter(row.__contains__, KEYS["wrappers"]):
            inner = [row[key]] if isinstance(row[key], dict) else row[key]
            if isinstance(inner, list) and inner and all(isinstance(one, dict) for one in inner):
                url = str(row.get("url", "completions"))
                if not url.endswith(tuple(KEYS["generating"])):
                    raise MalformedFile(self.path, f"{url} does not answer with text", number)
                around = {name: value for name, value in row.items() if name not in (key, "url")}
                return [one for part in inner for one in self._unwrapped(number, around | part)]
        return [row]

    def checked(self, number: int, row: Any, form: type[_AnyLine], where: str = "") -> _AnyLine:
        """Read a row; raises `MalformedFile`, whose message names the right form."""
        lax = isinstance(row, _Cells)
        try:
            return form.model_validate(row, strict=not lax, context=self.said)
        except ValidationError as error:
            raise self.refused(number, problem_of(error, where), row) from None

    def request(self, number: int, line: RequestLine, where: str = "") -> FileRequest | None:
        """Return a row's request; None, and counted, for one without text.

        Raises `MalformedFile`: the length of its answer is not known.
        """
        one = line.request._replace(line=number)
        if one.stated_tokens is None and not spoken(one.content):
            self.said["requests without text not sent"] += 1
            return None
        if one.output_tokens or one.answer:
            return one
        tokens = self.output_len
        if line.output_tokens == 0:
            self.said["answers of 0 tokens that count as 1"] += 1
            tokens = 1
        if tokens is None:
            problem = "the length of its answer is missing: give it by --output-len N, or write output_tokens"
            raise MalformedFile(self.path, f"{where}: {problem}" if where else problem, number)
        return one._replace(output_tokens=tokens)

    def ended(self, found: Sequence[_Item]) -> Read[_Item]:
        """Return what was found; raises `MalformedFile` for nothing."""
        if not found:
            raise self.refused(1, "holds no request")
        return Read(found, self.said)


def problem_of(error: ValidationError, where: str = "") -> str:
    """Describe the first problem of a row, with its place within `where`."""
    first = error.errors()[0]
    problem = first["msg"].removeprefix("Value error, ")
    problem = {"json_invalid": "not JSON", "model_type": "not an object"}.get(
        first["type"], problem
    )
    # Entries of lists count from 1; names of the members of a union are left out.
    parts = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    named = [where, *(part for part in parts if re.fullmatch(r"(?!str$)[\w ]+", part))]
    return ": ".join(filter(None, (".".join(filter(None, named)), problem)))


def parsed_line(path: Path, number: int, line: str, form: type[_AnyLine], right: str) -> _AnyLine:
    """Read the JSON object on a line; raises `MalformedFile`, whose message ends with the expected
    form (`right`)."""
    try:
        return form.model_validate_json(line)
    except ValidationError as error:
        raise MalformedFile(path, f"{problem_of(error)}; write {right}", number) from None


class Read(NamedTuple, Generic[_Item]):
    """Requests or sessions of a file, in its order, and what of it is not sent."""

    rows: Sequence[_Item]
    said: Said


@kept
def read_requests(path: Path, output_len: int | None = None) -> Read[FileRequest]:
    """Read a ``jsonl:`` file; raises `BadInput`, `MalformedFile` for a row of another form.

    Args:
        output_len: the length of answers that the file lacks.
    """
    reading = Reading(path, "jsonl", output_len)
    found = [reading.request(n, reading.checked(n, row, RequestLine)) for n, row in reading.rows()]
    return reading.ended([one for one in found if one is not None])


@kept
def conversations(path: Path, output_len: int | None = None) -> Read[tuple[str, str]]:
    """Read the first two turns of the conversations of a ShareGPT file, in its order.

    Turns may have ``from`` and ``value`` or ``role`` and ``content``, or be texts; a leading system
    turn is left out. The usual file, ShareGPT_V3_unfiltered_cleaned_split.json, is 640 MB with
    94,000 conversations; only the first two turns are kept.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: it is not JSON, or holds no
    conversation.
    """
    pairs: list[tuple[str, str]] = []
    reading = Reading(path, "sharegpt")
    said = reading.said
    count = 0
    row: Any = None
    for _, row in reading.rows():
        count += 1
        line: Json = row if isinstance(row, dict) else {}
        turns = next((line[key] for key in KEYS["conversations"] if key in line), None)
        _count_media(line, said)
        if not isinstance(turns, list):
            turns = [None]
        elif turns and _is_system(turns[0]):
            turns = turns[1:]
            said["system turns left out, which vLLM's and SGLang's scripts send as prompts"] += 1
        texts = [_text(turn) for turn in turns[:2]]
        if set(map(type, texts)) - {str}:
            said["rows that are no conversation"] += 1
        elif len(texts) == 2 or (texts and output_len):
            pairs.append((texts[0], texts[1] if len(texts) == 2 else ""))
        else:
            said["rows without an answer"] += 1
    if not pairs:
        problem = f"none of its {count} rows is a conversation of two turns"
        raise reading.refused(None, problem, row)
    return Read(pairs, said)


def _is_system(turn: Any) -> bool:
    return isinstance(turn, dict) and "system" in (turn.get("from"), turn.get("role"))


def _text(turn: Any) -> Any:
    if isinstance(turn, dict):
        return turn["value"] if "value" in turn else turn.get("content", turn.get("text"))
    return turn


def held_at_once(path: Path, most: int, output_len: int | None) -> int | None:
    """Return how many conversations of a file of moderate size pass the filter, by the
    approximation, up to `most`; None for a big one, which is read on use.

    Raises `BadInput`: the file is not readable.
    """
    with _readable(path), path.open(encoding="utf-8-sig") as file:
        file.read(1)
        if path.stat().st_size > _MODERATE_BYTES:
            return None
    pairs = conversations(path, output_len).rows
    return sum(1 for _ in islice(passing(pairs, Approximate(), output_len), most))


def passing(
    pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, output_len: int | None = None
) -> Iterator[FileRequest]:
    """Yield the requests that pass vLLM's filter, in their order; no more is tokenized than must
    be."""
    for prompt, answer in pairs:
        read = tokenizer.count(prompt)
        if FEWEST_TOKENS <= read <= MOST_INPUT_TOKENS:
            written = tokenizer.count(answer) if answer else output_len or 0
            if written >= FEWEST_TOKENS and read + written <= MOST_TOTAL_TOKENS:
                yield FileRequest(prompt, read, written)


def sample(
    path: Path,
    prompts: int,
    generator: Generator,
    tokenizer: Tokenizer,
    half: Half | None = None,
    output_len: int | None = None,
) -> list[FileRequest]:
    """Choose the first ones, in an order drawn by `generator`, that pass vLLM's filter; `half` as
    in `half_of`.

    The first turn is the prompt, and the second turn's length that of the answer. A file with fewer
    is refused: vLLM would send some twice, and the second time would come out of the prefix cache.

    Raises `BadInput`: the file cannot be read, or holds fewer.
    """
    pairs = half_of(conversations(path, output_len).rows, half)
    order = (pairs[position] for position in generator.permutation(len(pairs)).tolist())
    chosen = list(islice(passing(order, tokenizer, output_len), prompts))
    if len(chosen) == prompts:
        return chosen
    raise BadInput(
        f"{prompts} prompts are requested, but only {len(chosen)} of the {len(pairs)} conversations of {path} "
        f"pass vLLM's filter ({FEWEST_TOKENS} tokens or more each way, a prompt of at most {MOST_INPUT_TOKENS}, "
        f"{MOST_TOTAL_TOKENS} together): ask for fewer with sharegpt:{path}:N"
    )


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
            turn.input_tokens(tokenizer) + turn.written(tokenizer) for turn in self.turns
        )


class _Turn(RequestLine):
    model_config = row_config("turn")
    messages: None = None
    think_s: Annotated[float, Field(ge=0, le=_MOST_THINK_S, allow_inf_nan=False)] | None = None
    delay_ms: Annotated[float, Field(ge=0, le=1e3 * _MOST_THINK_S, allow_inf_nan=False)] = 0


class _SessionLine(BaseModel):
    model_config = row_config("session")
    turns: Annotated[list[Any], Field(min_length=1)] | None = None
    system: str | None = None
    tools: list[Any] | None = None


@kept
def read_sessions(path: Path, output_len: int | None = None) -> Read[Session]:
    """Read the sessions of a file: one a row, or turns a row with the session's id.

    A line without turns gives the system prompt and the tools of all sessions below it that have
    none of their own; a leading turn of the system gives a session's prompt.

    Args:
        output_len: the length of answers that the file lacks.

    Raises `BadInput`: the file cannot be read; `MalformedFile`: a line is no session, or there is
    none.
    """
    reading = Reading(path, "sessions", output_len)
    sessions: dict[object, Session] = {}
    shared = _SessionLine()
    for number, row in reading.rows():
        line = shared
        turns: Sequence[Any] = [row]
        if (key := session_of(row)) is None:
            line = reading.checked(number, row, _SessionLine)
            if not line.model_fields_set:
                raise reading.refused(number, "no session", row)
            line = shared.model_copy(update={n: own for n, own in line if own is not None})
            if line.turns is None:
                shared = line
                continue
            turns = line.turns
            key = (number, len(sessions))
        found = sessions.get(key, Session((), line.system or "", line.tools or [], number))
        for place, turn in enumerate(turns, start=1):
            found = _with_turn(found, reading, number, turn, f"turns.{place}")
        sessions[key] = found
    return reading.ended([session for session in sessions.values() if session.turns])


def _with_turn(session: Session, reading: Reading, number: int, turn: Any, where: str) -> Session:
    if isinstance(turn, dict):
        if turn.get("role") == "system":
            return session._replace(system=str(turn.get("text") or ""))
        if turn.get("timestamp") is not None:
            reading.said["turns whose time is left out: they wait for the answer before them"] += 1
    line = reading.checked(number, {"user": turn} if isinstance(turn, str) else turn, _Turn, where)
    one = reading.request(number, line, where)
    if one is None:
        return session
    think_s = line.delay_ms / 1e3 if line.think_s is None else line.think_s
    return session._replace(turns=(*session.turns, one._replace(think_s=think_s)))


def session_of(row: Any) -> object:
    """Return the id of the session of which a row is a turn; None for another row."""
    if not isinstance(row, dict) or "turns" in row:
        return None
    return next((row[name] for name in KEYS["session"] if row.get(name) is not None), None)
