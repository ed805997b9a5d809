"""A few combinations of one model on one node through each engine's own argument code, and what is
made of verdicts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from autotune.base.notify import silent
from autotune.engines.command import Configuration
from autotune.engines.context import Context, broken_rules
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.failure import FailureKind
from autotune.engines.installed import engine_of
from autotune.engines.library import Library
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.prepare.predicted_memory import MemoryPlans, own_share
from autotune.tuner.study.options import RunOptions
from tests.real_engines.cases import Case, forbidden_sides, pair_cover
from tests.real_engines.conformance import Asking, run_models
from tests.real_engines.judge import Judge, explanations

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
VERSION = "0.5.23"


def context() -> Context:
    library = Library()
    return Context(library.model(MODEL), library.node("h200"), 8, VERSION)


def test_the_cover_has_every_pair_of_values() -> None:
    knobs = [{"a": a, "b": b, "c": c, "d": 0} for a in range(4) for b in range(3) for c in range(2)]
    candidates = [Configuration("toy", one) for one in knobs if one["a"] + one["b"] < 5]

    cover = pair_cover(candidates, 0)

    def pairs(some: list[Configuration]) -> set[tuple[object, ...]]:
        return {(m, o.knobs[m], n, o.knobs[n]) for o in some for m in "abc" for n in "abc" if m < n}

    assert pairs(cover) == pairs(candidates)
    assert len(cover) < len(candidates)


@pytest.mark.e2e
def test_a_rules_forbidden_side_breaks_that_rule_alone() -> None:
    engine, about = engine_of("sglang", {}, Library(), silent), context()
    candidates = enumerate_engine(engine.card, about).configurations

    sides = forbidden_sides(engine, about, candidates, 0)

    names = {case.rule.name for case in sides if case.rule is not None}
    assert {"context-beyond-model", "heads-not-divisible", "no-mtp-layer"} <= names
    for case in sides:
        broken = [rule.name for rule in broken_rules(engine.card, case.configuration, about)]
        assert case.rule is not None
        assert case.rule.name in broken


@pytest.fixture
def judge() -> Judge:
    library = Library()
    spec = build_spec(RunOptions(model=MODEL, hardware="h200", engines=("sglang",), on="emulator"))
    prepared = prepare(spec, library, anywhere=True)
    space = prepared.spaces["sglang"]
    return Judge(space.engine, space.context, MemoryPlans(spec, library), explanations())


def told(judge: Judge, one: Configuration, **changes: Any) -> dict[str, Any]:
    """The verdict of an engine that does as it was told, but for some values."""
    knobs = one.knobs
    info = {
        "tp_size": knobs["tensor_parallel"],
        "attn_dp_size": 1,
        "dp_size": 1,
        "max_running_requests": knobs["max_running_requests"],
        "mem_fraction_static": own_share(judge.engine.card, judge.context, one),
        "random_seed": id(changes),
    }
    return {"reported": {"documents": {"/server_info": info | changes}, "log": ""}}


def test_a_verdict_is_compared_with_the_card(judge: Judge) -> None:
    default = Configuration("sglang", judge.engine.default_knobs(judge.context))
    one = default.with_knobs(max_running_requests=512)
    rule = next(rule for rule in judge.engine.card.rules if rule.kind is FailureKind.BAD_ARGUMENT)

    def kinds(case: Case, verdict: dict[str, Any]) -> list[str]:
        return [finding.kind for finding in judge.judge(case, verdict, "")]

    assert kinds(Case(one), told(judge, one)) == []
    assert kinds(Case(one), {"refused": ["no"]}) == ["refused"]
    assert kinds(Case(one, rule), {"refused": ["no"]}) == []
    assert kinds(Case(one, rule), told(judge, one)) == ["rule"]
    assert kinds(Case(one), told(judge, one, max_running_requests=48)) == ["difference"]
    assert kinds(Case(one), told(judge, one, mem_fraction_static=0.05)) == [
        "difference",
        "no memory",
    ]
    other = one.with_knobs(prefix_caching=False)
    assert kinds(Case(other), told(judge, one)) == ["twin"]


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_engine_agrees_with_its_card(engine: str) -> None:
    folder = os.environ.get("AUTOTUNE_ENGINES")
    if not folder:
        pytest.skip("AUTOTUNE_ENGINES names no environment; see tests/real_engines/environment.py")
    asking = Asking(Path(folder).resolve(), 5)
    (outcome,) = run_models(asking, engine, "h200", ["deepseek-ai/DeepSeek-V3.2"])
    assert outcome.asked["pairs"] > 10
    assert outcome.asked["rules"] > 10
    assert [
        one for one in outcome.findings if not one.explained and one.kind != "little memory"
    ] == []
