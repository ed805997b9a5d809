"""Every option of the newest versions has one class, and none that is not simulated changes a
figure in silence."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import BadInput
from autotune.engines.command import Configuration
from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.options import settings
from autotune.engines.registry import engine, split_command
from autotune.engines.schema import Option
from autotune.load.workloads import load_workload
from autotune.node.resolve_command import not_simulated_in, prediction, resolve_for
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.search.priors.simulated import physical
from autotune.tuner.study.options import RunOptions
from tests.engines.option_classes import NEWEST, OptionClass, class_of, classes, read_knobs
from tests.product.cli import autotune

LIBRARY = Library()
DENSE = "Qwen/Qwen3-32B"
START = {
    "vllm": f"vllm serve {DENSE} -tp 2",
    "sglang": f"python3 -m sglang.launch_server --model-path {DENSE} --tp-size 2",
    "tensorrt_llm": f"trtllm-serve {DENSE} --tp_size 2",
}
FILES = ("model", "model_path", "config", "extra_llm_api_options")
"""Destinations of options that name a model, or a file of further options."""
YARN = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'
FIGURES = (
    "total_token_throughput",
    "median_ttft_ms",
    "median_tpot_ms",
    "kv_cache_tokens",
    "weights_gb",
)


def predicted(
    name: str, more: str = "", model: str = DENSE, hardware: str = "h100"
) -> dict[str, Any]:
    version, kind = NEWEST[name], engine(name)
    command = split_command(f"{START[name].replace(DENSE, model)} {more}")
    context = Context(LIBRARY.model(model), LIBRARY.hardware[hardware], 2, version)
    return prediction(resolve_for(kind, command, context), load_workload("random:512:32:8"), 0)


def written(option: Option) -> str | None:
    """Write an option with another value than its default; None where that is not known."""
    flag = next((one for one in option.flags if one.startswith("--")), option.flags[0])
    if option.action == "store_true":
        return flag
    if option.action == "boolean_optional":
        return f"--no-{flag[2:]}" if option.default else flag
    if option.action not in ("store", "append") or option.nargs == 0:
        return None
    others = [one for one in option.choices if one not in (None, option.default)]
    values = {
        "int": "3",
        "human_int": "3",
        "float": "0.5",
        "json": "'{\"key\": 1}'",
        "bool": "true",
        "str": "other",
    }
    return f"{flag} {others[0] if others else values.get(option.type, 'other')}"


@pytest.mark.parametrize("name", NEWEST)
def test_thirty_options_of_an_engine_have_one_class_each_and_change_nothing_in_silence(
    name: str,
) -> None:
    kind, version = engine(name), NEWEST[name]
    read, plain = read_knobs(name, version), predicted(name)
    every = [option for option in kind.table(version).options if option.dest not in FILES]
    chosen = random.Random(f"{name} {version}").sample(every, min(30, len(every)))
    compared = dict.fromkeys(OptionClass, 0)
    for option in chosen:
        if (text := written(option)) is None:
            continue
        with_it = predicted(name, text)
        if with_it["failure"] is not None and with_it["kv_cache_tokens"] is None:
            continue  # It does not start, and says so.
        named = with_it["not_simulated"]
        same = all(with_it.get(figure) == plain[figure] for figure in FIGURES)
        for setting in settings(kind, kind.parse(split_command(f"{START[name]} {text}"), version)):
            if setting.name in START[name] or setting.name == "--tensor-parallel-size":
                continue
            own = class_of(kind, version, setting, read)
            compared[own] += 1
            if own is OptionClass.NOT_SIMULATED:
                # Of a knob the value may be what the engine chooses anyway.
                assert setting.name in named or setting.knobs, text
            else:
                assert setting.name not in named, text
            assert same or named or own is OptionClass.SIMULATED, text
    print(f"{name} {version}: {dict(compared)}")
    assert compared[OptionClass.NOT_SIMULATED] > 0


def test_the_classes_are_those_of_three_whole_tables() -> None:
    found = {name: classes(name, version) for name, version in NEWEST.items()}
    assert {name: len(own) for name, own in found.items()} == {
        "vllm": 320,
        "sglang": 531,
        "tensorrt_llm": 32,
    }
    assert found["vllm"]["--max-num-seqs"] is OptionClass.SIMULATED
    assert found["vllm"]["--ssl-keyfile"] is OptionClass.NO_EFFECT
    assert found["vllm"]["--enable-lora"] is OptionClass.NOT_SIMULATED
    assert found["sglang"]["--chunked-prefill-size"] is OptionClass.SIMULATED
    assert found["sglang"]["--served-model-name"] is OptionClass.NO_EFFECT
    assert found["sglang"]["--enable-hierarchical-cache"] is OptionClass.NOT_SIMULATED
    assert found["tensorrt_llm"]["--max_num_tokens"] is OptionClass.SIMULATED
    assert found["tensorrt_llm"]["--port"] is OptionClass.NO_EFFECT
    assert found["tensorrt_llm"]["--num_postprocess_workers"] is OptionClass.NOT_SIMULATED


@pytest.mark.parametrize("name", NEWEST)
def test_what_a_card_names_without_effect_is_an_option_of_some_version(name: str) -> None:
    card, kind = engine(name).card, engine(name)
    known = {flag for version in card.versions for flag in kind.table(version).flags}
    named = [
        pattern
        for one in (*card.neutral, *card.simulated)
        for pattern in one.names
        if pattern[:2] == "--"
    ]
    plain = {pattern.partition("*")[0].partition(".")[0] for pattern in named}
    assert [one for one in plain if not any(flag.startswith(one) for flag in known)] == []
    assert all(
        one.reason and one.source
        for one in (*card.neutral, *card.simulated, *card.loaded, *card.refusals)
    )


@pytest.mark.parametrize(
    ("name", "more", "named"),
    [
        ("vllm", "--enable-lora --max-loras 4", ["--enable-lora", "--max-loras"]),
        ("vllm", "--cpu-offload-gb 10", ["--cpu-offload-gb"]),
        ("vllm", "--served-model-name chat --port 9000 --api-key x --chat-template t.jinja --seed 3", []),
        ("vllm", "--enable-chunked-prefill --max-num-seqs 64", []),
        ("vllm", "--no-enable-chunked-prefill", ["--no-enable-chunked-prefill"]),
        ("vllm", "--load-format safetensors", []),
        ("vllm", "--kv-cache-dtype int8_per_token_head", ["--kv-cache-dtype"]),
        ("vllm", "-cc.pass_config.fuse_attn_quant true", ["--compilation-config.pass_config.fuse_attn_quant"]),
        ("vllm", "--quantization torchao", ["--quantization"]),
        ("vllm", "--quantization FP8", ["--quantization"]),  # vLLM lowers it
        ("sglang", "--enable-torch-compile", ["--enable-torch-compile"]),
        ("sglang", "--stream-interval 4 --log-level warning", []),
        ("sglang", "--log-level debug", ["--log-level"]),
        ("tensorrt_llm", "--num_postprocess_workers 4", ["--num_postprocess_workers"]),
    ],
)  # fmt: skip
def test_what_is_not_simulated_is_named(name: str, more: str, named: list[str]) -> None:
    assert predicted(name, more)["not_simulated"] == named


def test_variables_in_front_count_as_well() -> None:
    kind, version = engine("vllm"), NEWEST["vllm"]
    command = split_command(
        f"HF_HUB_OFFLINE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 NCCL_ALGO=Ring {START['vllm']}"
    )
    context = Context(LIBRARY.model(DENSE), LIBRARY.hardware["h100"], 2, version)
    found = prediction(resolve_for(kind, command, context), load_workload("random:64:4:4"), 0)
    assert found["not_simulated"] == ["VLLM_ENABLE_V1_MULTIPROCESSING", "NCCL_ALGO"]


def test_an_option_that_a_borrowed_table_lacks_is_not_simulated() -> None:
    kind = engine("vllm")
    context = Context(LIBRARY.model(DENSE), LIBRARY.hardware["h100"], 2, "0.40.0")
    resolved = resolve_for(kind, split_command(f"{START['vllm']} --brand-new-option 3"), context)
    assert prediction(resolved, load_workload("random:64:4:4"), 0)["not_simulated"] == [
        "--brand-new-option"
    ]


@pytest.mark.parametrize(
    ("name", "how"),
    [("vllm", "fp8"), ("vllm", "fp8_per_tensor"), ("sglang", "fp8"), ("sglang", "w8a8_fp8")],
)
def test_weights_quantised_while_they_load_leave_16_gb_of_each_gpu_to_the_cache(
    name: str, how: str
) -> None:
    plain, quantised = predicted(name), predicted(name, f"--quantization {how}")
    checkpoint = predicted(name, model="Qwen/Qwen3-32B-FP8")
    # 31.2 of 32.8 billion weights are in the layers' matrices: a byte less for each, on two GPUs.
    assert plain["weights_gb"] - quantised["weights_gb"] == pytest.approx(15.6, abs=0.1)
    assert quantised["weights_gb"] == pytest.approx(checkpoint["weights_gb"], rel=0.01)
    assert quantised["kv_cache_gb"] > plain["kv_cache_gb"] + 13
    assert quantised["median_tpot_ms"] < plain["median_tpot_ms"]
    assert quantised["not_simulated"] == []
    assert any("quantised to fp8" in reason for reason in quantised["effects"])


@pytest.mark.parametrize(
    ("name", "how", "model", "hardware", "kind", "words"),
    [
        ("vllm", "bogus", DENSE, "h100", "bad_argument", "Unknown quantization method: bogus"),
        ("vllm", "awq", DENSE, "h100", "bad_argument", "Cannot find the config file for awq"),
        ("vllm", "awq", "Qwen/Qwen3-32B-FP8", "h100", "bad_argument", "(fp8) does not match"),
        ("vllm", "fp8_per_tensor", "Qwen/Qwen3-32B-FP8", "h100", "bad_argument", "(fp8_per_tensor)"),
        ("vllm", "gptq_marlin", DENSE, "mi300x", "bad_argument", "Cannot find the config file"),
        ("vllm", "experts_int8", DENSE, "mi300x", "unsupported", "experts_int8 quantization is currently not"),
        ("sglang", "awq", DENSE, "h100", "bad_argument", "Cannot find the config file for awq"),
        ("sglang", "w8a8_fp8", DENSE, "a100", "unsupported", "not supported for the current GPU"),
        ("sglang", "w8a8_int8", DENSE, "mi300x", "unsupported", "w8a8_int8 quantization is currently not"),
        ("sglang", "awq", "Qwen/Qwen3-32B-FP8", "h100", "bad_argument", "(fp8) does not match"),
    ],
)  # fmt: skip
def test_a_method_that_the_engine_refuses_does_not_run(
    name: str, how: str, model: str, hardware: str, kind: str, words: str
) -> None:
    failure = predicted(name, f"--quantization {how}", model, hardware)["failure"]
    assert failure["kind"] == kind
    assert words in failure["log"]


def test_the_checkpoints_own_method_changes_nothing() -> None:
    for name, model, how in (
        ("vllm", "Qwen/Qwen3-32B-FP8", "fp8"),
        ("sglang", "Qwen/Qwen3-32B-AWQ", "awq_marlin"),
    ):
        plain, named = predicted(name, model=model), predicted(name, f"--quantization {how}", model)
        assert [plain[one] for one in FIGURES] == [named[one] for one in FIGURES]
        assert named["not_simulated"] == []


def test_adapters_take_memory_and_offloading_gives_it() -> None:
    plain = predicted("vllm")["weights_gb"]
    # Rank 16 and Qwen3-32B's sizes: 64 layers of 16 x 83,456 values of two bytes on each of two
    # GPUs, four times.
    adapters = predicted("vllm", "--enable-lora --max-loras 4")["weights_gb"] - plain
    assert adapters == pytest.approx(4 * 64 * 16 * 83_456 * 2 / 1e9, rel=1e-6)
    assert plain - predicted("vllm", "--cpu-offload-gb 10")["weights_gb"] == pytest.approx(
        10 * 2**30 / 1e9
    )
    # The vocabulary stays, however much may go.
    assert predicted("vllm", "--cpu-offload-gb 400")["weights_gb"] == pytest.approx(
        151_936 * 5_120 * 2 / 1e9, rel=1e-6
    )


@pytest.mark.e2e
def test_a_study_and_its_exports_name_what_no_figure_depends_on(tmp_path: Path) -> None:
    blind = f"{START['vllm']} --max-num-seqs 64 --enable-lora --max-loras 4"
    study = [
        "run",
        "--model",
        DENSE,
        "--hw",
        "h100",
        "--gpus",
        "2",
        "--engine",
        "vllm",
        "--on",
        "simulator",
    ]
    load = ["--workload", "random:256:16:8", "--launches", "4", "--study", "s"]
    done = autotune(*study, *load, "--baseline", blind, home=tmp_path)
    assert done.code == 0, done.err
    assert "Not simulated: --enable-lora, --max-loras" in done.out
    outcome = json.loads((tmp_path / "studies" / "s" / "recommendation.json").read_text())
    assert outcome["baseline"]["not_simulated"] == ["--enable-lora", "--max-loras"]
    named = "Not simulated: --enable-lora, --max-loras"
    assert named in (tmp_path / "studies" / "s" / "serve.sh").read_text()
    assert named in (tmp_path / "studies" / "s" / "report.md").read_text()
    assert named in autotune("compare", "s", "s", home=tmp_path).out


def test_a_baseline_that_the_engine_refuses_is_no_study(tmp_path: Path) -> None:
    study = ["run", "--model", DENSE, "--hw", "h100", "--gpus", "2", "--on", "simulator"]
    for method, words in (
        ("bogus", "Unknown quantization method: bogus"),
        ("awq", "Cannot find the config file for awq"),
    ):
        done = autotune(
            *study, "--baseline", f"{START['vllm']} --quantization {method}", home=tmp_path
        )
        assert done.code == 2
        assert words in done.err
        assert "Traceback" not in done.err


def test_options_that_go_with_every_candidate_count_in_its_memory() -> None:
    asked = {"engines": ["vllm"], "on": "simulator", "workloads": ["random:256:16:8"], "study": "s"}
    plain = prepare(build_spec(RunOptions(DENSE, "h100", gpus=1, **asked)), LIBRARY)
    passed = RunOptions(DENSE, "h100", gpus=1, engine_args=["vllm=--quantization fp8"], **asked)
    quantised = prepare(build_spec(passed), LIBRARY)
    assert quantised.spaces["vllm"].context.model.architecture.weight_bytes == 1.0
    # 65 GB of weights leave no room for a whole context beside them in 80 GB, 34 GB of them do.
    odds = [
        max(prior.p_starts[study.candidates.baseline] for prior in physical(study))
        for study in (plain, quantised)
    ]
    assert odds[0] < 0.5
    assert odds[1] > 0.9
    # DeepGEMM multiplies blocks; a checkpoint in blocks is tried with and without it.
    assert {one.configuration.knobs["deep_gemm"] for one in quantised.candidates.items} == {True}
    blocks = prepare(build_spec(RunOptions("Qwen/Qwen3-32B-FP8", "h100", gpus=1, **asked)), LIBRARY)
    assert {one.configuration.knobs["deep_gemm"] for one in blocks.candidates.items} == {
        True,
        False,
    }
    refused = RunOptions(DENSE, "h100", gpus=1, engine_args=["vllm=--quantization bogus"], **asked)
    with pytest.raises(BadInput, match="Unknown quantization method: bogus"):
        prepare(build_spec(refused), LIBRARY)


def test_the_other_side_of_a_comparison_names_its_own(tmp_path: Path) -> None:
    versus = ["simulate", "--hw", "h100", "--gpus", "2", "--workload", "random:64:8:8", "--versus"]
    told = autotune(
        *versus, f"{START['vllm']} --enable-lora", "--", *START["vllm"].split(), home=tmp_path
    ).out
    assert "not simulated there: --enable-lora\n" in told
    assert "\nnot simulated:" not in told


@pytest.mark.parametrize(
    "model", ["deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-R1", DENSE, "openai/gpt-oss-120b"]
)
@pytest.mark.parametrize("name", NEWEST)
def test_what_autotune_writes_for_nvidia_is_simulated_or_without_effect(
    name: str, model: str
) -> None:
    kind, node = engine(name), LIBRARY.hardware["h200"]
    context = Context(LIBRARY.model(model), node, 8, NEWEST[name])
    command = kind.command(Configuration(name, kind.default_knobs(context)), context)
    assert not_simulated_in(command, LIBRARY, context) == []


def test_vllms_short_spellings_of_drafting_are_read() -> None:
    kind, version = engine("vllm"), NEWEST["vllm"]
    context = Context(
        LIBRARY.model("deepseek-ai/DeepSeek-R1"), LIBRARY.hardware["h200"], 8, version
    )

    def drafting(more: str) -> tuple[object, object]:
        knobs = kind.knobs(
            kind.parse(split_command(f"vllm serve deepseek-ai/DeepSeek-R1 -tp 8 {more}"), version),
            context,
        )
        return knobs.knobs["speculative_tokens"], knobs.knobs["draft_model"]

    assert drafting("") == (0, None)
    assert drafting("--spec-method mtp --spec-tokens 2") == (2, None)
    assert drafting("--spec-method eagle3 --spec-model some/draft") == (1, "some/draft")


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("vllm", "--speculative-config.method ngram", "--speculative-config.method"),
        ("vllm", "--spec-method suffix", "--spec-method"),
        ("sglang", "--speculative-algorithm NGRAM", "--speculative-algorithm"),
    ],
)
def test_a_way_to_draft_that_is_not_modelled_is_told(name: str, more: str, told: str) -> None:
    context = Context(LIBRARY.model(DENSE), LIBRARY.hardware["h100"], 2, NEWEST[name])
    assert told in not_simulated_in(split_command(f"{START[name]} {more}"), LIBRARY, context)


@pytest.mark.parametrize(
    ("version", "more", "limit"),
    [
        # Since 0.30 YaRN's factor counts as applied (config/model.py _get_and_verify_max_len).
        ("0.26.0", f"--hf-overrides '{{\"rope_scaling\": {YARN}}}'", 131072),
        ("0.33.0", f"--hf-overrides '{{\"rope_scaling\": {YARN}}}'", 40960),
        ("0.33.0", "--hf-overrides.max_position_embeddings 131072", 131072),
        (
            "0.33.0",
            "--hf-overrides.rope_parameters.rope_type=linear "
            "--hf-overrides.rope_parameters.factor=2",
            81920,
        ),
        ("0.11.0", f"--rope-scaling '{YARN}'", 131072),
        (
            "0.33.0",
            '--hf-overrides \'{"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}\'',
            40960,
        ),
    ],
)
def test_stretched_positions_are_the_limit_of_the_context(
    version: str, more: str, limit: int
) -> None:
    context = Context(LIBRARY.model(DENSE), LIBRARY.hardware["h100"], 2, version)
    resolved = resolve_for(engine("vllm"), split_command(f"{START['vllm']} {more}"), context)
    assert resolved.failure is None
    assert resolved.context.model.architecture.context_limit == limit


def test_a_malformed_override_is_an_error_of_the_command() -> None:
    context = Context(LIBRARY.model(DENSE), LIBRARY.hardware["h100"], 2, NEWEST["vllm"])
    with pytest.raises(BadInput, match="malformed"):
        resolve_for(engine("vllm"), split_command(f"{START['vllm']} --hf-overrides '[1]'"), context)
