"""What would have no KV cache is not launched on a real node, and what may be wrong by an estimate
is."""

from __future__ import annotations

import pytest

from autotune.engines.library import Library
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.options import RunOptions


@pytest.fixture(scope="module", params=["h200", "mi300x"])
def prepared(request: pytest.FixtureRequest) -> Prepared:
    asked = RunOptions(
        "deepseek-ai/DeepSeek-V3.2", request.param, engines=("sglang",), on="emulator"
    )
    return prepare(build_spec(asked), Library())


def test_a_share_that_the_engine_computes_below_the_weights_is_not_tried(
    prepared: Prepared,
) -> None:
    """SGLang 0.5.23's own shares: 0.501 with eight ranks and 32768 tokens on an H200, below 0 with
    131072 on MI300X."""
    by_itself = {
        (one.configuration.knobs["data_parallel"], one.configuration.knobs["max_batched_tokens"])
        for one in prepared.candidates.items
        if one.configuration.knobs["memory_fraction"] is None
    }
    if prepared.spec.hardware.vendor == "amd":
        assert {tokens for _, tokens in by_itself} == {16384, 32768}
    else:
        assert (8, 32768) not in by_itself
        assert {(1, 32768), (2, 32768), (4, 16384), (8, 16384), (8, 8192)} <= by_itself
    given = {one.configuration.knobs["max_batched_tokens"] for one in prepared.candidates.items} - {
        16384
    }
    assert given == ({32768, 131072} if prepared.spec.hardware.vendor == "amd" else {8192, 32768})
