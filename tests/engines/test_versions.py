"""A version that was measured keeps its number; only its options are borrowed."""

from __future__ import annotations

import pytest

from autotune.base.errors import BadInput
from autotune.engines.installed import as_measured
from autotune.engines.registry import engine


@pytest.mark.parametrize(
    ("name", "text", "version", "like"),
    [
        ("vllm", "0.11.0", "0.11.0", "0.11.0"),
        ("vllm", "v0.11", "0.11.0", "0.11.0"),
        ("sglang", "0.5.6.post2", "0.5.6.post2", "0.5.6.post2"),
        ("sglang", "0.5.6", "0.5.6", "0.5.6.post2"),
        ("tensorrt_llm", "1.2.0rc5", "1.2.0rc5", "1.2.0"),
        ("vllm", "0.7.3.dev138+g21f6ca217", "0.7.3.dev138+g21f6ca217", "0.11.0"),
        ("sglang", "0.4.2.post4", "0.4.2.post4", "0.4.3.post2"),
        ("tensorrt_llm", "0.17.post1.dev (online pytorch backend)", "0.17.post1.dev0", "1.0.0"),
        ("vllm", "0.12.0", "0.12.0", "0.11.0"),
        ("vllm", "99.1", "99.1", "0.33.0"),
    ],
)
def test_a_version_is_parsed_like_the_nearest_of_its_time(name, text, version, like):
    known = engine(name)
    measured, found = as_measured(known, text)
    assert found == version
    assert measured.version(found) == version
    flags = measured.table(found).flags
    assert flags >= known.table(like).flags
    assert measured.table(found).borrowed == (version != like)
    # What the nearest version lacks others lend: a published command is not refused for an option
    # that came or went.
    assert version != like or flags == known.table(like).flags


@pytest.mark.parametrize("text", ["", "nightly", "(0.5)"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(BadInput, match="no version of vllm"):
        as_measured(engine("vllm"), text)
