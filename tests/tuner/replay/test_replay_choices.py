"""Which rows may be tried, which is the baseline, what stands for its command, and what a launch
answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.engines.command import Configuration
from autotune.tuner.backends import EvaluationSetup, evaluator_for
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, no_effect_by_rule, prepare
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import Role, State, Trial

TABLE = """engine,tensor_parallel,data_parallel,kv_cache_dtype,magic,failure,total_token_throughput,p99_ttft_ms
foo,8,1,,2,,100,9
vllm,1,8,bfloat16,,,7000,2500
vllm,8,1,bfloat16,,,6000,2000
vllm,8,,auto,,,6100,2000
sglang,1,8,fp8_e4m3,,,9000,1800
sglang,1,8,fp8_e4m3,,,9500,1700
sglang,1,8,fp8_e4m3,,oom,,
sglang,8,1,auto,3,,6500,2200
"""
TWO_LOADS = """engine,a,total_token_throughput,long:total_token_throughput
foo,1,10,100
foo,1,11,
foo,2,12,120
"""


def prepared(folder: Path, table: str = TABLE, **asked: Any) -> Prepared:
    path = folder / "table.csv"
    path.write_text(table)
    request = RunOptions("deepseek-ai/DeepSeek-V3.2", "h200", on=f"replay:{path}", **asked)
    spec = build_spec(request)
    return prepare(spec, library_of(spec))


def baseline(found: Prepared) -> Configuration:
    return found.candidates.baseline_candidate.configuration


def answer(found: Prepared, position: int, index: int = 0) -> Any:
    candidate = found.candidates.items[position]
    trial = Trial(
        number=index,
        role=Role.SEARCH,
        configuration=candidate.configuration,
        engine_version=candidate.engine_version,
        command=found.command_of(candidate),
        workloads=found.spec.workloads,
        launch_index=index,
    )
    return evaluator_for(EvaluationSetup(found.spec, found.library, Path(".")))(trial)


def test_rows_are_the_candidates_and_the_baseline_is_vllm_next_to_its_defaults(
    tmp_path: Path,
) -> None:
    found = prepared(tmp_path)
    assert [c.configuration.engine for c in found.candidates.items] == [
        "foo",
        "vllm",
        "vllm",
        "vllm",
        "sglang",
        "sglang",
    ]
    # All of a row's knobs are at their defaults in two rows: the first of them.
    assert baseline(found).knobs == {
        "tensor_parallel": 8,
        "data_parallel": 1,
        "kv_cache_dtype": "bfloat16",
        "magic": None,
    }
    only = prepared(tmp_path, engines=["sglang", "foo"])
    assert baseline(only).engine == "sglang"
    assert baseline(only).knobs["kv_cache_dtype"] == "auto", "three of four, against one of four"


def test_a_baseline_may_be_named_and_may_stand_outside_of_what_is_searched(tmp_path: Path) -> None:
    found = prepared(tmp_path, engines=["sglang"], baseline="engine=VLLM, data_parallel=8.0")
    assert [c.configuration.engine for c in found.candidates.items] == ["sglang", "sglang", "vllm"]
    assert baseline(found).knobs["data_parallel"] == 8
    assert (
        baseline(prepared(tmp_path, baseline="engine=vllm,data_parallel=")).knobs["kv_cache_dtype"]
        == "auto"
    )


def test_pins_leave_the_rows_that_have_them(tmp_path: Path) -> None:
    assert len(prepared(tmp_path, pins=["tensor_parallel=8", "engine=vllm"]).candidates) == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"baseline": "engine=sglang"}, ["2 rows", "tensor_parallel is 1, 8"]),
        ({"baseline": "engine=foo,tensor_parallel=1"}, ["no row", "tensor_parallel is 8"]),
        ({"baseline": "vllm serve x"}, ["column=value"]),
        ({"baseline": "tp=8"}, ["unknown column 'tp'", "tensor_parallel"]),
        ({"engines": ["trtllm"]}, ["tensorrt_llm", "foo, sglang, vllm"]),
        (
            {"engines": ["foo"], "pins": ["magic=2", "data_parallel=8"]},
            ["data_parallel=8 removes the last", "is 1"],
        ),
        ({"pins": ["magic=7"]}, ["no row", "magic is 2, 3, empty"]),
        (
            {"objective": "output_throughput"},
            ["output_throughput", "p99_ttft_ms, total_token_throughput"],
        ),
        ({"slos": ["p99_tpot_ms<=9"]}, ["p99_tpot_ms", "its metrics"]),
        ({"workloads": ["sharegpt", "long"]}, ["long", "'long:total_token_throughput'"]),
        (
            {"engine_args": ["vllm=--x"], "images": ["vllm=y"]},
            ["--engine-arg and --image", "a replay launches nothing"],
        ),
        (
            {"table": TABLE.replace("6000,2000", ",2000")},
            [":4:", "total_token_throughput is missing"],
        ),
        ({"table": TABLE.replace("6000,2000", "0,2000")}, [":4:", "fill in 'failure'"]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_answered_is_refused(
    tmp_path: Path, asked: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(BadInput) as refusal:
        prepared(tmp_path, **asked)
    for word in words:
        assert word in str(refusal.value)


def test_rows_of_one_configuration_are_its_launches_in_turn(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    results = [answer(found, 4, index) for index in range(4)]
    assert [r.state for r in results] == [
        State.COMPLETE,
        State.COMPLETE,
        State.FAILED,
        State.COMPLETE,
    ]
    values = [r.metrics["sharegpt"]["total_token_throughput"] for r in results if r.metrics]
    assert values == [9000, 9500, 9000]
    assert {r.evidence for r in results} == {Evidence.REPLAYED}


def test_noise_is_one_factor_per_launch_and_the_same_for_the_same_launch(tmp_path: Path) -> None:
    found = prepared(tmp_path, noise=0.1, seed=3)
    one, again, other = (answer(found, 1, index).metrics["sharegpt"] for index in (0, 0, 1))
    assert one == again
    assert one != other
    factor = one["total_token_throughput"] / 7000
    assert factor != 1
    assert one["p99_ttft_ms"] == pytest.approx(2500 / factor)


def test_a_second_load_is_answered_where_the_table_has_it(tmp_path: Path) -> None:
    found = prepared(tmp_path, TWO_LOADS, workloads=["anything", "long"])
    second = answer(found, 0, 1).metrics
    assert second["anything"]["total_token_throughput"] == 11
    assert second["long"]["total_token_throughput"] == 100, "the row before it has the second load"
    with pytest.raises(BadInput, match=r":3: total_token_throughput of long is missing"):
        prepared(tmp_path, TWO_LOADS, workloads=["long"])


def test_a_row_has_its_engine_s_command_where_the_row_tells_it(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    commands = [found.command_of(candidate) for candidate in found.candidates.items]
    assert commands[0].argv == (
        "replayed:foo",
        "--tensor_parallel=8",
        "--data_parallel=1",
        "--magic=2",
    )
    assert commands[1].argv[:5] == (
        "vllm",
        "serve",
        "deepseek-ai/DeepSeek-V3.2",
        "--data-parallel-size",
        "8",
    )
    assert "--tensor-parallel-size" in commands[2].argv
    # Empty is not set, and so is what is left to the engine.
    assert not {"--data-parallel-size", "--kv-cache-dtype"} & set(commands[3].argv)
    assert "--attn-dp-size" in commands[4].argv
    assert commands[5].argv[0] == "replayed:sglang", "no option of SGLang is called magic"


def test_foreign_words_become_the_engine_s_and_a_note_says_so(tmp_path: Path) -> None:
    table = """engine,tensor_parallel,kv_cache_dtype,moe_all_to_all,total_token_throughput
sglang,8,fp8,none,1
sglang,8,bfloat16,none,2
vllm,8,odd,none,3
"""
    found = prepared(tmp_path, table)
    argv = found.command_of(found.candidates.items[0]).argv
    assert argv[argv.index("--kv-cache-dtype") + 1] == "fp8_e4m3"
    assert found.candidates.items[0].configuration.knobs["kv_cache_dtype"] == "fp8", (
        "a row stays as it is"
    )
    words, unknown = found.spec.notes[-2:]
    assert "sglang's kv_cache_dtype fp8 is fp8_e4m3" in words
    assert "vllm's moe_all_to_all none is allgather_reducescatter" in words
    assert "bfloat16" not in words
    assert "vllm's kv_cache_dtype odd" in unknown


def test_columns_may_be_options_and_versions_unknown_to_us_have_no_command(tmp_path: Path) -> None:
    table = """engine,engine_version,--max-num-seqs,enable_eplb,enforce_eager,total_token_throughput
vllm,0.13.0,64,false,true,1
vllm,99.0,64,false,true,2
vllm,0.13.0,many,false,true,3
"""
    found = prepared(tmp_path, table)
    commands = [found.command_of(candidate).argv for candidate in found.candidates.items]
    assert {"--max-num-seqs", "64", "--enforce-eager"} < set(commands[0])
    twice = "engine,engine_version,--reasoning-parser,total_token_throughput\nsglang,0.5.6.post2,deepseek-v3,1\n"
    found = prepared(tmp_path, twice)
    assert found.command_of(found.candidates.items[0]).argv.count("--reasoning-parser") == 1, (
        "said by the card, too"
    )
    assert "--enable-eplb" not in commands[0]
    assert [argv[0] for argv in commands] == ["vllm", "replayed:vllm", "replayed:vllm"]


def test_options_may_be_spelt_as_on_a_command_line(tmp_path: Path) -> None:
    table = (
        "engine,engine_version,-tp,--enable-eplb,total_token_throughput\nvllm,0.13.0,4,FALSE,1\n"
    )
    argv = prepared(tmp_path, table).command_of(prepared(tmp_path, table).candidates.items[0]).argv
    assert argv[:3] == ("vllm", "serve", "deepseek-ai/DeepSeek-V3.2")
    assert argv[-2:] == ("-tp", "4")
    assert not {"--tensor-parallel-size", "--enable-eplb"} & set(argv)


def test_an_option_without_effect_is_named_where_the_columns_are_no_knobs(tmp_path: Path) -> None:
    """With one replica SGLang turns attention data parallelism off."""
    table = "engine,engine_version,--tp-size,--enable-dp-attention,total_token_throughput\nsglang,0.5.6.post2,8,true,1\n"
    found = prepared(tmp_path, table)
    candidate = found.candidates.items[0]
    command = found.command_of(candidate)
    trial = Trial(
        0, Role.SEARCH, candidate.configuration, candidate.engine_version, command, ("sharegpt",)
    )
    assert "--enable-dp-attention" in {row.knob for row in no_effect_by_rule(found, trial)}
