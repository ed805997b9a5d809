"""Names that an engine gave up are translated into those of the version at hand, in both
directions, and told."""

from __future__ import annotations

import pytest

from autotune.base.errors import BadInput
from autotune.engines.entry import in_range
from autotune.engines.registry import engine, recognise, split_command
from autotune.engines.rewrite import translate, translate_arguments, translate_typed
from tests.engines.settings import LIBRARY, VERSIONS, set_by

V32 = "deepseek-ai/DeepSeek-V3.2"
VLLM, SGLANG, TRT = (
    f"vllm serve {V32}",
    f"python3 -m sglang.launch_server --model-path {V32}",
    f"trtllm-serve {V32}",
)

TRANSLATED = [
    (f"{SGLANG} --nsa-prefill-backend fa3", "0.5.23", f"{SGLANG} --dsa-prefill-backend fa3"),
    (f"{SGLANG} --nsa-decode-backend=fa3", "0.5.23", f"{SGLANG} --dsa-decode-backend=fa3"),
    (
        f"{SGLANG} --cuda-graph-max-bs 64 --tp 8",
        "0.5.23",
        f"{SGLANG} --cuda-graph-max-bs-decode 64 --tp 8",
    ),
    # Over two renamings, the values with them.
    (
        f"{SGLANG} --nsa-prefill flashmla_decode",
        "0.5.23",
        f"{SGLANG} --dsa-prefill-backend flashmla_kv",
    ),
    (
        f"{SGLANG} --dsa-prefill-backend flashmla_kv",
        "0.5.3",
        f"{SGLANG} --nsa-prefill flashmla_decode",
    ),
    (f"{SGLANG} --dsa-decode-backend fa3", "0.5.6", f"{SGLANG} --nsa-decode-backend fa3"),
    (f"{SGLANG} --cuda-graph-max-bs-decode 64", "0.5.6", f"{SGLANG} --cuda-graph-max-bs 64"),
    (
        f"VLLM_ATTENTION_BACKEND=FLASHMLA A=1 {VLLM} -tp 8",
        "0.32",
        f"A=1 {VLLM} -tp 8 --attention-backend FLASHMLA",
    ),
    (
        f"{VLLM} --attention-backend FLASHMLA -tp 8",
        "0.11",
        f"VLLM_ATTENTION_BACKEND=FLASHMLA {VLLM} -tp 8",
    ),
    (f"{VLLM} --attention_backend=FLASHMLA", "0.11", f"VLLM_ATTENTION_BACKEND=FLASHMLA {VLLM}"),
    # What is given under the name that works wins.
    (
        f"VLLM_ATTENTION_BACKEND=A {VLLM} --attention-backend B",
        "0.32",
        f"{VLLM} --attention-backend B",
    ),
    (f"{TRT} --config c.yaml", "1.0", f"{TRT} --extra_llm_api_options c.yaml"),
]
KEPT = [
    (f"{SGLANG} --nsa-prefill-backend fa3", "0.5.6"),
    (f"{SGLANG} --dsa-prefill-backend fa3 --cuda-graph-max-bs-decode 64", "0.5.23"),
    (f"VLLM_ATTENTION_BACKEND=FLASHMLA {VLLM}", "0.13"),
    (f"{VLLM} --attention-backend FLASHMLA", "0.13"),
    (f"{TRT} --extra_llm_api_options c.yaml", "1.2"),
    (f"{SGLANG} --nsa-prefill-backend", "0.5.23"),
    (f"{SGLANG} --max-runing-requests 4", "0.5.23"),
    # The first version here has no sparse attention under any name.
    (f"{SGLANG} --dsa-prefill-backend fa3", "0.4.3.post2"),
]


@pytest.mark.parametrize(("typed", "version", "expected"), TRANSLATED)
def test_a_name_that_does_not_work_becomes_the_one_that_does(
    typed: str, version: str, expected: str
) -> None:
    command = split_command(typed)
    kind = recognise(command.argv)
    known = kind.version(version)
    translated, notes = translate(kind, command, known)
    assert translated.shell() == expected
    assert len(notes) == 1
    assert notes[0].startswith("translated ")
    assert notes[0].endswith(f" for {kind.card.title} {known}")
    assert translate(kind, translated, known) == (translated, []), "a second time changes nothing"


@pytest.mark.parametrize(("typed", "version"), KEPT)
def test_a_command_in_the_version_s_own_names_is_kept(typed: str, version: str) -> None:
    command = split_command(typed)
    kind = recognise(command.argv)
    assert translate(kind, command, kind.version(version)) == (command, [])


def test_a_translated_command_means_what_was_meant() -> None:
    typed = f"{SGLANG} --tp 8 --nsa-prefill flashmla_decode"
    notes: list[str] = []
    words = translate_typed(split_command(typed).typed(), "0.5.23", LIBRARY, notes.append)
    assert notes == ["translated --nsa-prefill to --dsa-prefill-backend for SGLang 0.5.23"]
    assert set_by(" ".join(words), "0.5.23") == {"prefill_attention_backend": "flashmla_kv"}
    with pytest.raises(BadInput, match="unrecognized arguments"):
        set_by(typed, "0.5.23")


def test_a_name_of_the_older_table_that_a_version_borrows_is_read() -> None:
    typed = set_by(f"{SGLANG} --cuda-graph-max-bs 64 --tp 8", "0.5.14")
    assert engine("sglang").table("0.5.14").borrowed
    assert typed == {"cuda_graph_max_batch": 64}


def test_an_empty_variable_becomes_no_option_without_a_value() -> None:
    command = split_command(f"VLLM_ATTENTION_BACKEND= {VLLM} -tp 8")
    translated, notes = translate(engine("vllm"), command, "0.32.0")
    assert translated.shell() == f"{VLLM} -tp 8"
    assert notes == [
        "removed VLLM_ATTENTION_BACKEND, which is empty and would be --attention-backend for vLLM 0.32.0"
    ]


def test_arguments_that_are_passed_through_are_translated() -> None:
    assert translate_arguments(
        engine("sglang"), "--trust-remote-code --cuda-graph-max-bs 64", "0.5.23"
    ) == (
        "--trust-remote-code --cuda-graph-max-bs-decode 64",
        ["translated --cuda-graph-max-bs to --cuda-graph-max-bs-decode for SGLang 0.5.23"],
    )
    assert translate_arguments(engine("vllm"), "VLLM_ATTENTION_BACKEND=X --seed 1", "0.32.0")[
        0
    ] == ("--seed 1 --attention-backend X")
    assert (
        translate_arguments(engine("vllm"), "--attention-backend X", "0.11.0")[0]
        == "VLLM_ATTENTION_BACKEND=X"
    )
    assert translate_arguments(engine("vllm"), "--seed  '1'", "0.32.0") == ("--seed  '1'", []), (
        "kept as typed"
    )


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_the_ranges_are_those_of_the_parsers(name: str, version: str) -> None:
    """A flag is in a shipped table exactly where the card says that it works."""
    flags = engine(name).table(version).flags
    assert engine(name).card.renamed
    for entry in engine(name).card.renamed:
        versions_of: dict[str, list[str]] = {}
        for other in engine(name).card.renamed:
            versions_of.setdefault(other.old, []).append(other.old_versions)
            versions_of.setdefault(other.new, []).append(other.new_versions)
        for flag in (entry.old, entry.new):
            # Up to 0.5.2 SGLang had no sparse attention, and so none of these.
            if flag.startswith("--") and version != "0.4.3.post2":
                assert (flag in flags) == any(
                    in_range(version, held) for held in versions_of[flag]
                ), flag


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt_llm"])
def test_words_of_tables_are_none_of_the_card_s_and_mean_one_that_it_has(name: str) -> None:
    card = engine(name).card
    for entry in card.words:
        knob = card.knobs.get(entry.column)
        assert knob is None or knob.refuses(entry.word), "a value of its own needs no other"
        assert entry.means is None if knob is None else not knob.refuses(entry.means)
    assert card.in_own_words({"kv_cache_dtype": "fp8"})["kv_cache_dtype"] == (
        "fp8_e4m3" if name == "sglang" else "fp8"
    )
