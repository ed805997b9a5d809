"""What the emulated engines say of their arguments, read back as a launch reads it: nothing may
differ by mistake."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from autotune.engines.command import Configuration
from autotune.engines.context import Context
from autotune.engines.entry import in_range
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.engines.report_back import parse_reported
from autotune.node.emulator.completions import resolved_arguments
from autotune.node.emulator.launch import Emulation, prepare_launch
from autotune.node.emulator.process import Log, start
from autotune.tuner.backends.read_back import read_source

LIBRARY = Library()
PLACES = [
    *(("vllm", version, "h200") for version in ("0.11.0", "0.13.0", "0.32.0")),
    *(("sglang", version, "h200") for version in ("0.4.3.post2", "0.5.3", "0.5.6.post2", "0.5.23")),
    ("vllm", "0.32.0", "mi300x"),
    ("sglang", "0.5.23", "mi300x"),
    ("tensorrt_llm", "1.2.0", "h200"),
    ("tensorrt_llm", "1.3.0rc24", "b200"),
    ("vllm", "0.33.0", "mi355x"),
]
MODELS = {"mi355x": "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"}
"""Model with ordinary attention, by GPU; elsewhere it is DeepSeek-R1."""
SAMPLE = 5
PINS = {"context_length": 32768, "prefix_caching": False}
"""A part of the space is enumerated sooner."""


@pytest.mark.parametrize(("name", "version", "hardware"), PLACES)
def test_candidates_are_read_back_as_they_are(
    name: str,
    version: str,
    hardware: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = engine(name, LIBRARY)
    model = LIBRARY.model(MODELS.get(hardware, "deepseek-ai/DeepSeek-R1"))
    context = Context(model, LIBRARY.node(hardware), 8, version)
    candidates = enumerate_engine(kind.card, context, PINS).configurations
    chosen = random.Random(5).sample(candidates, min(SAMPLE, len(candidates)))
    ran = 0
    for asked in chosen:
        command = kind.command(asked, context)
        words = [*(f"{k}={v}" for k, v in command.env.items()), *command.argv]
        for file, text in command.files.items():
            Path(file).write_text(text)
        emulation = Emulation(words, context.hardware, 8, version, startup_s=0.0, port=1)
        launch = prepare_launch(emulation, LIBRARY)
        if launch.failure is not None:
            continue
        start(launch, {}, Log(launch, 1, to_stderr=False))
        told = capsys.readouterr()
        document = resolved_arguments(launch)
        heard = {}
        for source in kind.card.resolved:
            if not in_range(version, source.versions) or source.name in heard:
                continue
            found = read_source(source, document if source.path else told.out + told.err)
            if found is not None:
                heard[source.name] = found.settings
        values, got = parse_reported(kind, asked, context, heard)
        there = [
            name
            for name, knob in kind.card.knobs.items()
            if name != "replicas" and knob.exists_in(version)
        ]
        assert len(values) >= 0.6 * len(there), sorted(values)
        left = {knob: value for knob, value in got.knobs.items() if asked.knobs[knob] is None}
        assert Configuration(name, {**asked.knobs, **left}) == got, command.argv
        ran += 1
    assert ran > 0, "none of them starts"
