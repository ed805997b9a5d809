"""Sessions: ``sessions:FILE`` holds conversations of several turns, one JSON object per line.

The form is that of AIPerf's multi-turn input (https://docs.nvidia.com/aiperf, *Multi-Turn Conversations*):
``{"session_id": …, "turns": [{"text": …, "delay": ms}, …]}``, with a length for every answer, and with what AIPerf has
options for: turns of random text, a system prompt, tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.tokenizers import Tokenizer
from autotune.loadgen.workloads.prompt_files import file_version, is_text, json_object

_TURN_FORM = '{"user": "text", "output_tokens": N, "think_s": S} or {"input_tokens": N, "output_tokens": N}'
_FORM = f'{{"turns": [{_TURN_FORM}, …], "system": "text", "tools": […]}}'

_MOST = 2**31
_MOST_THINK_S = 86400.0


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
        """What stands before the first turn: tools and system prompt, in the order in which chat templates put them."""
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
        raise MalformedFile(path, f"holds no session, one JSON object per line: {_FORM}", 1)
    return sessions


def _sessions(path: Path, text: str) -> Iterator[Session]:
    system, tools = "", list[Any]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = json_object(path, number, line, f"write {_FORM}")
        if not row.keys() & {"turns", "system", "tools"}:
            raise MalformedFile(path, f"no session; write {_FORM}", number)
        its_system, its_tools = row.get("system", system), row.get("tools", tools)
        if not is_text(its_system) or not isinstance(its_tools, list):
            raise MalformedFile(path, "system must be text and tools a list, as of OpenAI's API", number)
        if "turns" not in row:
            system, tools = its_system, its_tools
            continue
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise MalformedFile(path, f"turns must be a list of at least one; write {_FORM}", number)
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
    return value if 0 < value < _MOST else 0


def _seconds(think_s: object, delay_ms: object) -> float | None:
    """The time in which a user thinks, by the one or the other; None for what is none."""
    value, unit = (delay_ms, 1e-3) if think_s is None else (think_s, 1.0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST_THINK_S / unit:
        return None
    return value * unit
