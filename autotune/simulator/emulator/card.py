"""Dialect of an engine's server, as seen from outside: ``search_spaces/<engine>/emulator.yaml``.

Log lines are templates: ``{name}`` is replaced by a figure of the launch, such as ``{model}``, ``{pid}`` or ``{port}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar

from pydantic import Field

from autotune.errors import UnknownName
from autotune.space.entry import Entry, VersionRange, in_range, spaces_root
from autotune.space.expression import Expression, fill_value
from autotune.space.library import documents, load, packaged

_HOLE = re.compile(r"\{(\w+)\}")


class Rewording(Entry):
    """Wording of the engine's own parser for what `argparse` words as `pattern`; ``\\1`` stands for a group."""

    pattern: str
    say: str


class Refusal(Entry):
    exit_code: int
    usage: list[str] = []
    rewordings: list[Rewording] = Field(description="the first whose pattern matches counts")


class StartupPhase(Entry):
    """A part of the start-up: its lines are spread over its share of the time."""

    share: float = Field(ge=0, description="of the start-up's time")
    when: Expression = Field(default="True", description="of model and knobs; where false, it says nothing")
    lines: list[str] = []
    shard: str | None = Field(default=None, description="progress line, once per shard of the checkpoint")


class Crash(Entry):
    """The log of a server that dies: lines around the telling one."""

    exit_code: int
    before: list[str] = []
    telling: str = Field(default="{message}", description="how the telling line stands in the log")
    after: list[str] = []


class Refused(Entry):
    """A configuration that fails at start, which no rule and no arithmetic of ours knows."""

    name: str
    when: Expression
    log: str
    reason: str
    versions: VersionRange = "*"
    source: str


class MetricLine(Entry):
    """One metric of the engine's Prometheus page; `value` names one of `LiveEngine.figures` or `rank_figures`."""

    name: str
    kind: Literal["gauge", "counter"]
    value: str
    help: str
    per_rank: bool = Field(default=True, description="a row for each data-parallel rank, where the figure has them")
    absent_at_zero: bool = Field(default=False, description="the page has it from its first increment on")
    versions: VersionRange = "*"


class ResetAnswer(Entry):
    """Answer to the cache's reset; of a list the first of the version counts."""

    done: str = ""
    refused: str = Field(default="", description="while requests run")
    refused_status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    versions: VersionRange = "*"


class CachedTokensReport(Entry):
    """When an answer's usage tells its cached tokens; of a list the first of the version counts."""

    option: str | None = Field(default=None, description="option without which it does not; None: it always does")
    unless_zero: bool = Field(default=False, description="not where there are none")
    versions: VersionRange = "*"


_Versioned = TypeVar("_Versioned", ResetAnswer, CachedTokensReport)


class HttpDialect(Entry):
    """Form of the HTTP interface of an engine."""

    owner: str = Field(description="`owned_by` of the model list")
    error_nested: bool = Field(description="whether an error's fields stand under the key `error`")
    checks_model: bool = Field(description="whether a request for another model is answered with 404")
    choice: dict[str, Any] = Field(description="further keys of a streamed choice")
    chunk: dict[str, Any] = Field(description="further keys of a streamed chunk")
    too_long: str = Field(description="message for a request beyond the context")
    too_long_for_step: str | None = Field(default=None, description="for a prompt that no step can compute whole")
    unknown_model: str
    completion_tokens: int | None = Field(description="answer's length on /v1/completions if not asked for")
    routes: dict[str, str] = Field(description="path to what answers it: health, version, info, metrics, reset …")
    arguments: dict[str, Any] = Field(default={}, description="what it tells of its resolved arguments, of templates")
    tells_options: bool = Field(default=False, description="whether every option stands beside these, as it was parsed")
    metrics_option: str | None = Field(default=None, description="option or key without which there are no metrics")
    reset_variable: str | None = Field(default=None, description="variable without which there is no reset")
    arguments_variable: str | None = Field(default=None, description="variable without which no arguments are told")
    reset: list[ResetAnswer] = []
    cached_tokens: list[CachedTokensReport] = []


class EmulationCard(Entry):
    """A document of ``search_spaces/<engine>/emulator.yaml``."""

    engine: str
    stream: Literal["stdout", "stderr"] = Field(description="where the log goes; progress bars go to stderr")
    shard_gb: float = Field(gt=0, description="size of a checkpoint's file")
    block_tokens: Expression = Field(description="tokens per block of the prefix cache; of model and knobs")
    refusal: Refusal
    startup: list[StartupPhase]
    ready: list[str]
    crash: Crash
    port_taken: str
    stopping: list[str] = []
    stop_signal: bool = Field(description="ends by SIGTERM itself (143) instead of exit code 0")
    api: HttpDialect
    labels: str = Field(description="labels of every metric")
    rank_labels: str = Field(default="", description="labels of a row of one of several data-parallel ranks")
    metrics: list[MetricLine]
    refuses: list[Refused] = []
    facts: dict[str, Expression] = Field(default={}, description="further figures of log lines, of knobs and model")
    source: str


@lru_cache(maxsize=16)
def emulation_card(engine: str) -> EmulationCard:
    """Return the packaged card of an engine; raises `UnknownName` when there is none."""
    path = packaged("emulation", engine)
    if not path.is_file():
        hint = f"Its dialect would stand in {path}; a real server is launched with --on process."
        raise UnknownName("engine for emulation", engine, dict(documents(spaces_root(), "emulation")), hint)
    return load(path, EmulationCard)


def of_version(entries: Iterable[_Versioned], version: str) -> _Versioned | None:
    return next((entry for entry in entries if in_range(version, entry.versions)), None)


def filled(template: str, facts: Mapping[str, object]) -> str:
    """Fill a template's holes; a name that is no fact stays as it is (log lines may hold braces)."""
    return _HOLE.sub(lambda match: str(facts.get(match[1], match[0])), template)


def filled_tree(tree: Any, scope: Mapping[str, Any]) -> Any:
    """Fill the templates of a document; one that is a single hole keeps its value's type."""
    if isinstance(tree, dict):
        return {name: filled_tree(value, scope) for name, value in tree.items()}
    return fill_value(tree, scope)
