"""The conformance suite finds what is wrong with an engine; each row is one mistake in the
example's card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.base.errors import BadInput
from autotune.engines.engine import Engine
from autotune.engines.schema import EngineCard
from examples.llama_server.conformance import EngineConformance

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llama_server"
CARD = (EXAMPLE / "autotune_llama_server" / "llama_server.yaml").read_text(encoding="utf-8")

EFFECT = 'ubatch > max_batched_tokens\n    set: {ubatch: "{max_batched_tokens}"}'
GROWING = 'ubatch < max_batched_tokens\n    set: {ubatch: "{ubatch + 1}"}'
READ = "every_value_of_every_knob_can_be_written_and_read_alone"
TABLE = "versions_are_in_order_and_each_has_a_table"
MISTAKES = [
    # what stands in the card, what somebody wrote, the test that finds it
    ('[--batch-size, "{max', '[--batches, "{max', "a_command_says_what_the_configuration_is"),
    (
        '[--threads, "{threads}"]',
        '[--threads, "{ubatch}"]',
        "a_command_says_what_the_configuration_is",
    ),
    ("read: args.ubatch_size", "read: args.ubatch", "what_is_read_exists_in_the_engine_s_parser"),
    ("read: args.ubatch_size", "read: args.batch_size", READ),
    ("choices: [true, false]", "choices: [true, false, host]", READ),
    ("{flags: [--metrics]", "{flags: [--metrix]", "the_serving_section_is_complete"),
    ("{flags: [--port]", "{flags: [--host]", TABLE),
    ('versions: ["2026.10.11549"]', 'versions: ["2026.10.11549", "2026.9"]', TABLE),
    ("does not know {flags}", "does not know {option}", "failures_are_told_with_a_way_out"),
    ("kind: out_of_memory", "kind: infrastructure", "failures_are_told_with_a_way_out"),
    (
        "max_running_requests > 256",
        "max_running_requests < 2",
        "defaults_and_good_starts_are_searched",
    ),
    (
        "{max_running_requests: 4,",
        "{max_running_requests: 5,",
        "defaults_and_good_starts_are_searched",
    ),
    (
        "forbid: max_running_requests > 256",
        "forbid: max_runing_requests > 256",
        "every_expression_can_be_evaluated",
    ),
    (
        "reason: llama.cpp keeps at most 256 sequences; set --parallel to at most that",
        'reason: ""',
        "rules_say_why",
    ),
    ("search: [128, 512]", "search: [128, 256]", "defaults_and_good_starts_are_searched"),
    (EFFECT, GROWING, "a_command_says_what_the_configuration_is"),
]


class Suite(EngineConformance):
    engine = "llama_server"
    space = EXAMPLE / "space"
    models = ("tiny.gguf",)
    nodes = ("cpu",)

    def __init__(self, text: str) -> None:
        document: dict[str, Any] = yaml.safe_load(text)
        self._kind = Engine(EngineCard.model_validate(document))

    @property
    def kind(self) -> Engine:
        return self._kind


@pytest.mark.parametrize(("right", "wrong", "test"), MISTAKES)
def test_a_mistake_is_found(right: str, wrong: str, test: str) -> None:
    assert CARD.count(right) == 1
    (found,) = [name for name in dir(Suite) if name.startswith(f"test_{test}")]
    getattr(Suite(CARD), found)()
    with pytest.raises((AssertionError, BadInput, LookupError, NameError)) as error:
        getattr(Suite(CARD.replace(right, wrong)), found)()
    assert str(error.value), "it says what is wrong"
