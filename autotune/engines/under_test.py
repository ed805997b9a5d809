"""What the conformance suite tests: an engine in every setting that its author names, and its commands there."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from autotune.engines import Engine, engine
from autotune.space.context import Context
from autotune.space.expression import evaluate, fill_value
from autotune.space.fingerprint import broken_rules, effective
from autotune.space.knobs import search_values
from autotune.space.library import Library
from autotune.space.schema import EngineCard
from autotune.trial import Configuration, FailureKind, Scalar

_TRIES = 40
"""Draws per configuration that is wanted; where rules leave so few, fewer are tested."""


class UnderTest:
    """An engine in settings; a subclass names both.

    Attributes:
        engine: the name of its entry point.
        space: a folder laid out like ``search_spaces`` with models or nodes of one's own.
        models, nodes: with which it is tested, each model on each node with each known version.
        gpus: that are used of a node; None = all.
        golden: a file of commands under ``# <engine> <version> <model> <node> <case>``, maybe other engines' as well.
        companions: knob to the knobs that must be set beside it to make it active.
        sample: configurations drawn per version, model and node.
        failing: kinds of `FailureKind` that the card's log patterns must tell.
    """

    engine: ClassVar[str]
    models: ClassVar[Sequence[str]]
    nodes: ClassVar[Sequence[str]]
    space: ClassVar[Path | None] = None
    gpus: ClassVar[int | None] = None
    golden: ClassVar[Path | None] = None
    companions: ClassVar[Mapping[str, Mapping[str, Scalar]]] = {}
    sample: ClassVar[int] = 20
    failing: ClassVar[frozenset[FailureKind]] = frozenset(
        {FailureKind.BAD_ARGUMENT, FailureKind.OUT_OF_MEMORY, FailureKind.PORT}
    )

    @property
    def kind(self) -> Engine:
        return engine(self.engine, self.library)

    @property
    def card(self) -> EngineCard:
        return self.kind.card

    @property
    def library(self) -> Library:
        return _library(self.space)

    def contexts(self) -> Iterator[Context]:
        """Every known version with every model on every node, also where the engine would be excluded."""
        for version in self.card.versions:
            for model in self.models:
                for node in self.nodes:
                    hardware = self.library.node(node)
                    yield Context(self.library.model(model), hardware, self.gpus or hardware.gpus, version)

    def suited(self) -> Iterator[Context]:
        """Those in which what the card requires holds."""
        for context in self.contexts():
            if all(evaluate(need.expect, context.scope({})) for need in self.card.requires):
                yield context

    def made(self, context: Context, settings: Mapping[str, Scalar] | None = None) -> Configuration:
        """The engine's defaults with some settings, as the engine runs them."""
        knobs = self.kind.default_knobs(context, settings)
        return effective(self.card, Configuration(self.engine, knobs), context).configuration

    def drawn(self, context: Context) -> Iterator[Configuration]:
        """Random candidates: a value to search for every knob, in the card's order, that break no rule."""
        chance, found = random.Random(f"{context.version} {context.hardware.name}"), 0
        for _ in range(_TRIES * self.sample):
            knobs = self.kind.default_knobs(context)
            for name, knob in self.card.knobs.items():
                scope = context.scope(knobs)
                if evaluate(knob.active, scope):
                    knobs[name] = chance.choice(search_values(knob, scope, context.version))
            configuration = effective(self.card, Configuration(self.engine, knobs), context).configuration
            if not broken_rules(self.card, configuration, context):
                yield configuration
                found += 1
            if found == self.sample:
                return

    def starts(self, context: Context) -> Iterator[tuple[str, Configuration]]:
        """The card's good starts that apply."""
        scope = context.scope(self.kind.default_knobs(context))
        for start in self.card.starts:
            if evaluate(start.when, scope):
                yield start.name, self.made(context, {knob: fill_value(v, scope) for knob, v in start.set.items()})

    def commands(self) -> dict[str, str]:
        """Heading to command: the defaults per version, model and node, and the newest version's good starts."""
        found: dict[str, str] = {}
        for context in self.suited():
            cases = [("default", self.made(context))]
            cases += list(self.starts(context)) if context.version == self.card.newest else []
            for case, configuration in cases:
                model = context.model.id.rpartition("/")[2]
                heading = f"# {self.engine} {context.version} {model} {context.hardware.name} {case}"
                found[heading] = self.kind.command(configuration, context).shell()
        return found

    def write_golden(self) -> None:
        """Write this engine's commands into the golden file, beside those of others."""
        assert self.golden is not None, "the class names no golden file"
        text = self.golden.read_text(encoding="utf-8") if self.golden.exists() else ""
        kept = {h: t for h, t in blocks(text).items() if h.split()[1] != self.engine} | self.commands()
        ordered = sorted(kept.items(), key=lambda item: item[0].split()[1])
        self.golden.write_text("\n".join(f"{heading}\n{text}\n" for heading, text in ordered), encoding="utf-8")


@cache
def _library(space: Path | None) -> Library:
    return Library() if space is None else Library((space,))


def blocks(text: str) -> dict[str, str]:
    """Heading to what stands under it; a heading begins with ``# ``."""
    parts = (block.partition("\n") for block in re.split(r"^(?=# )", text, flags=re.MULTILINE) if block.strip())
    return {heading: body.strip() for heading, _, body in parts}
