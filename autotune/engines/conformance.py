"""What every engine must keep to, as a class of tests for whoever writes one.

::

    from autotune.engines.conformance import EngineConformance

    class TestMyEngine(EngineConformance):
        engine = "my_engine"
        models = ("deepseek-ai/DeepSeek-V3.2",)
        nodes = ("h200",)
        golden = Path(__file__).with_name("golden_commands.txt")

pytest collects it wherever the engine's package is installed; autotune's own engines are tested by the same class. It
needs neither pytest nor a GPU nor the engine's program. After a wanted change, ``TestMyEngine().write_golden()`` writes
the commands again; read the difference.
"""

from __future__ import annotations

import re

from packaging.version import Version

from autotune.engines import Engine, recognise
from autotune.engines.under_test import UnderTest, blocks
from autotune.errors import BadInput, RefusedCommand
from autotune.space.checking import check
from autotune.space.context import Context
from autotune.space.entry import in_range
from autotune.space.enumeration import enumerate_engine
from autotune.space.expression import evaluate, names
from autotune.space.fingerprint import as_failure, broken_rules, effective
from autotune.space.knobs import search_values
from autotune.space.library import load
from autotune.space.schema import EngineCard, Reading
from autotune.trial import Command, Configuration, FailureKind, Scalar


class EngineConformance(UnderTest):
    """The tests; `UnderTest` says what a subclass names."""

    # The card

    def test_the_card_is_valid(self) -> None:
        paths = [p for p in self.library.paths("engines") if load(p, EngineCard).engine == self.engine]
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
                assert set(effect.set) <= set(self.card.knobs), effect.name
            for start in self.card.starts:
                assert set(start.set) <= set(self.card.knobs), start.name

    def test_a_default_depends_only_on_knobs_that_stand_before_it(self) -> None:
        order = list(self.card.knobs)
        for position, (name, knob) in enumerate(self.card.knobs.items()):
            for case in knob.default if isinstance(knob.default, list) else []:
                assert not names(case.when) & set(order[position:]), (name, case.when)

    def test_rules_say_why_and_where_it_is_known_from(self) -> None:
        rules = self.card.rules
        assert len({rule.name for rule in rules}) == len(rules), "two rules have one name"
        for rule in rules:
            assert rule.reason, rule.name
            assert rule.source, rule.name
            assert any(in_range(v, rule.versions) for v in self.card.versions), f"{rule.name} holds for no version"
            assert as_failure(rule).log_excerpt == rule.message, rule.name

    def test_what_is_read_exists_in_the_engine_s_parser(self) -> None:
        """A misspelt ``args.x`` or ``config.x`` would read as "not given" for ever."""
        for knob, entry in self.card.knobs.items():
            for reading in [Reading(value=entry.read)] if isinstance(entry.read, str) else entry.read:
                versions = [v for v in self.card.versions if in_range(v, reading.versions) and entry.exists_in(v)]
                tables = [self.kind.table(version) for version in versions]
                assert tables, (knob, reading.versions)
                for option in re.findall(r"\bargs\.(\w+)", reading.value):
                    assert any(option in table.defaults for table in tables), (knob, option)
                for key in re.findall(r"\bconfig\.([a-z_.]+)", reading.value):
                    assert _is_config_key(key, tables[-1].config_keys), (knob, key)

    # Commands

    def test_a_command_says_what_the_configuration_is(self) -> None:
        tested = 0
        for context in self.suited():
            for configuration in self.drawn(context):
                tested += 1
                command = self.kind.command(configuration, context)
                parsed = self.kind.parse(command, context.version)
                again = effective(self.card, self.kind.knobs(parsed, context), context).configuration
                assert dict(again.knobs) == dict(configuration.knobs), command.shell()
                assert again.fingerprint == configuration.fingerprint, command.shell()
                assert self.kind.command(again, context) == command, command.shell()
                assert parsed.model == context.model.id, command.shell()
        assert tested, "the card's requirements and rules leave no candidate on any of the models and nodes"

    def test_every_value_of_every_knob_can_be_written_and_read_alone(self) -> None:
        """Each search value and each choice, one knob at a time, in at least one setting."""
        wanted: set[tuple[str, str]] = set()
        written: set[tuple[str, str]] = set()
        for context in self.contexts():
            scope = context.scope(self.kind.default_knobs(context))
            for knob, entry in self.card.knobs.items():
                choices = entry.choices or []
                # null is a default ("the engine decides"), never something to write.
                wanted |= {(knob, str(value)) for value in choices if value is not None}
                tried = [*search_values(entry, scope, context.version), *choices]
                written |= {(knob, str(value)) for value in tried if self._comes_back(context, knob, value)}
        assert not wanted - written, sorted(wanted - written)
        unread = set(self.card.knobs) - {knob for knob, _ in written}
        assert not unread, f"never written and read back: {sorted(unread)}"

    def _comes_back(self, context: Context, name: str, value: Scalar) -> bool:
        """Whether a setting can be written in this version and is read back as it was."""
        beside = {knob: v for knob, v in self.companions.get(name, {}).items() if knob in self.card.knobs}
        knobs = self.kind.default_knobs(context, {**beside, name: value})
        if not evaluate(self.card.knobs[name].active, context.scope(knobs)):
            return False
        try:
            command = self.kind.command(Configuration(self.engine, knobs), context)
            parsed = self.kind.parse(command, context.version)
        except BadInput:
            return False
        return self.kind.knobs(parsed, context).knobs[name] == knobs[name]

    def test_its_command_line_is_recognised_as_its_own(self) -> None:
        for context in self.suited():
            command = self.kind.command(self.made(context), context)
            assert recognise(command.argv, self.library).name == self.engine, command.shell()

    def test_an_option_that_it_has_not_is_refused(self) -> None:
        for context in self.suited():
            command = self.kind.command(self.made(context), context, ["--no-such-option", "1"])
            message = _refusal(self.kind, command, context.version)
            assert "--no-such-option" in message, f"{command.shell()} was let through: {message}"

    def test_a_command_line_without_a_model_is_refused(self) -> None:
        assert _refusal(self.kind, Command(tuple(self.card.program)), self.card.newest)

    def test_commands_are_the_golden_ones(self) -> None:
        if self.golden is None:
            return
        golden = blocks(self.golden.read_text(encoding="utf-8"))
        known = {heading: text for heading, text in golden.items() if heading.split()[1] == self.engine}
        now = self.commands()
        assert set(known) == set(now), f"headings differ: {sorted(set(known) ^ set(now))}"
        for heading, text in now.items():
            assert text == known[heading], f"{heading}\nnow:    {text}\ngolden: {known[heading]}"

    # What is tried

    def test_defaults_and_good_starts_are_searched_and_break_no_rule(self) -> None:
        for context in self.suited():
            if context.version != self.card.newest:
                continue
            searched = set(enumerate_engine(self.card, context).configurations)
            for case, configuration in [("default", self.made(context)), *self.starts(context)]:
                broken = [rule.name for rule in broken_rules(self.card, configuration, context)]
                assert not broken, (case, broken)
                assert configuration in searched, f"{case} is not among the {len(searched)} candidates"

    def test_a_fingerprint_depends_on_content_alone(self) -> None:
        for context in self.suited():
            for configuration in (self.made(context), *self.drawn(context)):
                shuffled = Configuration(self.engine, dict(reversed(list(configuration.knobs.items()))))
                assert shuffled.fingerprint == configuration.fingerprint
                again = effective(self.card, configuration, context).configuration
                assert again == configuration, "the engine's effects change what they made themselves"

    # A running server

    def test_the_serving_section_is_complete(self) -> None:
        serving = self.card.serving
        told = [source.path for source in self.card.resolved]
        for path in (serving.health, serving.metrics_path, serving.reset_cache, *told):
            assert path is None or path.startswith("/"), path
        for version in self.card.versions:
            flags = self.kind.table(version).flags
            for flag in (serving.host_flag, serving.port_flag, *serving.arguments):
                assert not flag.startswith("--") or flag in flags, f"{version} has no option {flag}"
        for name in serving.metrics.values():
            assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name), f"not a Prometheus name: {name!r}"
        for metrics in serving.cache_metrics:
            assert metrics.source, metrics.queries

    def test_failures_are_told_with_a_way_out(self) -> None:
        for known in self.card.failures:
            pattern = re.compile(known.pattern)
            assert known.way_out.format(**dict.fromkeys(pattern.groupindex, "x")).strip(), known.pattern
            assert known.source, known.pattern
            assert known.kind not in (FailureKind.RULE, FailureKind.ACCURACY), known.pattern
            assert not pattern.search(""), f"{known.pattern} matches every line"
        missing = self.failing - {known.kind for known in self.card.failures}
        assert not missing, f"no pattern tells: {sorted(missing)}"


def _refusal(kind: Engine, command: Command, version: str) -> str:
    """What the engine's parser says to a command that it must refuse; empty when it takes it."""
    try:
        kind.parse(command, version)
    except BadInput as error:
        return error.engine_message if isinstance(error, RefusedCommand) else str(error)
    return ""


def _is_config_key(key: str, known: frozenset[str]) -> bool:
    """Whether the engine's config file has a key; below one whose own keys are not known, any."""
    parent = key.rpartition(".")[0]
    return key in known or bool(parent and not any(k.startswith(f"{parent}.") for k in known))
