"""GPUStack's own reader on what is exported for it; it needs an environment of its own (908 MB), so
a marker."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.command import Command
from autotune.engines.registry import engine
from autotune.outputs.export import export
from tests.outputs.export import reading
from tests.outputs.export.golden import GOLDEN, STUDIES
from tests.outputs.export.test_containers import with_command
from tests.small_study import MODEL

ODD = (
    '--j={"a": {"b": [1, "x y"]}}',
    "--k",
    "a 'b' \"c\"",
    "-dcp",
    "2",
    "--n",
    "-0.5",
    "--m",
    "one",
    "two",
    "--last",
)


def read(*paths: Path) -> list[dict[str, Any]]:
    environment = os.environ.get("AUTOTUNE_VALIDATORS")
    if not environment:
        pytest.skip("AUTOTUNE_VALIDATORS does not name an environment with gpustack")
    command = [
        Path(environment) / "bin" / "python",
        Path(__file__).with_name("gpustack_reads.py"),
        *paths,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.validators
def test_gpustack_takes_the_winners_and_the_words_are_the_engine_s() -> None:
    for study, told in zip(
        STUDIES, read(*(GOLDEN / study / "gpustack.yaml" for study in STUDIES)), strict=True
    ):
        assert told["errors"] == [], study
        entry = told["entry"]
        name = "vllm" if study == "mi300x-r1" else study.partition("v32-")[2].replace("-", "_")
        assert (
            entry["backend"] == {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "Custom"}[name]
        )
        assert entry["gpu_selector"]["gpus_per_replica"] == 8
        assert ("backend_version" in entry, bool(entry["image_name"])) == (False, True), (
            "they exclude each other"
        )
        if name != "tensorrt_llm":
            card = engine(name).card
            program = [*card.program, *([card.model_flag] if card.model_flag else [])]
            text = (GOLDEN / study / "gpustack.yaml").read_text()
            assert told["words"] == reading.gpustack_words(text, program)[len(program) + 1 :]


@pytest.mark.validators
def test_gpustack_hands_any_words_on_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "gpustack.yaml"
    path.write_text(
        export(
            with_command(Command(("vllm", "serve", MODEL, "--max-model-len", "9000", *ODD))),
            "gpustack",
        )
    )
    (told,) = read(path)
    assert told["words"] == ["--max-model-len", "9000", *ODD]


def test_gpustack_is_told_the_context_length_where_it_would_set_its_own() -> None:
    """Its vLLM and SGLang backends add 8192 where none is named: not what was measured."""
    (document,) = reading.documents(
        export(with_command(Command(("vllm", "serve", MODEL))), "gpustack")
    )
    assert document["backend_parameters"] == ["--max-model-len 163840"]
    named = Command(("vllm", "serve", MODEL, "--max-model-len=9000"))
    (document,) = reading.documents(export(with_command(named), "gpustack"))
    assert document["backend_parameters"] == ["--max-model-len=9000"]
