"""The engines' figures: every card is valid, and conditions and versions pick the right ones."""

import pytest

from autotune.base.errors import UnknownName
from autotune.engines.library import Library
from autotune.node.calibration import ServerSetup, coefficients_of, nothing_learned
from autotune.node.coefficients import speed_card
from autotune.node.server import SimulatedServer
from tests.node.nodes import LIBRARY, R1, setup


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize("hw", ["h200", "mi300x"])
def test_every_card_is_valid_on_every_node(engine, hw):
    versions = Library().engine(engine).versions
    assert versions
    for version in versions:
        assert SimulatedServer(setup(engine, hw=hw, version=version)).coefficients.layer_us > 0


def test_an_engine_without_a_card_is_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="vllm"):
        speed_card("llamacpp")


def test_old_vllm_computes_whole_contexts():
    assert SimulatedServer(setup("vllm", version="0.7.3")).token_budget == 163840
    assert SimulatedServer(setup("vllm")).token_budget == 8192


def test_sglang_divides_its_limits_among_ranks():
    server = SimulatedServer(setup("sglang", 1, 8, max_running_requests=256))
    assert (server.token_budget, server.running_limit) == (1024, 32)


def test_auto_cache_types():
    assert SimulatedServer(setup("vllm")).kv_type == "fp8_ds_mla"
    assert SimulatedServer(setup("vllm", model=R1)).kv_type == "bfloat16"
    assert SimulatedServer(setup("sglang", kv_cache_dtype="fp8_e4m3")).kv_type == "fp8"


def test_sglang_takes_less_memory_for_the_cache_when_graphs_need_more():
    plain, replicas = (
        SimulatedServer(setup("sglang", tp, dp)).memory_fraction for tp, dp in ((8, 1), (1, 8))
    )
    assert 0.85 < plain < 0.93
    assert 0.7 < replicas < plain


def test_a_condition_multiplies():
    setups = [
        ServerSetup(
            "vllm",
            "0.13.0",
            {"deep_gemm": flag},
            LIBRARY.model(R1),
            LIBRARY.node("h200"),
            8,
            nothing_learned(),
        )
        for flag in (True, False)
    ]
    on, off = (coefficients_of(one).moe_share for one in setups)
    assert off < on
