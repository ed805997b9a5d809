"""Knobs and engine versions by the names that people type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.base.errors import BadInput
from autotune.engines.command import Command
from autotune.engines.engine import Engine
from autotune.engines.library import Library
from autotune.engines.registry import engine, names
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.names import knob_named
from tests.tuner.prepare.settings import LIBRARY, RUN, V32, prepared, said

OURS = ("vllm", "sglang", "tensorrt_llm")
ALL = [engine(name, LIBRARY) for name in OURS]


def only(name: str) -> list[Engine]:
    return [engine(name, LIBRARY)]


@pytest.mark.parametrize(
    ("typed", "knob"),
    [
        ("tensor_parallel", "tensor_parallel"),
        ("tp", "tensor_parallel"),
        ("--tensor-parallel-size", "tensor_parallel"),
        ("dp", "data_parallel"),
        ("pp", "pipeline_parallel"),
        ("ep", "expert_parallel"),
        ("max_num_seqs", "max_running_requests"),
        ("max-num-seqs", "max_running_requests"),
        ("--max-batch-size", "max_running_requests"),
        ("max_num_batched_tokens", "max_batched_tokens"),
        ("chunked-prefill-size", "max_batched_tokens"),
        ("mem-fraction-static", "memory_fraction"),
        ("gpu_memory_utilization", "memory_fraction"),
        ("max-model-len", "context_length"),
        ("enable-prefix-caching", "prefix_caching"),
        ("speculative-num-steps", "speculative_tokens"),
        ("enforce-eager", "enforce_eager"),
    ],
)
def test_a_knob_answers_to_the_engines_own_options(typed: str, knob: str) -> None:
    assert knob_named(typed, ALL, LIBRARY) == knob


@pytest.mark.parametrize(
    ("typed", "engines", "said"),
    [
        (
            "tp",
            only("sglang"),
            "did you mean 'tensor_parallel' (GPUs that share one attention replica; --tp-size is",
        ),
        ("disable_radix_cache", ALL, "did you mean 'prefix_caching' (reuse the KV cache"),
        ("VLLM_USE_DEEP_GEMM", ALL, "did you mean 'deep_gemm'"),
        ("dtype", ALL, "did you mean 'kv_cache_dtype'"),
        ("kv", ALL, "did you mean 'kv_cache_dtype', 'memory_fraction'"),
        ("max_num_sequences", only("sglang"), "did you mean 'max_num_seqs'?"),
        ("enforce_eager", only("sglang"), "unknown knob 'enforce_eager'. Known: "),
        ("", only("vllm"), "unknown knob ''. Known: api_server_count, async_scheduling"),
    ],
)
def test_another_name_is_answered_with_the_knob(
    typed: str, engines: list[Engine], said: str
) -> None:
    with pytest.raises(BadInput) as told:
        knob_named(typed, engines, LIBRARY)
    assert said in str(told.value)


def test_an_engine_that_is_not_searched_lends_its_names() -> None:
    assert knob_named("max_num_seqs", only("sglang"), LIBRARY) == "max_running_requests"


def test_the_names_are_those_of_the_card() -> None:
    kind = engine("vllm", LIBRARY)
    knob = kind.card.knobs["max_running_requests"]
    emit = [knob.emit[0].model_copy(update={"args": ["--as-many-as", "{max_running_requests}"]})]
    changed = knob.model_copy(update={"emit": emit, "read": []})
    card = kind.card.model_copy(
        update={"knobs": {**kind.card.knobs, "max_running_requests": changed}}
    )
    assert knob_named("as-many-as", [type(kind)(card)], LIBRARY) == "max_running_requests"
    with pytest.raises(BadInput):
        knob_named("as-many-as", [kind], LIBRARY)
    assert set(OURS) <= set(names())


def test_a_pin_by_an_option_s_name_is_the_knob_s_and_says_so() -> None:
    spec = build_spec(replace(RUN, pins=["tp=8", "--max-num-seqs=512"]))
    assert spec.pins == {"tensor_parallel": 8, "max_running_requests": 512}
    assert spec.notes[0] == "--set tp=8 is read as tensor_parallel=8, for every searched engine"
    assert "tensor_parallel=0" in said(replace(RUN, pins=["tp=0"]))


@pytest.mark.parametrize(
    ("name", "version", "near"),
    [
        ("vllm", "0.31.0", "0.30.0"),
        ("vllm", "0.12.0", "0.11.0"),
        ("vllm", "0.7.3", "0.11.0"),
        ("vllm", "9.9", "0.33.0"),
        ("sglang", "0.5.5", "0.5.6.post2"),
        ("sglang", "0.5.8", "0.5.9"),
        ("sglang", "0.5.21", "0.5.20"),
        ("tensorrt_llm", "1.2.2", "1.2.1"),
        ("tensorrt_llm", "1.4.0rc1", "1.3.0rc24"),
    ],
)
def test_a_version_without_a_table_borrows_the_nearest_one_s(
    name: str, version: str, near: str
) -> None:
    kind = engine(name, LIBRARY)
    assert kind.version(version) == version, "ranges see its own number"
    assert f"{kind.card.title} {version}'s flags are not bundled; using those of {near}" in (
        kind.borrowing(version) or ""
    )
    assert kind.borrowing(near) is None
    table, lender = kind.table(version), kind.table(near)
    assert table.borrowed
    assert table.flags >= lender.flags
    assert {n: table.defaults[n] for n in lender.defaults} == lender.defaults, (
        "of one name the nearest one's counts"
    )


def test_a_study_of_a_version_without_a_table() -> None:
    asked = prepared(replace(RUN, engines=["vllm==0.25.0"]))
    assert [(e.name, e.version) for e in asked.spec.engines] == [("vllm", "0.25.0")]
    assert asked.spec.notes[0].startswith(
        "vLLM 0.25.0's flags are not bundled; using those of 0.24.0"
    )
    base = asked.candidates.baseline_candidate
    assert base.configuration.knobs["attention_backend"] == "FLASH_ATTN_MLA_SPARSE", (
        "0.24's default is another"
    )
    assert asked.command_of(base).argv[:5] == ("vllm", "serve", V32, "--tensor-parallel-size", "8")


def test_every_command_of_a_version_between_tables_is_understood_by_what_it_borrows() -> None:
    """SGLang 0.5.14 took new names that its nearest table has not."""
    asked = prepared(replace(RUN, engines=["sglang==0.5.14"]))
    kind = asked.spaces["sglang"].engine
    assert len(asked.candidates) > 1
    for candidate in asked.candidates.items:
        command = asked.command_of(candidate)
        kind.parse(command, "0.5.14")
        assert "unchecked" not in (kind.borrowing("0.5.14", command.argv) or "")


@pytest.mark.parametrize(
    ("name", "version", "words", "unknown"),
    [
        # SGLang 0.5.4 has the parser `glm` (function_call_parser.py), 0.5.3, its nearest table, has
        # not.
        (
            "sglang",
            "0.5.4.post2",
            "python3 -m sglang.launch_server --model-path m --tp 4 --tool-call-parser glm",
            "",
        ),
        (
            "vllm",
            "0.6.4",
            "vllm serve m -tp 8 --enforce-eager --num-scheduler-steps 15",
            "--num-scheduler-steps",
        ),
        (
            "vllm",
            "0.6.4",
            "vllm serve m -tp 8 --enforce_eager --num_scheduler_steps=15",
            "--num_scheduler_steps",
        ),
    ],
)
def test_a_borrowed_table_refuses_neither_options_nor_choices(
    name: str, version: str, words: str, unknown: str
) -> None:
    kind = engine(name, LIBRARY)
    parsed = kind.parse(Command(tuple(words.split())), version)
    size = parsed.args["tp_size" if name == "sglang" else "tensor_parallel_size"]
    assert (parsed.model, size) == ("m", 4 if name == "sglang" else 8)
    note = kind.borrowing(version, words.split()) or ""
    assert (f"they lack {unknown}, passed on unchecked" in note) == bool(unknown)
    known = engine(name, LIBRARY).card.versions[0]
    with pytest.raises(BadInput):
        kind.parse(Command((*words.split(), "--of-tomorrow")), known)


def test_a_study_names_the_options_that_a_borrowed_table_lacks_and_what_was_probably_meant() -> (
    None
):
    typed = ["vllm=--enable-prefix-cachinge"]
    baseline = f"vllm serve {V32} -tp 8 --max-num-sequences 8"
    notes = build_spec(
        replace(RUN, engines=["vllm==0.31.0"], engine_args=typed, baseline=baseline)
    ).notes
    note = next(note for note in notes if "unchecked" in note)
    assert "they lack --enable-prefix-cachinge, --max-num-sequences" in note
    assert "did you mean --enable-prefix-caching, --max-num-seqs?" in note


def test_a_container_of_the_version_that_was_asked_for() -> None:
    spec = build_spec(replace(RUN, on="docker", engines=["vllm==0.30.0"]))
    assert (spec.engines[0].version, spec.images["vllm"]) == ("0.30.0", "vllm/vllm-openai:v0.30.0")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("vllm==", "write engine==version"),
        ("vllm==new", "unknown vllm version 'new'. Known: 0.11.0"),
    ],
)
def test_what_is_no_version(typed: str, told: str) -> None:
    assert told in said(replace(RUN, engines=[typed]))
    assert Library().engine("vllm").versions[0] == "0.11.0"
