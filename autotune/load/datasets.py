"""Lengths of prompts and answers, drawn per seed.

Only lengths: what the text says does not matter to a node, except where prompts share a beginning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotune.errors import BadInput, MalformedFile

Tokens = NDArray[np.int64]
_CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for English text, used only where a file gives text without token counts."""


class Part(BaseModel):
    """A part of a workload's file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FixedLengths(Part):
    """Random tokens: every prompt and every answer has the same length."""

    kind: Literal["fixed"] = "fixed"
    input_tokens: int = Field(gt=0)
    output_tokens: int = Field(gt=0)

    @property
    def longest(self) -> int:
        return self.input_tokens + self.output_tokens

    def draw(self, prompts: int, generator: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Input and output tokens, each of shape (prompts,)."""
        del generator
        return np.full(prompts, self.input_tokens), np.full(prompts, self.output_tokens)


class TableLengths(Part):
    """A distribution as a table of quantiles, linear in between.

    Each draw takes one value from every of n equal slices of the distribution, in random order: a seed gives
    new prompts, but the sums hardly move, so that two seeds differ less than two configurations.
    """

    kind: Literal["quantiles"]
    input_quantiles: dict[float, float] = Field(description="quantile in 0..1 to tokens")
    output_quantiles: dict[float, float]
    total_limit: int = Field(gt=1, description="input + output; the output is cut to fit")

    @model_validator(mode="after")
    def _check(self) -> TableLengths:
        for name, table in (("input", self.input_quantiles), ("output", self.output_quantiles)):
            points, lengths = list(table), list(table.values())
            if points[:1] != [0.0] or points[-1:] != [1.0] or points != sorted(points) or lengths != sorted(lengths):
                raise ValueError(f"{name}_quantiles must run from 0 to 1 with lengths that do not fall")
        return self

    @property
    def longest(self) -> int:
        return min(self.total_limit, int(self.input_quantiles[1.0] + self.output_quantiles[1.0]))

    def draw(self, prompts: int, generator: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Input and output tokens, each of shape (prompts,)."""
        read = _stratified(self.input_quantiles, prompts, generator)
        written = _stratified(self.output_quantiles, prompts, generator)
        return read, np.minimum(written, self.total_limit - read)


class FileLengths(Part):
    """A JSON-lines file: per line ``input_tokens`` and ``output_tokens``, or ``prompt`` text with ``output_tokens``."""

    kind: Literal["jsonl"]
    file: str

    @property
    def longest(self) -> int:
        read, written = self._rows()
        return int((read + written).max())

    @property
    def rows(self) -> int:
        """How many requests the file holds."""
        return len(self._rows()[0])

    def draw(self, prompts: int, generator: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Input and output tokens, each of shape (prompts,): the file's own order, from the start again at its end."""
        del generator
        read, written = self._rows()
        return np.resize(read, prompts), np.resize(written, prompts)

    def texts(self, prompts: int) -> list[str | None]:
        """The prompts' own text where the file gives it, in the order of `draw`."""
        given = [text for _, _, text in self._lines()]
        return [given[i % len(given)] for i in range(prompts)]

    def _rows(self) -> tuple[Tokens, Tokens]:
        table = np.array([(read, written) for read, written, _ in self._lines()], dtype=np.int64)
        return table[:, 0], table[:, 1]

    def _lines(self) -> list[tuple[int, int, str | None]]:
        path = Path(self.file)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"workload file {path} cannot be read as UTF-8 text: {error}") from error
        requests = [_request(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        if not requests:
            raise MalformedFile(path, "holds no request; one JSON object per line is expected", 1)
        return requests


Lengths = Annotated[FixedLengths | TableLengths | FileLengths, Field(discriminator="kind")]


def _stratified(table: Mapping[float, float], count: int, generator: np.random.Generator) -> Tokens:
    slices = (generator.permutation(count) + generator.random(count)) / count
    return np.rint(np.interp(slices, list(table), list(table.values()))).astype(np.int64)


def _request(path: Path, number: int, line: str) -> tuple[int, int, str | None]:
    form = 'write {"input_tokens": N, "output_tokens": M} or {"prompt": "…", "output_tokens": M} with whole numbers > 0'
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise MalformedFile(path, f"not JSON; {form}", number) from error
    if not isinstance(row, dict):
        raise MalformedFile(path, f"not an object; {form}", number)
    prompt = row.get("prompt")
    guess = math.ceil(len(prompt) / _CHARACTERS_PER_TOKEN) if isinstance(prompt, str) else None
    read, written = row.get("input_tokens", guess), row.get("output_tokens")
    if type(read) is not int or type(written) is not int or min(read, written) < 1:
        raise MalformedFile(path, form, number)
    return read, written, prompt if isinstance(prompt, str) and prompt else None
