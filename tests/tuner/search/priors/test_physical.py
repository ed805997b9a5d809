"""What physics says of candidates, by evidence and objective; and of rows that somebody else
wrote."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.enumeration import Enumeration
from autotune.engines.registry import engine
from autotune.engines.space import EngineSpace
from autotune.tuner.search.priors import coverage, priors_of
from autotune.tuner.search.priors.simulated import DRAWS
from tests.tuner.search.priors.prepared import Row, prepared, question

LAYOUTS: list[Row] = [
    ("vllm", {"tensor_parallel": 8, "data_parallel": 1, "max_running_requests": 256}),
    ("vllm", {"tensor_parallel": 8, "data_parallel": 1, "max_running_requests": 4}),
    ("sglang", {"tensor_parallel": 1, "data_parallel": 8, "max_running_requests": 256}),
]


def _complete(rows: list[Row]) -> list[Row]:
    """With every knob, as the enumerated candidates have them."""
    spec, found = question(), []
    for name, knobs in rows:
        kind = engine(name)
        context = spec.context(kind.version())
        found.append((name, kind.default_knobs(context, knobs)))
    return found


def _of(on: str, **changes):
    version = "unknown"
    rows = _complete(LAYOUTS)
    if not on.startswith("replay"):
        # Both engines have this version's rules in no card: what counts is that it is passed on.
        rows, version = rows[:2], engine("vllm").version()
    return priors_of(prepared(rows, version, on=on, **changes))


@pytest.mark.parametrize(
    ("on", "names"),
    [
        ("simulator", ["physics"]),
        ("emulator", ["physics"]),
        ("process", ["the simulator", "physics"]),
        ("docker", ["the simulator", "physics"]),
        ("replay:/nowhere.csv", ["the simulator", "physics"]),
    ],
)
def test_the_simulator_does_not_foresee_itself(on, names):
    assert [prior.name for prior in _of(on)] == names


def test_where_it_measures_the_simulator_tells_order_and_odds():
    found = _of("process")[0]
    assert found.mean[0] > found.mean[1]  # four requests at a time
    assert found.p_starts is not None
    assert found.launch_s is not None
    assert (found.p_starts > 0.9).all()
    assert (
        found.launch_s[1] > found.launch_s[0] > 60
    )  # loading 671 GB takes minutes, the slow load longer


def test_less_is_better_of_a_latency():
    for tpot in _of("process", objective="mean_tpot_ms"):
        assert tpot.mean[1] > tpot.mean[0]
        assert (tpot.mean < 0).all()
    assert not _of("process", objective="std_itl_ms")


def test_goodput_is_foreseen_within_its_limits():
    wide, tight = (
        _of("process", objective="request_goodput", goodput={"tpot": limit})
        for limit in (1000.0, 10.0)
    )
    assert len(wide) == 2
    assert wide[0].mean[0] > wide[0].mean[1]  # four requests at a time
    assert all((one.mean > other.mean).all() for one, other in zip(wide, tight, strict=True))
    assert tight[1].limit_ratios is not None
    assert np.exp(tight[1].limit_ratios) == pytest.approx(100 / 55, abs=0.1), (
        "nearly all requests break the limit"
    )


def test_draws_of_the_figures_vary_what_rests_on_them():
    calibrated, bare = _of("process")
    assert calibrated.draws.shape == bare.draws.shape == (DRAWS, 2)
    # Measured rows have told of most figures, so that less is left unsure.
    assert 0.02 < calibrated.draws.std(axis=0).max() < bare.draws.std(axis=0).max()
    assert {one.engine for one in bare.figures} == {"vllm", "sglang"} & {
        one.engine for one in bare.figures
    }
    assert next(one for one in bare.figures if one.name == "link_share").logs.std() > 0.2


def test_effects_of_attention_kernels_are_uncertain_on_real_servers_alone():
    """Measured ratios of two commands differed from the predicted ones by that standard
    deviation."""
    for prior in _of("process"):
        assert prior.effect_errors == {
            "attention_backend": 0.2,
            "prefill_attention_backend": 0.2,
            "decode_attention_backend": 0.2,
        }
    assert [prior.effect_errors for prior in _of("simulator")] == [{}]


def test_weights_mean_over_the_logarithms_of_workloads():
    one, two = "random:1000:200:200", "random:100:400:50"
    alone = [_of("process", workloads=(name,))[0] for name in (one, two)]
    both = _of("process", workloads=(one, two), weights={one: 3.0, two: 1.0})[0]
    np.testing.assert_allclose(both.mean, 0.75 * alone[0].mean + 0.25 * alone[1].mean)
    assert both.launch_s is not None
    assert (both.launch_s > alone[0].launch_s).all()


def test_a_single_candidate_and_a_nameless_workload_have_no_priors():
    assert not priors_of(prepared(LAYOUTS[:1]))
    assert not priors_of(prepared(LAYOUTS, workloads=("what the table had",)))


def test_no_room_for_a_request_lowers_the_odds_not_the_score():
    """The mean is what it would be if it started: two replicas on a GPU each are as fast as their
    kernels allow."""
    rows = [
        *LAYOUTS,
        ("vllm", {"tensor_parallel": 1, "data_parallel": 1, "max_running_requests": 256}),
    ]
    found = priors_of(prepared(rows))
    assert len(found) == 2
    for prior in found:
        assert prior.p_starts[3] < 0.5 < prior.p_starts[:3].min()
        assert prior.doubts == ("", "", "", "memory")
        slow = rows[1][1]["max_running_requests"]
        assert slow == 4
        assert prior.mean[3] > prior.mean[1], "256 at a time on one GPU against 4 on eight"


# Rows of a table


def test_an_alias_is_its_engine_and_what_a_row_leaves_open_is_the_default():
    short: list[Row] = [("trtllm", {"tensor_parallel": 8 // n, "data_parallel": n}) for n in (1, 8)]
    whole = _complete([("tensorrt_llm", knobs) for _, knobs in short])
    found = priors_of(prepared(short))
    assert len(found) == 2
    for one, other in zip(found, priors_of(prepared(whole)), strict=True):
        np.testing.assert_array_equal(one.mean, other.mean)


def test_a_row_in_foreign_words_is_believed_as_in_the_words_of_its_card():
    foreign: list[Row] = [
        (
            "sglang",
            {
                "tensor_parallel": 8,
                "data_parallel": 1,
                "kv_cache_dtype": "fp8",
                "moe_all_to_all": "none",
            },
        ),
        (
            "vllm",
            {
                "tensor_parallel": 1,
                "data_parallel": 8,
                "expert_parallel": 8,
                "moe_all_to_all": "none",
            },
        ),
        ("trtllm", {"tensor_parallel": 8, "kv_cache_dtype": "bfloat16", "moe_all_to_all": "none"}),
        (
            "vllm",
            {
                "tensor_parallel": 8,
                "data_parallel": 1,
                "kv_cache_dtype": "auto",
                "engine_version": "0.11.0",
            },
        ),
    ]
    own: list[Row] = [
        (
            "sglang",
            {
                "tensor_parallel": 8,
                "data_parallel": 1,
                "kv_cache_dtype": "fp8_e4m3",
                "moe_all_to_all": "none",
            },
        ),
        ("vllm", {**foreign[1][1], "moe_all_to_all": "allgather_reducescatter"}),
        ("trtllm", {"tensor_parallel": 8, "kv_cache_dtype": "auto"}),
        ("vllm", {"tensor_parallel": 8, "data_parallel": 1}),
    ]
    found = priors_of(prepared(foreign))
    assert len(found) == 2
    for one, other in zip(found, priors_of(prepared(own)), strict=True):
        assert np.isfinite(one.mean).all()
        np.testing.assert_array_equal(one.mean, other.mean)


def test_the_study_says_how_many_candidates_have_a_prior():
    rows: list[Row] = [("sglang", {"tensor_parallel": 8, "kv_cache_dtype": "unheard-of"}), *LAYOUTS]
    study = prepared(rows)
    assert "3 of 4 candidates" in coverage(priors_of(study), study.candidates)
    assert "0 of 4 candidates" in coverage([], study.candidates)


def test_columns_that_are_no_knobs_leave_a_replay_without_the_simulator():
    assert not priors_of(prepared([("sglang", {"--tp-size": 8, "dp_size": n}) for n in (1, 8)]))
    told = [("sglang", {"tensor_parallel": 1, "data_parallel": 8, "colour": "blue"}), *LAYOUTS]
    found = priors_of(prepared(told))
    assert len(found) == 2
    assert all(np.isnan(prior.mean[0]) and np.isfinite(prior.mean[1:]).all() for prior in found)


@pytest.mark.parametrize(
    "row",
    [
        {"tensor_parallel": "banana", "data_parallel": 1},
        {"tensor_parallel": -8, "data_parallel": 1},
        {"tensor_parallel": 8, "data_parallel": True},
        {"tensor_parallel": 8, "data_parallel": 1, "speculative_tokens": 10**9},
        {"tensor_parallel": 8, "data_parallel": float("nan")},
    ],
)
def test_a_row_of_nonsense_is_not_known_and_the_others_are(row):
    found = priors_of(prepared([*LAYOUTS, ("vllm", row)]))
    assert len(found) == 2
    for prior in found:
        assert np.isnan(prior.mean[3])
        assert np.isfinite(prior.mean[:3]).all()


def test_tables_of_which_nothing_is_known():
    assert not priors_of(
        prepared([("mystery", {"tensor_parallel": n, "data_parallel": 1}) for n in (1, 8)])
    )
    assert not priors_of(prepared([("vllm", {"x1": n, "x2": "a"}) for n in range(9)]))


_CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**40),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["8", "fp8", "on"]),
)
_COLUMNS = st.sampled_from(
    [
        *(
            "tensor_parallel",
            "data_parallel",
            "expert_parallel",
            "kv_cache_dtype",
            "max_batched_tokens",
            "prefix_caching",
        ),
        *(
            "max_running_requests",
            "--tp-size",
            "tp_size",
            "enable_dp_attention",
            "memory_fraction",
            "tp",
            "",
            "é",
        ),
        *(
            "moe_all_to_all",
            "attention_backend",
            "decode_attention_backend",
            "model",
            "--help",
            "cuda_graph_max_batch",
        ),
    ]
)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["vllm", "sglang", "trtllm", "", "other"]),
            st.dictionaries(_COLUMNS, _CELLS),
        ),
        min_size=2,
        max_size=5,
    )
)
def test_no_table_raises(rows):
    study = prepared(rows, workloads=("random:50:20:30",))
    found = priors_of(study)
    assert len(found) in (0, 2)
    for prior in found:
        assert prior.mean.shape == (len(study.candidates),)
        assert not np.isinf(prior.mean).any()


def _balanced(on: str, **changes):
    """Candidates of TensorRT-LLM with one tensor-parallel rank and with eight attention replicas,
    of which one waits for the others."""
    spec, kind = question(on=on, **changes), engine("tensorrt_llm")
    context = replace(spec.context(kind.version()), concurrency=256.0)
    layouts = (
        {"tensor_parallel": 8},
        {"tensor_parallel": 1, "data_parallel": 8},
        {"tensor_parallel": 1, "data_parallel": 8, "attention_dp_balance": True},
    )
    rows = [(kind.name, kind.default_knobs(context, knobs)) for knobs in layouts]
    found = prepared(rows, context.version, on=on, **changes)
    space = EngineSpace(kind, context, Enumeration(), {})
    return replace(found, spaces={kind.name: space})


def test_a_published_effect_is_a_reason_to_try_a_value_of_a_knob_that_the_simulator_does_not_read():
    asked = _balanced("process")
    priors = priors_of(asked)
    published = math.log(34_140 / 25_664)  # blog10_ADP_Balance_Strategy.md of TensorRT-LLM
    for prior in priors:
        gain = prior.mean[2] - prior.mean[1]
        assert 0.3 * published < gain < 0.7 * published, "elsewhere a part of it"
        drawn = prior.draws[:, 2] - prior.draws[:, 1]
        assert drawn.std() > 0.3 * published, "it may be none, or all"
        assert abs(drawn.mean() - gain) < 0.3 * published
    said = coverage(priors, asked.candidates)
    assert said.count("attention_dp_balance ×1.33 (tensorrt_llm, DeepSeek-V3 on 8 GB200") == 1
    assert "blog10_ADP_Balance_Strategy.md" in said


@pytest.mark.parametrize(
    ("on", "changes"), [("simulator", {}), ("process", {"objective": "mean_tpot_ms"})]
)
def test_no_published_throughput_is_expected_of_the_simulator_or_of_a_latency(on, changes):
    priors = priors_of(_balanced(on, **changes))
    assert [prior.mean[2] - prior.mean[1] for prior in priors] == [0.0] * len(priors)
    assert priors
    assert not any(one.published for prior in priors for one in prior.figures)


def test_an_effect_that_the_simulator_has_is_not_counted_twice():
    """vLLM's stream interval: no gain is expected where the simulator says that sending is no limit."""
    spec, kind = question(on="process"), engine("vllm")
    context = replace(spec.context(kind.version()), concurrency=1024.0)
    rows = [
        (kind.name, kind.default_knobs(context, {"tensor_parallel": 8, "stream_interval": n}))
        for n in (1, 10)
    ]
    assert kind.card.knobs["stream_interval"].published
    found = replace(
        prepared(rows, context.version, on="process"),
        spaces={kind.name: EngineSpace(kind, context, Enumeration(), {})},
    )
    assert [float(prior.mean[1] - prior.mean[0]) for prior in priors_of(found)] == [0.0, 0.0]
