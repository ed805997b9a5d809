"""The command of every engine at its defaults and at its good starts, per version, model and node, word for word;
and each is taken by its version's parser.

After a wanted change: ``python -m tests.engines.test_golden_commands`` writes the file again; read its difference.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from autotune.engines import engine, names, split_command
from autotune.space.expression import evaluate, fill_value
from autotune.space.fingerprint import effective
from autotune.trial import Configuration
from tests.engines.settings import LIBRARY, NODES, V32, context

GOLDEN = Path(__file__).with_name("golden_commands.txt")


def commands() -> str:
    blocks = []
    for name in names():
        kind = engine(name)
        for version, model, node in product(kind.card.versions, LIBRARY.models, NODES):
            judged = context(version, model, node)
            if not all(evaluate(need.expect, judged.scope({})) for need in kind.card.requires):
                continue
            scope = judged.scope(kind.default_knobs(judged))
            cases = {"default": {}}
            if version == kind.card.newest:
                cases |= {start.name: start.set for start in kind.card.starts if evaluate(start.when, scope)}
            for case, changes in cases.items():
                knobs = kind.default_knobs(judged, {k: fill_value(v, scope) for k, v in changes.items()})
                made = effective(kind.card, Configuration(name, knobs), judged).configuration
                heading = f"# {name} {version} {model.rpartition('/')[2]} {node} {case}"
                command = kind.command(made, judged)
                kind.parse(command, version)
                blocks.append(f"{heading}\n{command.shell()}\n")
    return "\n".join(blocks)


def test_every_command_is_the_golden_one() -> None:
    assert commands() == GOLDEN.read_text(encoding="utf-8")


def test_the_default_vllm_command_of_v32_is_what_a_person_would_write() -> None:
    kind = engine("vllm")
    judged = context("0.32.0")
    command = kind.command(Configuration("vllm", kind.default_knobs(judged)), judged).shell()
    assert command.startswith(
        f"vllm serve {V32} --tensor-parallel-size 8 --tokenizer-mode deepseek_v32 --reasoning-parser deepseek_v3"
    )
    assert command.endswith("--host 127.0.0.1")


def test_what_is_passed_through_stands_last() -> None:
    kind = engine("sglang")
    judged = context("0.5.23")
    configuration = Configuration("sglang", kind.default_knobs(judged))
    command = kind.command(configuration, judged, ["--trust-remote-code", "--max-running-requests", "7"])
    assert command.argv[-3:] == ("--trust-remote-code", "--max-running-requests", "7")
    assert kind.knobs(kind.parse(split_command(command.shell()), "0.5.23"), judged).knobs["max_running_requests"] == 7


if __name__ == "__main__":
    GOLDEN.write_text(commands(), encoding="utf-8")
