"""Values of knobs that the users of a server notice, in words."""

from __future__ import annotations

import pytest

from autotune.engines.command import Scalar
from autotune.engines.promises import noticed


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ("context_length", None, "163,840"),
        ("context_length", 32768, "32,768"),
        ("prefix_caching", True, "on"),
        ("prefix_caching", False, "off"),
        ("kv_cache_dtype", "bfloat16", "bf16"),
        ("kv_cache_dtype", "auto", "bf16"),
        ("kv_cache_dtype", "fp8_e4m3", "fp8"),
        ("memory_fraction", None, "the engine's"),
        ("memory_fraction", 0.88, "0.88"),
    ],
)
def test_a_value_is_said_as_its_users_would(knob: str, value: Scalar, words: str) -> None:
    assert noticed(knob, value, 163840) == words
