"""A command is rewritten for another version of its engine: its knobs survive, or what that version
lacks is named."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as some

from autotune.base.errors import BadInput
from autotune.engines.command import Command, Configuration, Scalar
from autotune.engines.context import Context, default_of, effective
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.registry import engine, recognise, split_command
from autotune.engines.rewrite import rewrite
from tests.engines.settings import OURS, R1, V32, context

SGLANG, VLLM = f"python3 -m sglang.launch_server --model-path {V32}", f"vllm serve {V32}"
PAIRS = [
    (name, model, old, new)
    for name in OURS
    for model in (V32, R1)
    for old, new in permutations(engine(name).card.versions, 2)
]
WRITTEN = [
    # DP attention: a size of its own, the older pair of options, and one option beside --tp-size.
    (
        "--tp-size 8 --attn-dp-size 8",
        "0.5.23",
        "0.5.3",
        "--tp-size 8 --dp-size 8 --enable-dp-attention",
    ),
    (
        "--tp 8 --attn-dp-size=4 --random-seed 7",
        "0.5.23",
        "0.5.9",
        "--random-seed 7 --tp-size 8 --dp-size 4 --enable-dp-attention",
    ),
    ("--tp-size 8 --attn-dp-size 8", "0.5.23", "0.4.3.post2", "--tp-size 8 --enable-dp-attention"),
    # Experts: a switch beside their size until 0.4.6.
    ("--tp-size 8 --ep-size 8", "0.5.9", "0.4.3.post2", "--tp-size 8 --enable-ep-moe --ep-size 8"),
    ("--tp-size 8 --enable-ep-moe --ep-size 8", "0.4.3.post2", "0.5.9", "--tp-size 8 --ep-size 8"),
]
KEPT = [
    (f"{SGLANG} --tp-size 8 --dp-size 8 --enable-dp-attention", "0.5.3", "0.5.23"),
    (f"{SGLANG} --tp 8 --attn-dp-size 8 --log-level debug", "0.5.23", "0.5.23"),
    (f"{SGLANG} --tp 8 --mem-frac 0.8 --log-level debug", "0.5.23", "0.5.9"),
    (f"{VLLM} -tp 8 --max_num_seqs 64 --no-enable-prefix-caching", "0.33.0", "0.13.0"),
    (
        f"VLLM_USE_DEEP_GEMM=0 {VLLM} -tp 8 --speculative-config.num_speculative_tokens 2",
        "0.13.0",
        "0.33.0",
    ),
]


def test_the_pairs_are_of_three_engines_and_of_every_version() -> None:
    assert {name for name, *_ in PAIRS} == {"sglang", "tensorrt_llm", "vllm"}
    assert len(PAIRS) >= 60


def written(typed: str, old: str, new: str, model: str = V32) -> tuple[Command, list[str]]:
    command = split_command(typed)
    return rewrite(recognise(command.argv), command, context(old, model), context(new, model))


@pytest.mark.parametrize(("options", "old", "new", "expected"), WRITTEN)
def test_knobs_are_written_in_the_other_version_s_options(
    options: str, old: str, new: str, expected: str
) -> None:
    begins = SGLANG.replace(V32, R1)
    command, notes = written(f"{begins} {options}", old, new, R1)
    assert command.shell() == f"{begins} {expected}"
    assert len(notes) == 1
    assert notes[0].startswith("wrote ")
    assert notes[0].endswith(f" for SGLang {new}")


@pytest.mark.parametrize(("typed", "old", "new"), KEPT)
def test_what_the_other_version_reads_alike_stays_as_it_was_typed(
    typed: str, old: str, new: str
) -> None:
    assert written(typed, old, new) == (split_command(typed), [])


def test_other_options_stay_and_renamed_ones_are_translated() -> None:
    typed = f"A=1 {SGLANG} --served-model-name chat --tp-size 8 --cuda-graph-max-bs-decode 64 --attn-dp-size 8 --host ::"
    command, notes = written(typed, "0.5.23", "0.5.3")
    assert command.shell() == (
        f"A=1 {SGLANG} --served-model-name chat --cuda-graph-max-bs 64 --host :: --tp-size 8 --dp-size 8 "
        "--enable-dp-attention"
    )
    assert notes == [
        "translated --cuda-graph-max-bs-decode to --cuda-graph-max-bs for SGLang 0.5.3",
        "wrote --tp-size 8 --attn-dp-size 8 as --tp-size 8 --dp-size 8 --enable-dp-attention for SGLang 0.5.3",
    ]


@pytest.mark.parametrize(
    ("typed", "old", "new", "why"),
    [
        (
            f"{SGLANG} --tp-size 8 --attn-dp-size 4",
            "0.5.23",
            "0.4.3.post2",
            "no option for tensor_parallel=2, data_par",
        ),
        (
            f"{SGLANG} --tp-size 8 --ep-size 8 --moe-a2a-backend deepep",
            *("0.5.23", "0.4.3.post2", "moe_all_to_all='deepep', which began with 0.5"),
        ),
        (
            f"{SGLANG} --tp-size 8 --enable-http2",
            "0.5.23",
            "0.5.3",
            "no option for --enable-http2, which is in 0.5.12.post1 to 0.5.23",
        ),
        (
            f"{VLLM} -tp 8 --performance-mode throughput",
            "0.33.0",
            "0.11.0",
            "performance_mode='throughput', which began with 0.17",
        ),
    ],
)
def test_what_the_other_version_lacks_is_named_with_the_versions_that_have_it(
    typed: str, old: str, new: str, why: str
) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        written(typed, old, new)
    assert "did you mean" not in str(refused.value)


@cache
def candidates(name: str, model: str, version: str) -> list[Configuration]:
    return enumerate_engine(engine(name).card, context(version, model)).configurations


def runs(name: str, command: Command, judged: Context) -> Configuration:
    kind = engine(name)
    return effective(kind.card, kind.knobs(kind.parse(command, judged.version), judged), judged)


def by_default(name: str, knob: str, configuration: Configuration, judged: Context) -> Scalar:
    return default_of(
        engine(name).card.knobs[knob], judged.scope(configuration.knobs), judged.version
    )


# Enumerates the candidates of every version with a table, 21 of three engines.
@pytest.mark.e2e
@settings(max_examples=150)
@given(
    # Filtered when drawn: every process that collects this file would enumerate all candidates.
    pair=some.sampled_from(PAIRS).filter(lambda pair: bool(candidates(*pair[:3]))),
    data=some.data(),
)
def test_the_knobs_of_a_candidate_survive_there_and_back(
    pair: tuple[str, str, str, str], data: some.DataObject
) -> None:
    """On the other version each knob that a candidate sets has its value; the way back gives the
    candidate again."""
    name, model, old, new = pair
    kind, here, there = engine(name), context(old, model), context(new, model)
    one = data.draw(some.sampled_from(candidates(name, model, old)))
    command = kind.command(one, here)
    try:
        moved, _ = rewrite(kind, command, here, there)
    except BadInput as refused:
        why = str(refused)
        moved = None
    if moved is None:
        assert kind.card.versions.index(new) < kind.card.versions.index(old), (
            "a newer version lacks nothing"
        )
        assert (
            why.startswith(f"{kind.card.title} {new} has no option for ") or "invalid choice" in why
        )
        return
    meant = runs(name, moved, there)
    chosen = {
        knob for knob, value in one.knobs.items() if value != by_default(name, knob, one, here)
    }
    assert {knob: meant.knobs[knob] for knob in chosen} == {
        knob: one.knobs[knob] for knob in chosen
    }
    target(len(chosen))
    back, _ = rewrite(kind, moved, there, here)
    again = runs(name, back, here)
    # A value that is the other version's default stands in no option there.
    lost = {knob for knob in one.knobs if again.knobs[knob] != one.knobs[knob]}
    assert all(meant.knobs[knob] == by_default(name, knob, meant, there) for knob in lost)
