"""Version ranges: no version falls between two ranges that meet, a release candidate least of
all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines.command import Configuration
from autotune.engines.context import Context, search_values
from autotune.engines.engine import Engine
from autotune.engines.entry import in_range
from autotune.engines.registry import engine
from autotune.engines.schema import Knob
from tests.engines.settings import LIBRARY

RELEASES = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(
    lambda parts: ".".join(map(str, parts))
)
PRE, POST, DEV = (st.sampled_from(["", f"{kind}0", f"{kind}2"]) for kind in ("rc", ".post", ".dev"))
BOUNDS = st.tuples(RELEASES, PRE, POST, DEV).map("".join)
VERSIONS = st.tuples(BOUNDS, st.sampled_from(["", "+cpu"])).map("".join)


@hypothesis_settings(max_examples=300, deadline=None)
@given(VERSIONS, BOUNDS)
def test_every_version_is_on_one_side_of_every_bound(version: str, bound: str) -> None:
    assert in_range(version, f"<{bound}") != in_range(version, f">={bound}")


@pytest.mark.parametrize(
    ("version", "versions", "held"),
    [
        ("0.13.0rc1", ">=0.13", True),
        ("0.13.0rc1+cpu", "<0.13", False),
        ("0.14.0.dev3", ">=0.13,<0.14", False),
        ("0.5.6.post2.dev1", ">=0.5.6.post2", True),
        ("1.2.0rc3.post1", ">=1.2.0.post1", False),
        ("1.2.0rc2", ">=1.2.0rc3", False),
        ("1.2.0rc3", ">=1.2.0rc3", True),
        ("1.2.0", ">=1.2.0rc3", True),
        ("1.3.0rc4", ">=1.3.0rc5", False),
        ("1.3.0rc4", "<1.3.0rc5", True),
        ("1.2.0rc5", "==1.2.*", True),
    ],
)
def test_a_candidate_counts_as_its_release_unless_the_bound_is_one(
    version: str, versions: str, held: bool
) -> None:
    assert in_range(version, versions) is held


@pytest.mark.parametrize(
    ("name", "version", "near"),
    [
        ("vllm", "0.32.0rc2", "0.32.0"),
        ("vllm", "0.31.9rc2", "0.32.0"),
        ("sglang", "0.5.6rc1", "0.5.6.post2"),
        ("sglang", "0.5.6.post2.dev1", "0.5.6.post2"),
    ],
)
def test_a_candidate_has_its_release_s_table(name: str, version: str, near: str) -> None:
    assert engine(name).by_distance(version)[0] == near


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("1.0.0", "--extra_llm_api_options"),
        ("1.2.0rc8", "--extra_llm_api_options"),
        ("1.2.0", "--config"),
    ],
)
def test_candidates_of_tensorrt_llm_take_the_older_name_of_the_file_s_option(
    version: str, flag: str
) -> None:
    kind = engine("tensorrt_llm", LIBRARY)
    judged = Context(LIBRARY.model("deepseek-ai/DeepSeek-R1"), LIBRARY.node("h200"), 8, version)
    assert (
        flag
        in kind.command_with(kind.card.knobs["torch_compile"].emit, judged.scope({}), judged).argv
    )


def test_before_its_version_a_knob_keeps_its_default_and_cannot_be_set_or_read() -> None:
    known = LIBRARY.engine("vllm")
    knob = Knob.model_validate(
        {
            "help": "",
            "since": "0.13",
            "default": "a",
            "search": ["a", "b"],
            "read": "'b'",
            "emit": [{"args": ["--x"]}],
        }
    )
    kind = type(engine("vllm"))(known.model_copy(update={"knobs": {**known.knobs, "x": knob}}))
    command = kind.command(with_x(kind, "0.13.0", "a"), setting("0.13.0"))
    for version, searched, read in (("0.11.0", ("a",), "a"), ("0.13.0", ("a", "b"), "b")):
        judged = setting(version)
        assert search_values(knob, judged.scope({}), version) == searched
        assert kind.knobs(kind.parse(command, version), judged).knobs["x"] == read
    assert "--x" in kind.command(with_x(kind, "0.13.0", "b"), setting("0.13.0")).argv
    with pytest.raises(
        BadInput, match=r"vLLM 0\.11\.0 has no option for x='b', which began with 0\.13"
    ):
        kind.command(with_x(kind, "0.11.0", "b"), setting("0.11.0"))


def setting(version: str) -> Context:
    return Context(LIBRARY.model("deepseek-ai/DeepSeek-R1"), LIBRARY.node("h200"), 8, version)


def with_x(kind: Engine, version: str, value: str) -> Configuration:
    return Configuration(kind.name, kind.default_knobs(setting(version), {"x": value}))


def test_since_is_a_version_and_no_range() -> None:
    with pytest.raises(ValueError, match=r"not a version: '>=0\.13'"):
        Knob.model_validate({"help": "", "since": ">=0.13", "search": [1], "read": "None"})
