"""Drafts in checkpoints of their own: what each engine's command says of them, how it is read back,
and what `--set` makes of several."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.command import Configuration
from autotune.engines.context import effective
from autotune.engines.registry import engine
from autotune.tuner.study.options import RunOptions
from tests.engines.settings import context, failing_rules, set_by
from tests.tuner.prepare.settings import prepared, said

QWEN = "Qwen/Qwen3-32B"
STEPS = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
VLLM = "--speculative-config.model {} --speculative-config.method {} --speculative-config.num_speculative_tokens 3"
SGLANG = "--speculative-draft-model-path {} --speculative-algorithm {} "
DRAFTED = (
    "vllm serve {{}} --speculative-config.model {} --speculative-config.num_speculative_tokens 3"
)
TOLD = ("./d=eagle3", "./e=dspark")


@pytest.mark.parametrize(
    ("name", "version", "draft", "method", "words"),
    [
        ("vllm", "0.33.0", "org/Qwen3-EAGLE3", "eagle3", VLLM.format("org/Qwen3-EAGLE3", "eagle3")),
        ("vllm", "0.33.0", "./d", "eagle3", VLLM.format("./d", "eagle3")),
        ("vllm", "0.33.0", "./e", "dspark", VLLM.format("./e", "dspark")),
        ("vllm", "0.33.0", "org/g-assistant", "mtp", VLLM.format("org/g-assistant", "mtp")),
        ("vllm", "0.33.0", "org/small", "draft_model", VLLM.format("org/small", "draft_model")),
        ("sglang", "0.5.23", "./d", "eagle3", SGLANG.format("./d", "EAGLE3") + STEPS),
        ("sglang", "0.5.23", "org/small", "draft_model", SGLANG.format("org/small", "STANDALONE") + STEPS),
        ("sglang", "0.5.23", "org/g-assistant", "mtp", SGLANG.format("org/g-assistant", "NEXTN") + STEPS),
        ("sglang", "0.5.23", "./e", "dspark", SGLANG.format("./e", "DSPARK") + "--speculative-dspark-block-size 3"),
        ("sglang", "0.5.23", "NGRAM", None, "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4"),
    ],
)  # fmt: skip
def test_a_draft_drafts_as_its_config_says_or_else_its_name(
    name: str, version: str, draft: str, method: str | None, words: str
) -> None:
    kind, about = engine(name), context(version, QWEN, gpus=1)
    about = replace(about, model=about.model.with_fields(drafts=[*TOLD]))
    asked = kind.default_knobs(about, {"draft_model": draft, "speculative_tokens": 3})
    made = effective(kind.card, Configuration(name, asked), about)
    assert (made.knobs["draft_model"], made.knobs["draft_method"]) == (draft, method)
    command = kind.command(made, about)
    assert sorted(shlex.split(words)) == sorted({*shlex.split(words)} & {*command.argv})
    back = kind.knobs(kind.parse(command, version), about)
    assert effective(kind.card, back, about) == made


def test_without_drafting_no_draft_is_loaded() -> None:
    for name, version in (("vllm", "0.33.0"), ("sglang", "0.5.23")):
        kind, about = engine(name), context(version, QWEN, gpus=1)
        usual = kind.default_knobs(about)
        drafting = Configuration(name, {**usual, "draft_model": "org/eagle3"})
        assert effective(kind.card, drafting, about) == Configuration(name, usual)


@pytest.mark.parametrize(
    ("command", "version", "rule"),
    [
        (DRAFTED.format("org/small"), "0.13", "no-draft-of-its-own"),
        (DRAFTED.format("org/dspark"), "0.24", "no-dspark"),
        (DRAFTED.format("org/dflash"), "0.13", "no-dflash"),
        ("python3 -m sglang.launch_server --model-path {} --speculative-algorithm EAGLE "
         "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 --speculative-adaptive",
         "0.5.23", "adaptive-steps"),
    ],
)  # fmt: skip
def test_a_draft_that_a_version_does_not_know_is_a_start_that_fails(
    command: str, version: str, rule: str
) -> None:
    model = "deepseek-ai/DeepSeek-R1-0528"
    assert rule in failing_rules(command.format(model), version, model)


def test_a_schedule_of_drafts_is_read_as_it_is_written() -> None:
    schedule = "[[1, 32, 16], [33, 65536, 0]]"
    command = (
        "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 --speculative-config.method mtp "
        "--speculative-config.num_speculative_tokens 3 "
        f"--speculative-config.num_speculative_tokens_per_batch_size '{schedule}'"
    )
    assert set_by(command, "0.33") == {"speculative_tokens": 3, "draft_schedule": schedule}


def asked(*pins: str) -> RunOptions:
    return RunOptions(
        QWEN, "h200", gpus=1, engines=["vllm"], on="simulator",
        workloads=["random:100:10:8"], pins=pins, study="s",
    )  # fmt: skip


def tried(*pins: str) -> Collection[tuple[object, ...]]:
    knobs = ("draft_model", "draft_method", "speculative_tokens", "max_running_requests")
    items = prepared(asked(*pins)).candidates.items[1:]
    return {tuple(item.configuration.knobs[name] for name in knobs) for item in items}


def test_the_drafts_that_a_user_names_are_searched_with_numbers_of_tokens(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 12288, "num_hidden_layers": 1, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 40960,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = tried(f"draft_model={tmp_path},ngram", "max_running_requests=256")
    assert found == {
        (None, None, 0, 256),
        *((str(tmp_path), "eagle3", k, 256) for k in (1, 3, 5)),
        *(("ngram", None, k, 256) for k in (1, 3, 5)),
    }


def test_several_values_of_a_knob_are_searched_and_each_is_checked() -> None:
    assert {row[3] for row in tried("max_running_requests=128,384")} == {128, 384}
    assert "--set max_running_requests=-1: no engine takes this value" in said(
        asked("max_running_requests=128,-1")
    )
