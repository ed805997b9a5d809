from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.command import Configuration
from autotune.engines.context import (
    Context,
    Normaliser,
    broken_rules,
    default_of,
    effective,
    normalised,
)
from autotune.engines.enumeration import enumerate_engine, why_empty
from autotune.engines.schema import Case
from tests.engines.space.card import TOY, context

VALUES: dict[str, list[Any]] = {
    "tensor_parallel": [1, 2, 4, 8],
    "data_parallel": [1, 2, 4, 8],
    "speculative_tokens": [0, 1, 2],
    "speculative_mode": ["plain", "tree"],
    "max_running_requests": [None, 48, 256, 1024],
    "kv_cache_dtype": ["auto", "fp8_ds_mla"],
}
configurations = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in VALUES.items()}
).map(lambda knobs: Configuration("toy", knobs))


def defaults(context: Context) -> dict[str, Any]:
    knobs: dict[str, Any] = {}
    for name, knob in TOY.knobs.items():
        knobs[name] = default_of(knob, context.scope(knobs), context.version)
    return knobs


def brute_force(version: str) -> set[str]:
    """What enumeration must come to: normalise every combination, drop those that break a rule."""
    found = set()
    for combination in itertools.product(*VALUES.values()):
        raw = Configuration("toy", dict(zip(VALUES, combination, strict=True)))
        made = effective(TOY, raw, context(version))
        if not broken_rules(TOY, made, context(version)):
            found.add(made.fingerprint)
    return found


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_enumeration_equals_brute_force(version: str) -> None:
    space = enumerate_engine(TOY, context(version))
    fingerprints = [c.fingerprint for c in space.configurations]
    assert len(fingerprints) == len(set(fingerprints)), "equivalents were not merged"
    assert set(fingerprints) == brute_force(version)


def test_a_knob_that_a_later_one_switches_off_is_at_its_default() -> None:
    card = TOY.model_copy(update={"knobs": dict(reversed(TOY.knobs.items())), "rules": []})
    space = enumerate_engine(card, context("2.0"))
    met = {
        (c.knobs["speculative_tokens"], c.knobs["speculative_mode"]) for c in space.configurations
    }
    assert met == {(0, "plain"), (1, "plain"), (1, "tree"), (2, "plain"), (2, "tree")}


def test_every_combination_is_accounted_for() -> None:
    space = enumerate_engine(TOY, context())
    assert space.combinations == len(space.configurations) + space.equivalents + sum(
        space.removed.values()
    )
    pinned = enumerate_engine(TOY, context(), {"speculative_tokens": 2})
    others = math.prod(
        len(values) for name, values in VALUES.items() if name != "speculative_tokens"
    )
    assert pinned.combinations == others, "with drafts every knob has all its values"
    assert space.removed["all-gpus"] > 0
    assert space.removed["tree-needs-two"] > 0


def test_the_rule_that_removed_the_last_is_named_not_the_one_that_removed_most() -> None:
    """Layouts that do not use all GPUs go first and are many; the pinned tree fails where all else
    had passed."""
    pins = {"speculative_mode": "tree", "speculative_tokens": 1}
    space = enumerate_engine(TOY, context("2.0"), pins)
    assert not space.configurations
    assert (
        space.removed["all-gpus"] > space.removed["tree-needs-two"] == sum(space.last.values()) > 0
    )
    said = why_empty(TOY, space, pins)
    assert said.startswith(" with speculative_mode=tree, speculative_tokens=1: ")
    assert said.endswith("(rule tree-needs-two)")


def test_rules_hold_in_their_version_range_only() -> None:
    old = {
        c.knobs["speculative_mode"] for c in enumerate_engine(TOY, context("1.0")).configurations
    }
    new = {
        c.knobs["speculative_mode"] for c in enumerate_engine(TOY, context("2.0")).configurations
    }
    assert old == {"plain"}
    assert new == {"plain", "tree"}


def test_pins_leave_one_value() -> None:
    space = enumerate_engine(TOY, context(), {"kv_cache_dtype": "fp8_ds_mla", "tensor_parallel": 4})
    assert {c.knobs["kv_cache_dtype"] for c in space.configurations} == {"fp8_ds_mla"}
    assert {c.knobs["data_parallel"] for c in space.configurations} == {2}


def test_the_order_is_fixed() -> None:
    first = [c.fingerprint for c in enumerate_engine(TOY, context()).configurations]
    assert first == [c.fingerprint for c in enumerate_engine(TOY, context()).configurations]


@given(configurations)
def test_effective_is_idempotent_and_keeps_the_knobs(raw: Configuration) -> None:
    once = effective(TOY, raw, context("1.0"))
    assert effective(TOY, once, context("1.0")) == once
    assert set(once.knobs) == set(raw.knobs)


def test_two_spellings_are_one_configuration() -> None:
    base = Configuration("toy", {**defaults(context()), "tensor_parallel": 8})
    assert base.knobs["max_running_requests"] == 1024
    assert effective(TOY, base.with_knobs(speculative_mode="tree"), context()) == base
    assert effective(TOY, base.with_knobs(max_running_requests=None), context()) == base
    capped, effects = normalised(
        TOY, base.with_knobs(speculative_tokens=1, max_running_requests=None), context("1.0")
    )
    spelled = effective(
        TOY, base.with_knobs(speculative_tokens=1, max_running_requests=48), context("1.0")
    )
    assert capped == spelled
    assert [effect.name for effect in effects] == ["cap"]


def test_defaults_follow_the_hardware() -> None:
    assert defaults(context())["max_running_requests"] == 1024
    small = context()
    node = small.hardware.model_copy(update={"memory_gb": 80})
    from dataclasses import replace

    assert defaults(replace(small, hardware=node))["max_running_requests"] == 256


def test_normaliser_picks_the_version_s_rules() -> None:
    assert [rule.name for rule in Normaliser(TOY, context("1.0")).rules] == [
        "all-gpus",
        "tree-needs-two",
        "old-no-tree",
    ]
    assert [rule.name for rule in Normaliser(TOY, context("2.0")).rules] == [
        "all-gpus",
        "tree-needs-two",
    ]


def test_a_default_may_depend_on_the_knobs_before_it() -> None:
    knob = TOY.knobs["max_running_requests"].model_copy(
        update={
            "default": [Case(value=48, when="speculative_tokens > 0"), Case(value=1024)],
            "search": [],
        }
    )
    card = TOY.model_copy(update={"knobs": {**TOY.knobs, "max_running_requests": knob}})
    pairs = {
        (c.knobs["speculative_tokens"] == 0, c.knobs["max_running_requests"])
        for c in enumerate_engine(card, context()).configurations
    }
    assert pairs == {(True, 1024), (False, 48)}


def test_a_fingerprint_tells_the_knobs_and_not_their_order() -> None:
    """Files of studies hold fingerprints, so the value itself must not change either."""
    one = Configuration("vllm", {"tensor_parallel": 8, "kv_cache_dtype": None})
    other = Configuration("vllm", {"kv_cache_dtype": None, "tensor_parallel": 8})
    assert one.fingerprint == other.fingerprint == "28bd2af21498"
    assert one == other
    assert one.fingerprint != one.with_knobs(tensor_parallel=4).fingerprint
