"""Every candidate of every shipped space has a command that its version's parser takes.

A command is made of parts that depend on few knobs each; the parts of every candidate are parsed,
equal ones once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from autotune.engines.context import unsuited
from autotune.engines.engine import accepted
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.registry import engine, names
from tests.engines.settings import LIBRARY, NODES, R1, V32, context


def settings() -> list[tuple[str, str, str, str]]:
    """Engine, version, model and node; the conformance suite has the newest versions of two
    architectures.

    Models whose architecture another one has too are tried with the newest version alone.
    """
    found: list[tuple[str, str, str, str]] = []
    for name in names():
        card = engine(name).card
        for version, model, node in product(card.versions, LIBRARY.models, NODES):
            judged = context(version, model, node)
            # Both: the suite has it. Neither: an old version, and an architecture that another
            # model has.
            if (version == card.newest) == (model in (V32, R1)):
                continue
            if unsuited(card, judged) is None:
                found.append((name, version, model, node))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version", "model", "node"), settings())
def test_the_version_s_parser_takes_every_candidate(
    name: str, version: str, model: str, node: str
) -> None:
    kind, judged = engine(name), context(version, model, node)
    space = enumerate_engine(kind.card, judged)
    younger = model == V32 or judged.model.family == "glm_moe_dsa"
    assert space.configurations or younger, "only sparse attention is younger than a known version"
    kept, refusals = accepted(kind, judged, space.configurations)
    assert refusals == {}
    assert kept == space.configurations


@pytest.mark.parametrize("name", names())
def test_the_parts_say_what_the_whole_command_says(name: str) -> None:
    """A parser that lacks an option refuses by parts exactly the candidates whose whole command it
    refuses."""
    kind, judged = engine(name), context(engine(name).card.newest, R1)
    table = kind.table(judged.version)
    lacking = {
        "vllm": "--kv-cache-dtype",
        "sglang": "--mem-fraction-static",
        "tensorrt_llm": "--max_num_tokens",
    }[name]
    options = tuple(option for option in table.options if lacking not in option.flags)
    cut = kind.installed(kind.program, replace(table, options=options))
    candidates = enumerate_engine(kind.card, judged).configurations[::97]
    kept = accepted(cut, judged, candidates)[0]
    by_parts = [candidate in kept for candidate in candidates]
    whole = [lacking not in cut.command(candidate, judged).argv for candidate in candidates]
    assert by_parts == whole
    assert set(whole) == {True, False}
