"""Turn an engine's command line into a server that may start, or the reason why it does not; the
server's dialect.

The dialect, as seen from outside, is ``search_spaces/<engine>/emulator.yaml``. Log lines are
templates: ``{name}`` is replaced by a figure of the launch, such as ``{model}``, ``{pid}`` or
``{port}``.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from pydantic import Field

from autotune.base import BadInput, Json, RefusedCommand, StringDict, Strings, UnknownName
from autotune.engines import (
    Context,
    Entry,
    Failure,
    FailureKind,
    HardwareCard,
    Library,
    ParsedCommand,
    command_of,
    engine,
    recognise,
)
from autotune.engines.entry import Versioned, first_for, spaces_root
from autotune.engines.expression import Expression, Namespace, evaluate, fill_value
from autotune.engines.library import documents, load, packaged
from autotune.engines.schema import Conditional, Readings, holding

from ..memory import MemoryPlan, plan_memory, start_failure, startup_s
from ..resolve_command import ResolvedCommand, resolve_command
from ..server import SimulatedServer

_HOLE = re.compile(r"\{(\w+)\}")


class Rewording(Entry):
    """The engine's wording for a message of `argparse` that matches `pattern`; ``\\1`` is a
    group."""

    pattern: str
    say: str
    exit_code: int | None = None
    """Exit code of a refusal behind the parser, printed without its usage."""


class Refusal(Entry):
    exit_code: int
    usage: list[str] = []
    rewordings: list[Rewording]
    """Tried in order; the first whose pattern matches is used."""


class StartupPhase(Conditional):
    """Part of the start-up: its lines are spread over its share of the time. Where its condition
    is false, it writes nothing."""

    name: str = ""
    share: float = Field(default=0, ge=0)
    """Share of the start-up's time."""
    lines: list[str] = []
    shard: str | None = None
    """Progress line, written once per shard of the checkpoint."""


class Crash(Conditional):
    """Log of a dying server: lines around the decisive one. The condition sees its `message`, and
    the failure's `kind`: of a fault it is empty, or ``serving``."""

    exit_code: int = 1
    until: str | None = None
    """Phase of the start that the server does not live to see; None: it sees all."""
    before: list[str] = []
    telling: str = "{message}"
    """Template of the decisive line."""
    after: list[str] = []


class Refused(Conditional):
    """Configuration that fails at start although no rule or arithmetic covers it."""

    name: str
    kind: FailureKind = FailureKind.CRASHED
    log: str
    """Template of the decisive line; of the card's names, as its condition."""
    reason: str
    source: str


class MetricLine(Versioned):
    """One metric of the engine's Prometheus page; `value` names one of `LiveEngine.figures` or
    `rank_figures`, or of a histogram what `MetricsPage.observe` is given."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    value: str
    help: str
    per_rank: bool = True
    """Whether it has a row for each data-parallel rank, if the figure has several."""
    absent_at_zero: bool = False
    """Whether the page lacks it before its first increment."""
    option: str | None = None
    """Option or key without which the page lacks it."""
    reasons: list[str] = []
    """Reasons of a request's end, each with a row of its own."""
    bounds: list[float] = []
    """Upper bounds of a histogram's buckets."""
    most: Expression = "1e99"
    """Largest bound that it may have."""


class ResetAnswer(Versioned):
    """Response to the cache's reset; in a list the first of the version applies."""

    done: str = ""
    refused: str = ""
    """Body of the answer while requests run."""
    refused_status: int = 200
    content_type: str = "text/plain; charset=utf-8"


class CachedTokensReport(Versioned):
    """Condition under which an answer's usage has its cached tokens; in a list the first of the
    version applies."""

    option: str | None = None
    """Option without which the report is missing; None: it is always there."""
    unless_zero: bool = False
    """Whether the report is missing where no token was cached."""


class HttpDialect(Entry):
    """Form of the HTTP interface of an engine."""

    owner: str
    """`owned_by` of the model list."""
    error_nested: bool
    """Whether an error's fields stand under the key `error`."""
    checks_model: bool
    """Whether a request for another model is answered with 404."""
    choice: Json
    """Further keys of a streamed choice."""
    chunk: Json
    """Further keys of a streamed chunk."""
    too_long: str
    """Message for a request beyond the context."""
    too_long_for_step: str | None = None
    """Message for a prompt that no step can compute whole."""
    unknown_model: str
    completion_tokens: int | None
    """Length of an answer on /v1/completions that requests none."""
    routes: StringDict
    """Path to the name of its handler: health, version, info, metrics, reset …"""
    arguments: Json = {}
    """Templates of its reported resolved arguments."""
    tells_options: bool = False
    """Whether it also reports every parsed option."""
    metrics_option: str | None = None
    """Option or key without which there are no metrics."""
    reset_variable: str | None = None
    """Variable without which there is no reset."""
    arguments_variable: str | None = None
    """Variable without which it reports no arguments."""
    model: Json = {}
    """Further keys of a model in ``/v1/models``: templates of the card's names."""
    iterations: Json = {}
    """Templates of an iteration's statistics, of `LiveEngine.figures` and the card's names."""
    iterations_option: str | None = None
    """Option or key without which there are none."""
    stream_interval: Expression = "1"
    """Tokens of a stream that are sent together, but for its first."""
    reset: list[ResetAnswer] = []
    cached_tokens: list[CachedTokensReport] = []


class EmulationCard(Entry):
    """Document ``search_spaces/<engine>/emulator.yaml``."""

    engine: str
    stream: Literal["stdout", "stderr"]
    """Stream of the log; progress bars always go to stderr."""
    shard_gb: float = Field(gt=0)
    """Size of a checkpoint's file."""
    block_tokens: Expression
    """Tokens per block of the prefix cache; of model and knobs."""
    refusal: Refusal
    startup: list[StartupPhase]
    ready: list[str]
    crash: list[Crash]
    """The first whose condition holds is used."""
    port_taken: str
    stopping: list[str] = []
    stop_signal: bool
    """Whether it ends by SIGTERM itself (143) instead of with exit code 0."""
    api: HttpDialect
    labels: str
    """Labels of every metric."""
    rank_labels: str = ""
    """Labels of a row of one of several data-parallel ranks."""
    metrics: list[MetricLine]
    refuses: list[Refused] = []
    facts: dict[str, Readings] = {}
    """Further names of lines and conditions; each sees those before it."""
    source: str


@lru_cache(maxsize=16)
def emulation_card(engine: str) -> EmulationCard:
    """Return the packaged card of an engine; raises `UnknownName` when there is none."""
    path = packaged("emulation", engine)
    if not path.is_file():
        hint = f"Its dialect would stand in {path}; a real server is launched with --on process."
        raise UnknownName(
            "engine for emulation", engine, dict(documents(spaces_root(), "emulation")), hint
        )
    return load(path, EmulationCard)


def fill_template(template: str, facts: Mapping[str, object]) -> str:
    """Fill a template's holes; an unknown name is unchanged (log lines may hold braces)."""
    return _HOLE.sub(lambda match: str(facts.get(match[1], match[0])), template)


@dataclass(frozen=True)
class Emulation:
    """Settings of ``autotune emulate``, with names looked up; None means as in the command line and
    node."""

    engine_command: Sequence[str]
    hardware: HardwareCard
    gpus: int
    engine_version: str | None = None
    model_id: str | None = None
    host: str | None = None
    port: int | None = None
    speed: float = 1.0
    startup_s: float | None = None
    fault: str | None = None
    answers: str | None = None


@dataclass(eq=False)
class Died(Exception):
    """End of the process with this exit code, after the engine's message."""

    exit_code: int


@dataclass(frozen=True)
class EmulatedLaunch:
    """Command line accepted by its parser."""

    asked: Emulation
    card: EmulationCard
    parsed: ParsedCommand
    resolved: ResolvedCommand

    @cached_property
    def server(self) -> SimulatedServer:
        return SimulatedServer(self.resolved.setup)

    @cached_property
    def memory(self) -> MemoryPlan:
        return plan_memory(self.server)

    @cached_property
    def failure(self) -> Failure | None:
        """Return the failure of the start, of the simulated node or of a configuration not covered
        by a rule."""
        failure = self.resolved.failure or start_failure(self.server, self.memory)
        if failure is not None:
            return failure
        for refused in holding(self.card.refuses, self.scope, self.parsed.version):
            return Failure(refused.kind, refused.reason, fill_value(refused.log, self.scope))
        return None

    def crash(self, message: str, kind: str) -> Crash:
        """Return the form in which the engine dies of a failure."""
        scope = {**self.scope, "message": message, "kind": kind}
        return holding(self.card.crash, scope, self.parsed.version)[0]

    @property
    def context(self) -> int:
        """Return the tokens of the longest request, as the server reports it."""
        fitted = self.server.fits_context
        return self.memory.longest_request_tokens if fitted else self.server.context_length

    @property
    def startup_s(self) -> float:
        if self.asked.startup_s is not None:
            return self.asked.startup_s
        return startup_s(self.server, self.memory) / self.asked.speed

    @property
    def models(self) -> Strings:
        named = self.parsed.args.get("served_model_name")
        if not named:
            return (self.parsed.model,)
        return (named,) if isinstance(named, str) else tuple(named)

    @property
    def host(self) -> str:
        typed = self.parsed.args["host"] if "host" in self.parsed.given else None
        host = self.asked.host or typed or "127.0.0.1"
        return "127.0.0.1" if host == "localhost" else str(host)

    @property
    def port(self) -> int:
        return int(self.parsed.args["port"]) if self.asked.port is None else self.asked.port

    @cached_property
    def scope(self) -> Json:
        """Return the card's names: effective knobs, model, hardware, parsed options, the server's,
        and its facts."""
        argv = command_of(self.asked.engine_command).argv
        told = {
            "model": self.parsed.model,
            "words": " ".join(engine(self.card.engine).arguments(argv) or ()),
            "context": self.context,
            "memory_fraction": self.server.memory_fraction,
            "tokens": self.memory.capacity_tokens,
            "kv_gib": max(0.0, self.memory.kv_cache) / 2**30,
            "weights_gib": self.memory.weights / 2**30,
        }
        scope = {
            **self.resolved.context.scope(self.resolved.effective.knobs),
            "args": Namespace(self.parsed.args),
            "env": Namespace(self.parsed.env),
            "config": Namespace(self.parsed.config),
            "server": Namespace(told),
        }
        for name, readings in self.card.facts.items():
            reading = first_for(readings, self.parsed.version)
            scope[name] = reading and evaluate(reading.value, scope)
        return scope


def prepare_launch(asked: Emulation, library: Library) -> EmulatedLaunch:
    """Parse the command line; raises `Died` if the engine refuses it, `BadInput` if only autotune
    does."""
    command = command_of(asked.engine_command)
    # Add our environment, in which a launcher may set the engine's variables.
    command = replace(command, env={**os.environ, **command.env})
    kind = recognise(command.argv, library)
    card = emulation_card(kind.name)
    version = kind.version(asked.engine_version)
    try:
        parsed = kind.parse(command, version)
    except BadInput as error:
        raise _refused(card, error) from error
    model = library.model(parsed.model, asked.model_id)
    context = Context(model, asked.hardware, asked.gpus, version)
    try:
        resolved = resolve_command(command, library, context, version)
    except BadInput as error:
        raise _refused(card, error) from error
    return EmulatedLaunch(asked, card, parsed, resolved.running())


def _refused(card: EmulationCard, error: BadInput) -> Died:
    """Print the engine parser's message for a refused command line."""
    message = error.engine_message if isinstance(error, RefusedCommand) else str(error)
    usage, code = card.refusal.usage, card.refusal.exit_code
    for rewording in card.refusal.rewordings:
        if match := re.match(rewording.pattern, message):
            message = match.expand(rewording.say)
            if rewording.exit_code is not None:
                usage, code = [], rewording.exit_code
            break
    print(*usage, message, sep="\n", file=sys.stderr)
    return Died(code)
