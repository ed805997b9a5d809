"""Prints the class of every option of the newest versions: ``python -m tests.engines.option_classes
[FEW]``."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from enum import StrEnum
from functools import cache

from autotune.engines.command import Configuration
from autotune.engines.context import Context
from autotune.engines.engine import Engine
from autotune.engines.library import Library
from autotune.engines.options import Setting, is_simulated, is_without_effect, readers
from autotune.engines.registry import engine
from autotune.engines.schema import Option
from autotune.load.workloads import load_workload
from autotune.node.resolve_command import knobs_modelled, resolve_for

NEWEST = {"vllm": "0.33.0", "sglang": "0.5.23", "tensorrt_llm": "1.2.0"}
MODELS = (
    "Qwen/Qwen3-32B",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3.2",
    "openai/gpt-oss-120b",
)


class OptionClass(StrEnum):
    """Use that the simulator makes of a setting."""

    SIMULATED = "simulated"
    NO_EFFECT = "without effect"
    NOT_SIMULATED = "not simulated"


def class_of(kind: Engine, version: str, setting: Setting, read: Collection[str]) -> OptionClass:
    """Classify a setting in a version of which the simulator reads these knobs."""
    if is_simulated(kind.card, version, setting) or not setting.knobs.isdisjoint(read):
        return OptionClass.SIMULATED
    if is_without_effect(kind.card, version, setting):
        return OptionClass.NO_EFFECT
    return OptionClass.NOT_SIMULATED


@cache
def read_knobs(name: str, version: str) -> frozenset[str]:
    """Return the knobs that the simulator reads for some model of a version."""
    library, kind, found = Library(), engine(name), frozenset[str]()
    for model in MODELS:
        context = Context(library.model(model), library.hardware["h200"], 8, version)
        knobs = kind.default_knobs(context)
        resolved = resolve_for(kind, kind.command(Configuration(name, knobs), context), context)
        outcome = resolved.simulate(load_workload("random:64:4:4"), 0)
        found |= knobs_modelled(resolved, outcome) or frozenset()
    return found


def settings_of(kind: Engine, version: str) -> Iterator[tuple[Option, Setting]]:
    """List the options of a version, each with a value that is none of those that a card may
    name."""
    for option in kind.table(version).options:
        knobs = readers(kind, version, option.paths)
        yield option, Setting(option.long_flag, "another value", knobs)


def classes(name: str, version: str) -> dict[str, OptionClass]:
    """Map every option of a version, by its longest spelling, to its class."""
    kind, read = engine(name), read_knobs(name, version)
    return {one.name: class_of(kind, version, one, read) for _, one in settings_of(kind, version)}


def main(few: int = 10) -> None:
    for name, version in NEWEST.items():
        found = classes(name, version)
        print(f"{name} {version}: {len(found)} options")
        for one in OptionClass:
            names = [option for option, own in found.items() if own is one]
            step = max(1, len(names) // few)
            print(f"  {one.value:<14}{len(names):>4}  {', '.join(names[::step][:few])}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
