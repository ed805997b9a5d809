"""From an engine's command line to a server that may start, or to the reason why it does not."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune.engines import ParsedCommand, command_of, recognise
from autotune.errors import BadInput, RefusedCommand
from autotune.simulator.emulator.card import EmulationCard, emulation_card, filled
from autotune.simulator.node import start_failure
from autotune.simulator.node.memory import MemoryPlan, plan_memory, startup_s
from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.resolve_command import ResolvedCommand, resolve_command
from autotune.space.cards import HardwareCard
from autotune.space.context import Context
from autotune.space.entry import in_range
from autotune.space.expression import Namespace, evaluate
from autotune.space.library import Library
from autotune.trial import Command, Failure, FailureKind


@dataclass(frozen=True)
class Emulation:
    """The question of ``autotune emulate``, with names looked up; what is None is as the command line and node say."""

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


class Died(Exception):
    """The process ends with this exit code; what the engine prints of it is printed."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass(frozen=True)
class EmulatedLaunch:
    """A command line whose parser was content."""

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
        """Return the failure of the start, as the simulated node has it, or by what no rule knows."""
        failure = self.resolved.failure or start_failure(self.server, self.memory)
        if failure is not None:
            return failure
        knobs, context = self.resolved.effective.knobs, self.resolved.context
        for refused in self.card.refuses:
            if in_range(context.version, refused.versions) and evaluate(refused.when, context.scope(knobs)):
                return Failure(FailureKind.CRASHED, refused.reason, filled(refused.log, knobs))
        return None

    @property
    def startup_s(self) -> float:
        if self.asked.startup_s is not None:
            return self.asked.startup_s
        return startup_s(self.server, self.memory) / self.asked.speed

    @property
    def models(self) -> tuple[str, ...]:
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
    def scope(self) -> dict[str, Any]:
        """Return the card's names: effective knobs, model, hardware, what was parsed, the server's."""
        figures = {"context": self.server.context_length, "memory_fraction": self.server.memory_fraction}
        return {
            **self.resolved.context.scope(self.resolved.effective.knobs),
            "args": Namespace(self.parsed.args),
            "env": Namespace(self.parsed.env),
            "server": Namespace(figures),
        }

    @property
    def block_tokens(self) -> int:
        return int(evaluate(self.card.block_tokens, self.scope))


def prepare_launch(asked: Emulation, library: Library) -> EmulatedLaunch:
    """Parse and understand the command line; raises `Died` where the engine refuses it, `BadInput` where only we do."""
    words = command_of(asked.engine_command)
    # A launcher may set the engine's variables in our environment instead of in front of the command.
    command = Command(words.argv, {**os.environ, **words.env})
    engine = recognise(command.argv, library)
    card = emulation_card(engine.name)
    version = engine.version(asked.engine_version)
    try:
        parsed = engine.parse(command, version)
    except BadInput as error:
        raise _refused(card, error.engine_message if isinstance(error, RefusedCommand) else str(error)) from error
    model = library.model(parsed.model, asked.model_id)
    context = Context(model, asked.hardware, asked.gpus, version)
    try:
        resolved = resolve_command(command, library, context, version)
    except BadInput as error:
        raise _refused(card, str(error)) from error
    return EmulatedLaunch(asked, card, parsed, resolved.running())


def _refused(card: EmulationCard, message: str) -> Died:
    """Print what the engine's parser prints of a command line that it refuses."""
    for rewording in card.refusal.rewordings:
        if match := re.match(rewording.pattern, message):
            message = match.expand(rewording.say)
            break
    print(*card.refusal.usage, message, sep="\n", file=sys.stderr)
    return Died(card.refusal.exit_code)
