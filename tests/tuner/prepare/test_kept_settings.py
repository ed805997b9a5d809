"""What the user's command sets stands in every candidate of its engine, or is searched there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.engines.command import Scalar
from autotune.engines.enumeration import Candidate
from autotune.engines.options import dotted, read_from
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.home import library_for
from tests.tuner.prepare.settings import RUN, prepared

SMALL = replace(RUN, space=None, model="Qwen/Qwen3-8B", hardware="h200", gpus=1)
R1 = replace(SMALL, model="deepseek-ai/DeepSeek-R1", gpus=8)

POOLS = {
    "vllm": [
        "--stream-interval 10",
        "--attention-backend FLASHINFER",
        "--block-size 32",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--kv-cache-dtype fp8",
        "--gpu-memory-utilization 0.8",
        "--max-num-seqs 300",
        "--max-num-batched-tokens 5000",
        "--max-model-len 20000",
        "--seed 3",
        "--compilation-config.cudagraph_mode FULL",
        "VLLM_LOGGING_LEVEL=DEBUG",
    ],
    "sglang": [
        "--stream-interval 10",
        "--attention-backend flashinfer",
        "--disable-radix-cache",
        "--context-length 20000",
        "--chunked-prefill-size 5000",
        "--schedule-conservativeness 0.5",
        "--mem-fraction-static 0.7",
        "--num-continuous-decode-steps 4",
        "--max-running-requests 300",
        "--enable-mixed-chunk",
        "SGLANG_LOG_MS=1",
    ],
    "tensorrt_llm": [
        "--max_batch_size 300",
        "--max_num_tokens 5000",
        "--num_postprocess_workers 4",
        "--max_seq_len 20000",
        "TRTLLM_ENABLE_PDL=1",
    ],
}
KEYS = {
    "stream_interval": 20,
    "kv_cache_config.dtype": "fp8",
    "kv_cache_config.enable_block_reuse": False,
    "kv_cache_config.enable_partial_reuse": False,
    "kv_cache_config.tokens_per_block": 64,
    "cuda_graph_config.enable_padding": True,
    "cuda_graph_config.max_batch_size": 300,
    "moe_config": {},
}
PROGRAMS = {
    "vllm": "vllm serve Qwen/Qwen3-8B",
    "sglang": "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B",
    "tensorrt_llm": "trtllm-serve Qwen/Qwen3-8B",
}


def others_of(found: Prepared) -> list[Candidate]:
    """Candidates but the baseline itself and what vendors published."""
    chosen = {found.candidates.baseline, *found.candidates.recipes}
    return [one for i, one in enumerate(found.candidates.items) if i not in chosen]


def values(found: Prepared, knob: str) -> set[Scalar]:
    return {one.configuration.knobs[knob] for one in others_of(found)}


@pytest.mark.parametrize("name", POOLS)
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_what_a_command_says_is_read_back_from_every_candidate_s_unless_it_is_searched(
    name: str, tmp_path: Path, data: st.DataObject
) -> None:
    asked = data.draw(st.sets(st.sampled_from(POOLS[name]), min_size=1, max_size=6).map(sorted))
    keys = data.draw(st.sets(st.sampled_from(sorted(KEYS)))) if name == "tensorrt_llm" else ()
    own = [PROGRAMS[name], *(word for word in asked if word.startswith("-"))]
    if keys:
        document: dict[str, object] = {}
        for key in keys:
            parent, _, last = key.rpartition(".")
            level = document.setdefault(parent, {}) if parent else document
            assert isinstance(level, dict)
            level[last] = KEYS[key]
        file = tmp_path / "own.yaml"
        file.write_text(yaml.safe_dump(document))
        own.append(f"--config {file}")
    command = " ".join([*(word for word in asked if not word.startswith("-")), *own])
    on = data.draw(st.sampled_from(["simulator", "docker"]))
    found = prepared(replace(SMALL, engines=[name], baseline=command, on=on))
    space, version = found.spaces[name], found.spaces[name].context.version
    typed = space.engine.parse(found.command_of(found.candidates.items[0]), version)
    searched = {knob for knob in space.own if knob not in space.held}
    for knob in searched:
        assert len(values(found, knob)) > 1
        assert space.own[knob] in values(found, knob), f"{knob} of the baseline is tried"
    reads = {knob: read_from(space.engine, knob, version) for knob in space.card.knobs}
    free = frozenset[str]().union(*(reads[knob] for knob in searched))
    varied = frozenset[str]().union(
        *(p for knob, p in reads.items() if len(values(found, knob)) > 1)
    )
    held = {knob: value for knob, value in space.held.items() if not reads[knob] & varied}
    assert others_of(found)
    for one in others_of(found):
        read = space.engine.parse(found.command_of(one), version)
        for option in space.engine.table(version).options:
            if option.dest in typed.given - {"extra_llm_api_options"} and not option.paths & free:
                assert read.args[option.dest] == typed.args[option.dest], option.dest
        assert read.env.items() >= typed.env.items()
        there, tuned = dotted(read.config), space.engine.knobs(read, space.context).knobs
        for key, value in dotted(typed.config).items():
            whole = f"config.{key.split('.')[0]}"
            assert there.get(key) == value or whole in free or value == {}, key
        assert all(tuned[knob] == value for knob, value in held.items())


def test_what_a_layout_refuses_is_left_out_there_and_named() -> None:
    """Experts are balanced over the ranks of expert parallelism alone."""
    command = "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --enable-expert-parallel --enable-eplb"
    found = prepared(replace(R1, engines=["vllm"], baseline=command))
    layouts = {
        (one.configuration.knobs["expert_parallel"] > 1, one.configuration.knobs["enable_eplb"])
        for one in others_of(found)
    }
    assert layouts == {(True, True), (False, False)}
    (note,) = [note for note in found.spec.notes if "left out" in note]
    assert "enable_eplb of --baseline" in note


def test_a_study_of_before_goes_on_with_its_candidates() -> None:
    command = "vllm serve Qwen/Qwen3-8B --enforce-eager --max-num-seqs 300 --kv-cache-dtype fp8"
    spec = build_spec(replace(SMALL, engines=["vllm"], baseline=command, on="docker"))
    now, before = (
        prepare(spec.with_fields(keeps_set=keeps), library_for(None)) for keeps in (True, False)
    )
    assert values(now, "enforce_eager") == {True}
    assert values(before, "enforce_eager") == {False}
    assert 300 in values(now, "max_running_requests") - values(before, "max_running_requests")


def test_a_value_of_the_baseline_gives_nothing_up_and_another_engine_keeps_none_of_it() -> None:
    command = "vllm serve Qwen/Qwen3-8B --kv-cache-dtype fp8 --no-enable-prefix-caching"
    found = prepared(replace(SMALL, baseline=command))
    assert set(found.spaces) >= {"vllm", "sglang"}
    for position, one in enumerate(found.candidates.items):
        given_up = {row.knob for row in found.candidates.given_up.get(position, ())}
        if one.configuration.engine == "vllm":
            assert not {"kv_cache_dtype", "prefix_caching"} & given_up
        else:
            assert one.configuration.knobs["prefix_caching"]
