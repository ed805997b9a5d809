"""Lengths of prompts and answers: fixed, a table of quantiles, those of a file with its text, or of
a trace."""

from __future__ import annotations

import platform
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from pydantic import Field, PositiveInt, model_validator

from autotune.base import BadInput, MalformedFile, Strings
from autotune.base.arrays import Floats, Ints
from autotune.engines import Entry

from ..requests import Content, Turns
from ..tokenizers import Approximate, Tokenizer
from .prompt_files import (
    MOST_TOTAL_TOKENS,
    FileRequest,
    Half,
    Read,
    Session,
    conversations,
    half_of,
    read_requests,
    read_sessions,
    sample,
)
from .traces import Trace, read_trace

TextKind = Literal["prose", "code"]

_CHARACTERS_PER_TOKEN = {"prose": 4.0, "code": 3.2}
"""Approximate characters per token of common tokenizers: the text taken for a requested token."""

_DOCUMENTATION = re.compile(r'"""(.*?)"""', re.DOTALL)
_LEAST_DOCUMENTATION = 400  # Least characters of a documentation string that counts as prose


def passages(
    kind: TextKind,
    tokens: int,
    count: int,
    generator: Generator,
    half: Half | None = None,
) -> list[str]:
    """Choose passages of about this number of tokens from lines' starts; raises `BadInput` for too
    little text."""
    size = int(tokens * _CHARACTERS_PER_TOKEN[kind])
    texts = documents(kind)
    ends = enumerate(len(text) - size for text in texts)
    places = half_of(
        [(number, start) for number, end in ends for start in range(0, end, size)], half
    )
    if len(places) < count:
        raise BadInput(
            f"{count} prompts of {tokens} tokens are requested, but Python's {kind} has {len(places)}"
        )
    chosen = []
    for number, start in (places[place] for place in generator.permutation(len(places))[:count]):
        line = texts[number].find("\n", start, start + size // 2) + 1 if start else 0
        chosen.append(texts[number][max(line, start) : start + size].strip("\n"))
    return chosen


@lru_cache(maxsize=2)
def documents(kind: TextKind) -> Strings:
    """Return the texts of the passages, in a fixed order: this Python's documentation or its code.

    Speculative decoding lives on text that can be guessed, which random tokens are not. These are
    under the PSF licence, which lets them be redistributed; one Python version always gives the
    same text.

    Raises `BadInput`: this Python was installed without them.
    """
    texts = tuple(_prose() if kind == "prose" else _sources())
    if not texts:
        raise BadInput(
            f"this Python was installed without the {kind} of its standard library; use another workload"
        )
    return texts


def _prose() -> Iterator[str]:
    with suppress(ImportError):
        from pydoc_data.topics import topics

        yield from (topics[name] for name in sorted(topics))
    for source in _sources():
        strings = (text.strip() for text in _DOCUMENTATION.findall(source))
        yield "\n\n".join(text for text in strings if len(text) >= _LEAST_DOCUMENTATION)


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield path.read_text(encoding="utf-8")


class Drawn(NamedTuple):
    """Sample of one load point; arrays of shape (prompts,).

    Attributes:
        contents: of the prompts, None where it is random; empty = all random.
        send_s: times of a trace, seconds after the first request, shape (prompts,); None for other
            requests.
    """

    input_tokens: Ints
    output_tokens: Ints
    contents: Sequence[Content | None] = ()
    send_s: Floats | None = None
    blocks: Sequence[tuple[int, ...] | None] = ()
    block_tokens: int = 0
    turns: Turns | None = None


class Limited(Entry):
    """Requests from an external source with a limited number; a study may send one half of them."""

    half: Half | None = None

    @property
    def held(self) -> int | None:
        """Number of its requests; None where only drawing shows it."""
        return None

    @property
    def has_text(self) -> bool:
        """True if its prompts are text, whose tokens must be counted."""
        return True


class OfFile(Limited):
    """Requests of a user's file.

    Attributes:
        output_len: the length of the answers for which the file has none.
    """

    file: str
    output_len: PositiveInt | None = None

    @property
    def read(self) -> Any:
        """Read the file, and count what of it is not sent."""
        raise NotImplementedError

    @property
    def named(self) -> str:
        """Return the file's name, with what is left out of it."""
        said = "; ".join(f"{count} {what}" for what, count in self.read.said.items())
        return f"{self.file} ({said})" if said else self.file

    def totals(self) -> Iterator[tuple[int, int]]:
        """Yield tokens of prompt and answer, and the line, of each request (or session); none where
        only drawing shows them."""
        return iter(())

    @property
    def longest(self) -> int:
        return max(tokens for tokens, _ in self.totals())

    def check_fits(self, context: int) -> None:
        """Raise `BadInput` for a request that is longer than a context, with its line."""
        for tokens, line in self.totals():
            if tokens > context:
                problem = f"{tokens} tokens of prompt and answer exceed the model's context of {context}; remove the line"
                raise MalformedFile(self.file, problem, line)


class FixedLengths(Entry):
    """Random tokens: all prompts and all answers have the same length."""

    kind: Literal["fixed"] = "fixed"
    input_tokens: PositiveInt
    output_tokens: PositiveInt

    @property
    def longest(self) -> int:
        return self.input_tokens + self.output_tokens

    def draw(self, prompts: int, _generator: Generator, _tokenizer: Tokenizer) -> Drawn:
        return Drawn(np.full(prompts, self.input_tokens), np.full(prompts, self.output_tokens))

    def source(self, _tokenizer: Tokenizer) -> str:
        return "random tokens of fixed length"


class TableLengths(Entry):
    """A distribution as a table of quantiles, linear in between.

    Each draw takes one value from every of n equal slices of the distribution, in random order: a
    seed gives new prompts, but the sums hardly move, so that two seeds differ less than two
    configurations.
    """

    kind: Literal["quantiles"]
    stand_in_for: str | None = Field(
        default=None, description="the dataset whose lengths these are"
    )
    input_quantiles: dict[float, float] = Field(description="quantile in 0..1 to tokens")
    output_quantiles: dict[float, float]
    total_limit: int = Field(gt=1, description="input + output; the output is cut to fit")

    @model_validator(mode="after")
    def _check(self) -> TableLengths:
        for name, table in (("input", self.input_quantiles), ("output", self.output_quantiles)):
            points = list(table)
            lengths = list(table.values())
            whole = points[:1] == [0.0] and points[-1:] == [1.0]
            if not whole or points != sorted(points) or lengths != sorted(lengths):
                raise ValueError(
                    f"{name}_quantiles must run from 0 to 1 with lengths that do not fall"
                )
        return self

    @property
    def longest(self) -> int:
        return min(self.total_limit, int(self.input_quantiles[1.0] + self.output_quantiles[1.0]))

    def draw(self, prompts: int, generator: Generator, _tokenizer: Tokenizer) -> Drawn:
        read = _stratified(self.input_quantiles, prompts, generator).clip(1, self.total_limit - 1)
        written = _stratified(self.output_quantiles, prompts, generator)
        return Drawn(read, np.minimum(written, self.total_limit - read).clip(1))

    def source(self, _tokenizer: Tokenizer) -> str:
        if self.stand_in_for is None:
            return "random tokens with the lengths of a table of quantiles"
        return f"stand-in with {self.stand_in_for}'s length statistics (no dataset file given)"


class ShareGPTLengths(OfFile):
    """Conversations of a ShareGPT file, see `sample`."""

    kind: Literal["sharegpt"]

    @property
    def read(self) -> Read[tuple[str, str]]:
        return conversations(Path(self.file), self.output_len)

    @property
    def longest(self) -> int:
        return MOST_TOTAL_TOKENS

    def draw(self, prompts: int, generator: Generator, tokenizer: Tokenizer) -> Drawn:
        """Draw other conversations for each state of the generator; raises `BadInput` if the file
        holds too few."""
        path = Path(self.file)
        rows = sample(path, prompts, generator, tokenizer, self.half, self.output_len)
        return _drawn(rows, tokenizer)

    def source(self, tokenizer: Tokenizer) -> str:
        """Describe the source of the lengths, for a report."""
        return f"{self.named}, {_counted(tokenizer)}"


class _RequestLengths(OfFile):
    """Requests from the top of a file, in order, for every seed."""

    @property
    def rows(self) -> Sequence[FileRequest]:
        """Return the requests."""
        return half_of(self.read.rows, self.half)

    @property
    def held(self) -> int:
        return len(self.rows)

    @property
    def has_text(self) -> bool:
        return any(row.content is not None for row in self.rows)

    def totals(self) -> Iterator[tuple[int, int]]:
        by = Approximate()
        return ((row.input_tokens(by) + row.written(by), row.line) for row in self.rows)

    def draw(self, prompts: int, _generator: Generator, tokenizer: Tokenizer) -> Drawn:
        """Draw the requests; raises `BadInput` if the file holds too few: repeats would come from
        the prefix cache."""
        rows = self.rows
        if len(rows) < prompts:
            raise BadInput(
                f"{self.file} holds {len(rows)} requests, but {prompts} prompts are requested"
            )
        return _drawn(rows[:prompts], tokenizer)


class FileLengths(_RequestLengths):
    """A user's file, see `read_requests`."""

    kind: Literal["jsonl"]

    @property
    def read(self) -> Read[FileRequest]:
        return read_requests(Path(self.file), self.output_len)

    def source(self, tokenizer: Tokenizer) -> str:
        counted = any(row.stated_tokens is None or row.answer for row in self.rows)
        return f"{self.named}, {_counted(tokenizer) if counted else 'which gives the lengths'}"


class TraceLengths(_RequestLengths):
    """The requests of a trace, see `read_trace`. Halves are of time."""

    kind: Literal["trace"]
    unit: Literal["", "s", "ms"] = ""

    @property
    def read(self) -> Trace:
        return read_trace(Path(self.file), self.output_len, self.unit)

    @property
    def trace(self) -> Trace:
        return self.read.part(self.half)

    @property
    def rows(self) -> Sequence[FileRequest]:
        return self.trace.rows

    def draw(self, prompts: int, generator: Generator, tokenizer: Tokenizer) -> Drawn:
        drawn = super().draw(prompts, generator, tokenizer)
        trace = self.trace
        blocks = [row.blocks or None for row in trace.rows[:prompts]]
        return drawn._replace(
            send_s=trace.send_s[:prompts],
            blocks=blocks if any(blocks) else (),
            block_tokens=trace.block_tokens,
        )

    def source(self, tokenizer: Tokenizer) -> str:
        trace = self.trace
        shared = (
            f"and shared prefixes (blocks of {trace.block_tokens} tokens)"
            if any(row.blocks for row in trace.rows)
            else "without shared prefixes (not recorded)"
        )
        made = _counted(tokenizer) if self.has_text else "made of random tokens"
        return f"lengths of the trace {self.named} {shared}, {made}"


class LibraryTextLengths(Limited):
    """Real prose or code that every Python includes, see `passages`: of about this number of
    tokens."""

    kind: Literal["library_text"]
    text: TextKind
    input_tokens: PositiveInt
    output_tokens: PositiveInt

    @property
    def longest(self) -> int:
        """Return the longest length, with a margin for tokenizers that use more tokens."""
        return self.input_tokens * 3 // 2 + self.output_tokens

    def draw(self, prompts: int, generator: Generator, tokenizer: Tokenizer) -> Drawn:
        """Draw other passages for each state of the generator; raises `BadInput` if there are too
        few."""
        texts = passages(self.text, self.input_tokens, prompts, generator, self.half)
        read = np.array([max(tokenizer.count(text), 1) for text in texts])
        return Drawn(read, np.full(prompts, self.output_tokens), texts)

    def source(self, tokenizer: Tokenizer) -> str:
        source = "documentation" if self.text == "prose" else "standard library"
        python = f"Python {platform.python_version()}"
        return f"{self.text} of the {source} of {python}, {_counted(tokenizer)}"


class SessionLengths(OfFile):
    """The conversations of a file, see `read_sessions`: all of them, in order, for every seed."""

    kind: Literal["sessions"]

    @property
    def read(self) -> Read[Session]:
        return read_sessions(Path(self.file), self.output_len)

    def totals(self) -> Iterator[tuple[int, int]]:
        return ((session.longest(Approximate()), session.line) for session in self.sessions)

    @property
    def sessions(self) -> Sequence[Session]:
        return half_of(self.read.rows, self.half)

    @property
    def held(self) -> int:
        """Number of turns of all sessions, which are all sent."""
        return sum(len(session.turns) for session in self.sessions)

    def draw(self, prompts: int, _generator: Generator, tokenizer: Tokenizer) -> Drawn:
        """Draw the turns; raises `BadInput` for another number than the file's: a session is sent
        to its end."""
        if prompts != self.held:
            raise BadInput(
                f"{self.file} holds {self.held} turns and sends all; prompts: {prompts} differs"
            )
        numbers: dict[tuple[str, str], int] = {}
        preambles = []
        systems: list[tuple[str, Sequence[object]]] = []
        rows: list[tuple[int, int, int, float, int, int, int]] = []
        contents = []
        for session in self.sessions:
            system = -1
            if session.preamble:
                key = (session.system, repr(session.tools))
                system = numbers.setdefault(key, len(numbers))
            if system == len(systems):
                systems.append((session.system, session.tools))
                preambles.append(max(tokenizer.count(session.preamble), 1))
            begin = preambles[system] if system >= 0 else 0
            history = begin
            for place, turn in enumerate(session.turns):
                own = turn.input_tokens(tokenizer)
                written = turn.written(tokenizer)
                after = len(rows) - 1 if place else -1
                rows.append((history + own, written, after, turn.think_s, own, system, begin))
                contents.append(turn.content)
                history += own + written
        reads, writes, afters, thinks_s, owns, numbered, begins = (
            np.array(column) for column in zip(*rows, strict=True)
        )
        turns = Turns(afters, thinks_s, owns, numbered, begins, systems)
        return Drawn(reads, writes, contents, turns=turns)

    def source(self, tokenizer: Tokenizer) -> str:
        texts = any(turn.content is not None for session in self.sessions for turn in session.turns)
        counted = f", {_counted(tokenizer)}" if texts else ", which gives the lengths"
        return f"{self.named}{counted}, with the received answers as history"


Lengths = Annotated[
    FixedLengths
    | TableLengths
    | ShareGPTLengths
    | FileLengths
    | LibraryTextLengths
    | TraceLengths
    | SessionLengths,
    Field(discriminator="kind"),
]


def _drawn(rows: Sequence[FileRequest], tokenizer: Tokenizer) -> Drawn:
    read = np.array([row.input_tokens(tokenizer) for row in rows])
    written = np.array([row.written(tokenizer) for row in rows])
    return Drawn(read, written, [row.content for row in rows])


def _counted(tokenizer: Tokenizer) -> str:
    return f"tokens {'counted by ' if tokenizer.exact else ''}{tokenizer.describe()}"


def _stratified(table: Mapping[float, float], count: int, generator: Generator) -> Ints:
    slices = (generator.permutation(count) + generator.random(count)) / count
    return np.rint(np.interp(slices, list(table), list(table.values()))).astype(np.int64)
