"""Tests that every engine must pass, as a class for whoever writes one; docs/engines.md has an
example.

Copy this file beside the tests of an engine's package: pytest collects a subclass wherever that is
installed. autotune's own engines are tested by the same class. It needs neither pytest nor a GPU
nor the engine's program.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import ClassVar

from packaging.version import Version

from autotune.base.errors import BadInput, RefusedCommand
from autotune.engines.command import Command, Configuration, Scalar
from autotune.engines.context import (
    Context,
    Normaliser,
    as_failure,
    broken_rules,
    effective,
    search_values,
    unsuited,
)
from autotune.engines.engine import Engine, accepted
from autotune.engines.entry import in_range
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.expression import evaluate, fill_value
from autotune.engines.failure import FailureKind
from autotune.engines.library import Library, check, load
from autotune.engines.registry import engine, recognise
from autotune.engines.schema import EngineCard, holding

_SAMPLE, _TRIES = 20, 800
"""Configurations drawn per context, and draws for them: where rules leave few, fewer are tested."""
_MOST = 42_000
"""Candidates that the newest version may have with a model on a node: as many as a search looks
through."""


class EngineConformance:
    """The tests of an engine in settings; a subclass names both.

    Attributes:
        engine: the name of its entry point.
        space: a folder laid out like ``search_spaces`` with models or nodes of one's own.
        models, nodes: with which it is tested, each model on each node with each known version.
        companions: knob to the knobs that must be set beside it to make it active.
        fewest: candidates that the newest version must have with a model on a node.
    """

    engine: ClassVar[str]
    models: ClassVar[Sequence[str]]
    nodes: ClassVar[Sequence[str]]
    space: ClassVar[Path | None] = None
    companions: ClassVar[Mapping[str, Mapping[str, Scalar]]] = {}
    fewest: ClassVar[int] = 1

    @property
    def kind(self) -> Engine:
        return engine(self.engine, self.library)

    @property
    def card(self) -> EngineCard:
        return self.kind.card

    @property
    def library(self) -> Library:
        return _library(self.space)

    def contexts(self, *, suited: bool = False) -> Iterator[Context]:
        """Yield every known version with every model on every node; with ``suited``, where the
        card's needs are met."""
        for version, model, node in product(self.card.versions, self.models, self.nodes):
            hardware = self.library.node(node)
            context = Context(self.library.model(model), hardware, hardware.gpus, version)
            if not suited or unsuited(self.card, context) is None:
                yield context

    def made(self, context: Context, settings: Mapping[str, Scalar] | None = None) -> Configuration:
        """Return the engine's defaults with some settings, as the engine runs them."""
        knobs = self.kind.default_knobs(context, settings)
        return effective(self.card, Configuration(self.engine, knobs), context)

    def drawn(self, context: Context) -> list[Configuration]:
        """Draw random candidates: a value to search for every knob, or one that is tried beside the
        best, in the card's order, that break no rule."""
        chance = random.Random(f"{context.version} {context.hardware.name}")
        drawn = list[Configuration]()
        defaults, normaliser = self.kind.default_knobs(context), Normaliser(self.card, context)
        for _ in range(_TRIES):
            scope = context.scope(defaults)
            for name, knob in self.card.knobs.items():
                if evaluate(knob.active, scope):
                    searched = search_values(knob, scope, context.version)
                    beside = knob.beside if knob.exists_in(context.version) else []
                    held = next((e.values for e in holding(beside, scope, context.version)), ())
                    scope[name] = chance.choice([*searched, *held])
            normaliser.apply(scope)
            if not normaliser.broken(scope):
                knobs = {name: scope[name] for name in defaults}
                drawn.append(Configuration(self.engine, knobs))
            if len(drawn) == _SAMPLE:
                break
        return drawn

    def cases(self, context: Context) -> dict[str, Configuration]:
        """Return the defaults and, of the newest version, the card's good starts that apply, by
        name."""
        cases, scope = (
            {"default": self.made(context)},
            context.scope(self.kind.default_knobs(context)),
        )
        for start in self.card.starts if context.version == self.card.newest else ():
            if evaluate(start.when, scope):
                settings = {knob: fill_value(value, scope) for knob, value in start.set.items()}
                cases[start.name] = self.made(context, settings)
        return cases

    # The card

    def test_the_card_is_valid(self) -> None:
        paths = [
            p for p in self.library.paths("engines") if load(p, EngineCard).engine == self.engine
        ]
        assert paths, f"{self.engine}.yaml is not found: it should be named as the entry point is"
        for path in paths:
            check(path)

    def test_versions_are_in_order_and_each_has_a_table(self) -> None:
        versions = self.card.versions
        assert versions == sorted(versions, key=Version), versions
        for version in versions:
            table = self.kind.table(version)
            assert (table.engine, table.version) == (self.engine, version)
            flags = [flag for option in table.options for flag in option.flags]
            assert flags, f"{version} has no options"
            assert len(flags) == len(set(flags)), f"{version}: an option is there twice"

    def test_every_expression_can_be_evaluated_everywhere(self) -> None:
        for context in self.contexts():
            scope = context.scope(self.kind.default_knobs(context))
            for rule in self.card.rules:
                assert evaluate(rule.forbid, scope) in (True, False), rule.name
            for effect in self.card.effects:
                assert evaluate(effect.when, scope) in (True, False), effect.name

    def test_rules_say_why_and_where_it_is_known_from(self) -> None:
        rules = self.card.rules
        assert len({rule.name for rule in rules}) == len(rules), "two rules have one name"
        for rule in rules:
            assert rule.reason, rule.name
            assert rule.source, rule.name
            # Versions beside the known ones are read, too; 0 and a range's own bounds stand for them.
            bounds = re.findall(r"\d[\w.]*", rule.versions)
            known = ("0", *self.card.versions, *bounds)
            assert any(in_range(v, rule.versions) for v in known), (
                f"{rule.name} holds for no version"
            )
            assert as_failure(rule).log_excerpt == rule.message, rule.name

    def test_what_is_read_exists_in_the_engine_s_parser(self) -> None:
        """A misspelt ``args.x`` or ``config.x`` would read as "not given" for ever."""
        for knob, entry in self.card.knobs.items():
            for reading in entry.read:
                versions = [
                    v
                    for v in self.card.versions
                    if in_range(v, reading.versions) and entry.exists_in(v)
                ]
                tables = [self.kind.table(version) for version in versions]
                assert tables, (knob, reading.versions)
                for option in re.findall(r"\bargs\.(\w+)", reading.value):
                    assert any(option in table.defaults for table in tables), (knob, option)
                keys = tables[-1].config_keys
                for key in re.findall(r"\bconfig\.([a-z_.]+)", reading.value):
                    # Below a key whose own keys are not known, any may be.
                    parent = key.rpartition(".")[0]
                    assert key in keys or (
                        parent and not any(k.startswith(f"{parent}.") for k in keys)
                    ), (knob, key)

    # Commands

    def test_a_command_says_what_the_configuration_is(self) -> None:
        tested = 0
        for context in self.contexts(suited=True):
            for configuration in (self.made(context), *self.drawn(context)):
                tested += 1
                again = effective(self.card, configuration, context)
                assert again == configuration, (
                    "the engine's effects change what they made themselves"
                )
                command = self.kind.command(configuration, context)
                parsed = self.kind.parse(command, context.version)
                again = effective(self.card, self.kind.knobs(parsed, context), context)
                assert dict(again.knobs) == dict(configuration.knobs), command.shell()
                assert again.fingerprint == configuration.fingerprint, command.shell()
                assert self.kind.command(again, context) == command, command.shell()
                assert parsed.model == context.model.id, command.shell()
        assert tested, (
            "the card's requirements and rules leave no candidate on any of the models and nodes"
        )

    def test_every_value_of_every_knob_can_be_written_and_read_alone(self) -> None:
        """Each search value, each choice, and each value that is tried beside the best, one knob at
        a time, in at least one setting."""
        wanted: set[tuple[str, str]] = set()
        written: set[tuple[str, str]] = set()
        for context in self.contexts():
            scope = context.scope(self.kind.default_knobs(context))
            for knob, entry in self.card.knobs.items():
                beside = [value for one in entry.beside for value in one.values]
                choices = [*(entry.choices or []), *beside]
                # null is a default ("the engine decides"), never something to write.
                wanted |= {(knob, str(value)) for value in choices if value is not None}
                tried = [*search_values(entry, scope, context.version), *choices]
                written |= {
                    (knob, str(value)) for value in tried if self._comes_back(context, knob, value)
                }
        assert not wanted - written, sorted(wanted - written)
        unread = set(self.card.knobs) - {knob for knob, _ in written}
        assert not unread, f"never written and read back: {sorted(unread)}"

    def _comes_back(self, context: Context, name: str, value: Scalar) -> bool:
        """Tell whether a setting can be written in this version and is read back as it was."""
        beside = {
            knob: v for knob, v in self.companions.get(name, {}).items() if knob in self.card.knobs
        }
        knobs = self.kind.default_knobs(context, {**beside, name: value})
        if not evaluate(self.card.knobs[name].active, context.scope(knobs)):
            return False
        try:
            command = self.kind.command(Configuration(self.engine, knobs), context)
            parsed = self.kind.parse(command, context.version)
        except BadInput:
            return False
        return self.kind.knobs(parsed, context).knobs[name] == knobs[name]

    def test_its_command_line_is_recognised_and_another_one_refused(self) -> None:
        for context in self.contexts(suited=True):
            command = self.kind.command(self.made(context), context)
            assert recognise(command.argv, self.library).name == self.engine, command.shell()
            command = self.kind.command(self.made(context), context, ["--no-such-option", "1"])
            message = _refusal(self.kind, command, context.version)
            assert "--no-such-option" in message, f"{command.shell()} was let through: {message}"
        without_a_model = Command(tuple(self.card.program))
        assert _refusal(self.kind, without_a_model, self.card.newest), (
            "a command without a model was let through"
        )

    # What is tried

    def test_defaults_and_good_starts_are_searched_and_the_parser_takes_all_that_is(self) -> None:
        known: list[Context] = []
        for context in self.contexts(suited=True):
            # Models that differ in their names alone have the same candidates.
            nameless = replace(
                context,
                model=context.model.model_copy(update={"id": "", "aliases": [], "source": ""}),
            )
            if context.version != self.card.newest or nameless in known:
                continue
            known.append(nameless)
            candidates = enumerate_engine(self.card, context).configurations
            assert self.fewest <= len(candidates) <= _MOST, (
                f"{len(candidates)}, not {self.fewest} to {_MOST} candidates"
            )
            searched = set(candidates)
            for case, configuration in self.cases(context).items():
                broken = [rule.name for rule in broken_rules(self.card, configuration, context)]
                assert not broken, (case, broken)
                assert configuration in searched, (
                    f"{case} is not among the {len(searched)} candidates"
                )
            _, refusals = accepted(self.kind, context, candidates)
            assert not refusals, refusals
        assert known, (
            "the card's requirements leave the newest version none of the models and nodes"
        )

    # A running server

    def test_the_serving_section_is_complete(self) -> None:
        serving = self.card.serving
        reports = [source.path for source in self.card.resolved]
        for path in (serving.health, serving.metrics_path, serving.reset_cache, *reports):
            assert path is None or path.startswith("/"), path
        for version in self.card.versions:
            flags = self.kind.table(version).flags
            for flag in (serving.host_flag, serving.port_flag, *serving.arguments):
                assert not flag.startswith("--") or flag in flags, f"{version} has no option {flag}"
        for name in serving.metrics.values():
            assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name), (
                f"not a Prometheus name: {name!r}"
            )
        for metrics in serving.cache_metrics:
            assert metrics.source, metrics.queries

    def test_failures_are_told_with_a_way_out(self) -> None:
        for failure in self.card.failures:
            pattern = re.compile(failure.pattern)
            assert failure.way_out.format(**dict.fromkeys(pattern.groupindex, "x")).strip(), (
                failure.pattern
            )
            assert failure.source, failure.pattern
            assert failure.kind not in (FailureKind.RULE, FailureKind.ACCURACY), failure.pattern
            assert not pattern.search(""), f"{failure.pattern} matches every line"
        missing = {FailureKind.BAD_ARGUMENT, FailureKind.OUT_OF_MEMORY} - {
            one.kind for one in self.card.failures
        }
        assert not missing, f"no pattern tells: {sorted(missing)}"


def _refusal(kind: Engine, command: Command, version: str) -> str:
    """Return the parser's message to a command that it must refuse; empty when it takes it."""
    try:
        kind.parse(command, version)
    except BadInput as error:
        return error.engine_message if isinstance(error, RefusedCommand) else str(error)
    return ""


@cache
def _library(space: Path | None) -> Library:
    return Library() if space is None else Library((space,))
