"""A task file: one JSON object per line with what is asked, the known answer, and how the two are compared.

    {"prompt": "17 + 25 =", "answer": "42", "match": "number"}

The score is the share of right answers, in percent. Two servers answer the same items, so their difference is judged
item by item: its interval is that of Agresti and Min for paired proportions (Stat. in Medicine 24, 2005), which holds
its 95 % where few items differ, as they do here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.workloads.prompt_files import json_object

WORST_DROP = -1.0
"""Points: a drop fails whose interval lies below it."""
_FORM = '{"prompt": "17 + 25 =", "answer": "42", "match": "number"}'
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_NORMAL_95 = 1.959963984540054
Interval = tuple[float, float]


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    role: Literal["system", "user", "assistant"]
    content: str


class Task(BaseModel):
    """One item of a task file; exactly one of prompt and messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    answer: str | int | float
    match: Literal["exact", "number", "contains"]
    max_tokens: int = Field(default=256, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Task:
        if (self.prompt is None) is (self.messages is None):
            raise ValueError("exactly one of prompt and messages is needed")
        if self.match == "number" and number_in(str(self.answer)) is None:
            raise ValueError(f"match is number, but the answer {self.answer!r} holds none")
        if self.match != "number" and not (isinstance(self.answer, str) and self.answer.strip()):
            raise ValueError(f"match is {self.match}, so the answer must be a text that is not empty")
        return self

    @property
    def body(self) -> dict[str, Any]:
        """Return the body of the request."""
        if self.messages is not None:
            return {"messages": [one.model_dump() for one in self.messages], "max_tokens": self.max_tokens}
        return {"prompt": self.prompt, "max_tokens": self.max_tokens}

    @property
    def question(self) -> str:
        """The prompt, as one text."""
        return self.prompt if self.prompt is not None else "\n".join(one.content for one in self.messages or ())

    def is_right(self, text: str) -> bool:
        """Return whether an answer is right; of its numbers the last one counts."""
        if self.match == "number":
            return number_in(text) == number_in(str(self.answer))
        right = str(self.answer).strip()
        return right in text if self.match == "contains" else text.strip() == right


def number_in(text: str) -> float | None:
    """The last number of a text, without its thousands separators."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def read_tasks(path: Path) -> list[Task]:
    """Read a task file; raises `BadInput` that names the line and what would be right."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # Other line breaks may stand within JSON texts.
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--accuracy {path}: cannot be read ({error}); give a file of lines like {_FORM}") from None
    tasks = [_task(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not tasks:
        raise BadInput(f"--accuracy {path}: holds no task; write lines like {_FORM}")
    return tasks


def _task(path: Path, number: int, line: str) -> Task:
    row = json_object(path, number, line, f"write a line like {_FORM}")
    try:
        return Task.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("str", "int", "float"))
        problem = f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}"
    raise MalformedFile(path, f"{problem}; write a line like {_FORM}", number)


def score(marks: Sequence[bool]) -> tuple[float, Interval]:
    """The share of right answers in percent, with its 95 % interval (Wilson)."""
    from scipy.stats import binomtest  # a second to import

    interval = binomtest(sum(marks), len(marks)).proportion_ci(0.95, method="wilson")
    return 100 * sum(marks) / len(marks), (100 * float(interval.low), 100 * float(interval.high))


def paired_difference(before: Sequence[bool], after: Sequence[bool]) -> Interval:
    """The 95 % interval of the difference of two scores of the same items, in points."""
    lost = sum(one and not other for one, other in zip(before, after, strict=True)) + 0.5
    won = sum(other and not one for one, other in zip(before, after, strict=True)) + 0.5
    count = len(before) + 2
    middle = (won - lost) / count
    half = _NORMAL_95 * math.sqrt(lost + won - (won - lost) ** 2 / count) / count
    return 100 * (middle - half), 100 * (middle + half)
