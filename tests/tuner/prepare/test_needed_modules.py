"""What needs a kernel library that the engine's Python cannot import is left out before anything is
launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.installed import find, lacking_modules
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.options import RunOptions
from tests.engines.stand_ins import executable, python_with
from tests.weight_files import cache

LIBRARY = Library()
MODEL = "deepseek-ai/DeepSeek-V3.2"


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch, deep_ep: str | None) -> Prepared:
    """Prepare a study of a vLLM whose Python has this module ``deep_ep``; None: has none."""
    python = python_with(folder, vllm="0.33.0")
    program = executable(folder / "bin" / "vllm", f"#!{python}\nimport sys\nsys.exit(1)\n")
    if deep_ep is not None:
        (folder / "packages" / "deep_ep.py").write_text(deep_ep)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("HF_HOME", str(folder))
    cache(folder / "hub", MODEL, ["model.safetensors"])
    spec = build_spec(
        RunOptions(MODEL, "h200", engines=("vllm",), on="process", workloads=["random:16:4:8"])
    )
    return prepare(spec, LIBRARY)


def exchanges(made: Prepared) -> set[object]:
    return {candidate.configuration.knobs["moe_all_to_all"] for candidate in made.candidates.items}


BROKEN = "raise ImportError('deep_ep_cpp.so: undefined symbol: _ZN3c105Error')"


@pytest.mark.parametrize("deep_ep", [None, pytest.param(BROKEN, marks=pytest.mark.e2e)])
def test_what_needs_a_module_that_cannot_be_imported_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep_ep: str | None
) -> None:
    made = prepared(tmp_path, monkeypatch, deep_ep)
    assert exchanges(made) == {"allgather_reducescatter"}
    assert made.spec.installed["vllm"].lacking == ("b12x", "deep_ep", "flashinfer", "mori")
    (told,) = [note for note in made.spec.notes if "deep_ep" in note]
    assert (
        "combinations are removed: vLLM's Python cannot import DeepEP (deep_ep); install it there"
        in told
    )
    assert made.candidates.baseline_candidate.configuration.knobs["moe_all_to_all"] is not None


def test_a_module_that_is_there_leaves_all_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared(tmp_path, monkeypatch, "")
    assert exchanges(made) == {"allgather_reducescatter", "deepep_high_throughput"}
    assert not any("deep_ep" in note for note in made.spec.notes)


def test_a_python_that_does_not_answer_is_taken_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_with(tmp_path, vllm="0.33.0")
    (tmp_path / "packages" / "deep_ep.py").write_text("import os; os._exit(1)")
    monkeypatch.setenv("PATH", str(executable(tmp_path / "bin" / "vllm", f"#!{python}\n").parent))
    assert lacking_modules(engine("vllm", LIBRARY).card, find(LIBRARY.engine("vllm"))) == []
