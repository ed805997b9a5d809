"""What is known to fail is refused before anything is launched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from tests.tuner.prepare.settings import LIBRARY, RUN, V32, prepared, said


def test_weights_that_no_layout_holds_are_refused_with_the_arithmetic() -> None:
    message = said(replace(RUN, hardware="h100"))
    assert message.startswith(
        "no engine can run on h100 (674 GB of weights, 640 GB of memory on 8 x h100): vllm, sglang: "
        "even in the best layout a GPU needs 86.2 GB for weights and has 85.0 GB"
    )
    half = said(replace(RUN, gpus=4))
    assert "674 GB of weights, 564 GB of memory on 4 x h200" in half


def test_what_may_fit_is_left_to_the_search() -> None:
    """Kimi-K2 leaves 20 GB of each H200, which is too little for its defaults and enough for a
    shorter context."""
    assert prepared(replace(RUN, model="moonshotai/Kimi-K2-Instruct")).spaces
    assert prepare(build_spec(replace(RUN, hardware="h100")), LIBRARY, anywhere=True).spaces, (
        "`space show` shows it"
    )


@pytest.mark.parametrize(
    ("baseline", "why"),
    [
        (f"vllm serve {V32} -tp 6", "must be divisible by tensor parallel size"),
        (f"vllm serve {V32} -tp 16", "one GPU each (rule layout-needs-more-gpus"),
        (f"vllm serve {V32} -tp 8 --max-model-len 512", "maximum context length is exceeded"),
        (f"vllm serve {V32} -tp 8 --attention-backend CUTLASS_MLA", "sparse not supported"),
    ],
)
def test_a_baseline_that_its_engine_refuses_is_refused(baseline: str, why: str) -> None:
    message = said(replace(RUN, baseline=baseline))
    assert message.startswith("--baseline: vLLM 0.33.0 would refuse it (")
    assert why in message


def test_a_baseline_of_an_engine_that_cannot_serve_the_model_there() -> None:
    message = said(replace(RUN, hardware="mi300x", baseline=f"trtllm-serve {V32} --tp_size 8"))
    assert message.startswith("--baseline: TensorRT-LLM 1.2.1 cannot serve it: ")
    assert "not on AMD GPUs" in message


def test_a_baseline_that_is_only_pointless_is_launched() -> None:
    assert prepared(replace(RUN, baseline=f"vllm serve {V32} -tp 4")).baseline_command is not None


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("FooBarForCausalLM", ["vLLM", "SGLang", "TensorRT-LLM"]),
        ("OPTForCausalLM", ["TensorRT-LLM"]),
        ("LlamaForCausalLM", []),
    ],
)
def test_an_architecture_that_an_engine_is_not_known_to_have_is_named(
    tmp_path: Path, name: str, lacking: list[str]
) -> None:
    """It may be served all the same, by a plug-in of the engine: a warning, and no refusal."""
    figures = {
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "vocab_size": 1000,
        "num_attention_heads": 8,
    }
    config = {
        "architectures": [name],
        "max_position_embeddings": 8192,
        "intermediate_size": 1024,
        **figures,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = prepared(replace(RUN, model=str(tmp_path), gpus=1, space=None))
    warned = [note for note in found.spec.notes if note.startswith(f"{name}: ")]
    assert len(warned) == bool(lacking)
    assert all(title in warned[0] for title in lacking)
    assert (
        not warned or [t for t in ("vLLM", "SGLang", "TensorRT-LLM") if t in warned[0]] == lacking
    )


def test_a_number_of_gpus_without_a_layout_is_told_with_those_that_have_one() -> None:
    assert said(replace(RUN, gpus=3)) == "--gpus 3: no layout has 3 GPUs; use one of 1, 2, 4, 8"
