"""What an engine makes of a command without one of its settings."""

from __future__ import annotations

from dataclasses import replace

from autotune.tuner.search.decide.simplify import ablations
from tests.tuner.prepare.settings import RUN, prepared

ASKED = replace(
    RUN, space=None, engines=["sglang"], pins=["context_length=auto", "kv_cache_dtype=auto"]
)
SETTINGS = {
    "speculative_tokens": 3,
    "max_running_requests": 1024,
    "tensor_parallel": 1,
    "data_parallel": 8,
}


def test_without_a_setting_the_engine_decides_by_itself() -> None:
    """SGLang takes 48 requests under MTP where none are asked for: that is no setting of the
    command without them."""
    found = prepared(ASKED)
    space, candidates = found.spaces["sglang"], found.candidates
    full = space.effective(SETTINGS)
    assert full.fingerprint in candidates
    alone = space.without(full)
    assert alone.keys() == SETTINGS.keys()
    assert alone["max_running_requests"] == full.with_knobs(max_running_requests=48)
    assert alone["speculative_tokens"] == full.with_knobs(speculative_tokens=0)
    assert space.without(alone["max_running_requests"]).keys() == SETTINGS.keys() - {
        "max_running_requests"
    }

    winner = candidates.position(full.fingerprint)
    steps = ablations(candidates, winner)
    # 48 requests of all clients are searched no more: the setting goes with the drafts that ask for
    # it.
    assert alone["max_running_requests"].fingerprint not in candidates
    assert {"speculative_tokens", "max_running_requests"} in steps.values()
    assert {"data_parallel", "tensor_parallel"} in steps.values(), "neither can go alone"
