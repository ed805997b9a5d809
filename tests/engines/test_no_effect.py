"""What is known to do nothing without a launch: the documents' parser flags, flags without their
condition."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.entry import in_range
from autotune.engines.registry import engine
from autotune.engines.schema import EngineCard
from autotune.tuner.prepare.build_spec import build_spec, library_for
from autotune.tuner.prepare.candidates import no_effect_by_rule, prepare
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import NoEffect
from autotune.tuner.trial import Role, Trial
from tests.engines.settings import R1, V32

LIBRARY = library_for(Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml")
CARDS = [LIBRARY.engine(name) for name in ("sglang", "tensorrt_llm", "vllm")]
SERVE = "python3 -m sglang.launch_server --model"


def baseline_no_effect(
    model: str, baseline: str | None, *set_: str, only: str = "sglang"
) -> dict[str, NoEffect]:
    """Knob or flag to what is said of it on the baseline's command."""
    asked = {"baseline": baseline, "pins": list(set_), "engines": [only]}
    request = RunOptions(
        model, "h200", workloads=["random:1000:100:64"], on="simulator", study="s", **asked
    )
    prepared = prepare(build_spec(request), LIBRARY)
    candidate = prepared.candidates.baseline_candidate
    command = prepared.command_of(candidate)
    trial = Trial(
        0, Role.BASELINE, candidate.configuration, candidate.engine_version, command, ("chat",)
    )
    return {row.knob: row for row in no_effect_by_rule(prepared, trial)}


def test_parser_flags_and_dp_attention_without_replicas_are_told() -> None:
    parsers = "--reasoning-parser deepseek-v3 --tool-call-parser=deepseekv32"
    found = baseline_no_effect(V32, f"{SERVE} {V32} --tp-size 8 --enable-dp-attention {parsers}")
    assert found.keys() == {"--enable-dp-attention", "--reasoning-parser", "--tool-call-parser"}
    assert found["--tool-call-parser"].values == ["deepseekv32"]
    assert "kept for serving" in found["--tool-call-parser"].reason
    assert "one replica" in found["--enable-dp-attention"].reason


def test_dp_attention_with_replicas_is_no_no_op() -> None:
    found = baseline_no_effect(V32, f"{SERVE} {V32} --tp-size 8 --dp-size 8 --enable-dp-attention")
    assert found == {}


def test_what_autotune_itself_adds_for_serving_is_told_as_well() -> None:
    found = baseline_no_effect(V32, None, only="vllm")
    assert found.keys() == {"--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice"}


def test_a_typed_setting_and_a_pin_without_effect_say_what_they_need() -> None:
    typed = baseline_no_effect(R1, f"{SERVE} {R1} --tp 8 --deepep-mode low_latency")
    assert typed["deepep_mode"].values == ["low_latency"]
    assert "moe_all_to_all == 'deepep'" in typed["deepep_mode"].reason
    pinned = baseline_no_effect(R1, None, "deepep_mode=low_latency")
    assert pinned["deepep_mode"] == typed["deepep_mode"]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: str(card.engine))
def test_idle_options_exist_under_the_name_they_are_read_by(card: EngineCard) -> None:
    """In some version that they are given for; what is read is an option's destination."""
    assert card.no_effect
    for option in card.no_effect:
        assert option.flags
        tables = [
            engine(card.engine).table(v) for v in card.versions if in_range(v, option.versions)
        ]
        for flag in option.flags:
            found = [o for table in tables for o in table.options if flag in o.flags]
            assert found, flag
            assert {o.dest for o in found} == {flag.lstrip("-").replace("-", "_")}
