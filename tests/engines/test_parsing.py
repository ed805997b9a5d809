"""Command lines as the engines' own parsers take and refuse them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines.command import Command, Configuration
from autotune.engines.engine import Engine
from autotune.engines.registry import command_of, engine, recognise, split_command
from tests.engines.settings import OURS, R1, V32, context, read, set_by

VLLM = f"vllm serve {V32}"
SGLANG = f"python3 -m sglang.launch_server --model-path {V32}"
TRT = f"trtllm-serve {V32}"

SPELLINGS = [
    # what a person types, version, what it sets beside the engine's defaults on 8 GPUs
    (f"{VLLM} -tp 8", "0.32", {}),
    (f"{VLLM} -tp=8", "0.32", {}),
    (f"{VLLM} --tensor_parallel_size 8", "0.32", {}),
    (f"{VLLM} --tensor-parallel-size=8 --max-num-se 256", "0.32", {"max_running_requests": 256}),
    (f"vllm serve --model {V32} -tp 8", "0.32", {}),
    (f"python -m vllm.entrypoints.openai.api_server --model {V32} -tp 8", "0.13", {}),
    (f"python3 -u -X dev -m vllm.entrypoints.openai.api_server --model {V32} -tp 8", "0.13", {}),
    (f"/opt/venv/bin/vllm serve {V32} -tp 8 --max-model-len 32k", "0.32", {"context_length": 32000}),
    (f"{VLLM} -tp 8 --max-model-len 32K", "0.32", {"context_length": 32768}),
    (f"{VLLM} -tp 8 --max-model-len auto", "0.32", {"context_length": "auto"}),
    (f"{VLLM} -tp 8 --max-model-len -1", "0.14", {"context_length": "auto"}),
    (f"{VLLM} -tp 8 -sc.method mtp -sc.num_speculative_tokens 2", "0.32", {"speculative_tokens": 2}),
    (f"{VLLM} -tp 8 --speculative_config.num_speculative_tokens=3", "0.13", {"speculative_tokens": 3}),
    (f"{VLLM} -tp 8 --no-enable-prefix-caching", "0.32", {"prefix_caching": False}),
    (f"{VLLM} -tp 8 --disable_prefix_caching --enable-cascade-attn", "0.33", {"prefix_caching": False}),
    (f"{VLLM} -tp 8 --disable-log-requests", "0.33", {}),
    (f"{VLLM} -tp 8 --disable-log-requests", "0.34.0", {}),
    (f"{VLLM} -tp 8 -O0", "0.11", {"torch_compile": False}),
    (f"{VLLM} -tp 8 -O 0", "0.28", {"torch_compile": False}),
    (f"{VLLM} -tp 8 -O.level 0", "0.11", {"torch_compile": False}),
    (f"{VLLM} -tp 8 -O3", "0.32", {}),
    (f"{VLLM} -tp 8 -cc.mode 0", "0.28", {"torch_compile": False}),
    (f"{VLLM} -tp 8 --cuda-graph-sizes 1 2 64", "0.11", {"cuda_graph_max_batch": 64}),
    (f"{VLLM} -tp 8 --cudagraph-capture-sizes 1 2 64", "0.32", {"cuda_graph_max_batch": 64}),
    (f"VLLM_ALL2ALL_BACKEND=naive {VLLM} -tp 8", "0.11", {"moe_all_to_all": "naive"}),
    (f"{VLLM} -tp 8 -ac.backend FLASHMLA_SPARSE", "0.32", {"attention_backend": "FLASHMLA_SPARSE"}),
    (f"{SGLANG} --tp 8", "0.5.3", {}),
    (f"{SGLANG} --tensor-parallel-size 8", "0.5.23", {}),
    (f"/opt/bin/python3.11 -m sglang.launch_server --model {V32} --tp 8 --mem 0.8", "0.5.23", {"memory_fraction": 0.8}),
    (f"sglang serve --model {V32} --tp 8 --context-length 64k", "0.5.23", {"context_length": 64000}),
    (f"{SGLANG} --tp 8 --nsa-prefill flashmla_decode", "0.5.3", {"prefill_attention_backend": "flashmla_kv"}),
    (f"{SGLANG} --tp 8 --disable-cuda-graph", "0.5.23", {"cuda_graph_max_batch": 0}),
    (f"{SGLANG} --tp 8 --disable-decode-cuda-graph", "0.5.23", {"cuda_graph_max_batch": 0}),
    (f"{SGLANG} --tp 8 --cuda-graph-backend-decode disabled", "0.5.23", {"cuda_graph_max_batch": 0}),
    (f"{SGLANG} --tp 8 --disable-cuda-graph --cuda-graph-backend-decode full", "0.5.23", {}),
    (f"{SGLANG} --tp 8 --attn-dp-size 2", "0.5.23", {"tensor_parallel": 4, "data_parallel": 2}),
    (f"{SGLANG} --tp 8 --dp 8 --enable-dp-attention", "0.5.23", {"tensor_parallel": 1, "data_parallel": 8}),
    (f"{SGLANG} --tp 8 --dp 2 --enable-dp-attention", "0.5.6", {"tensor_parallel": 4, "data_parallel": 2}),
    (f"{TRT} --tp_size 8 --max_seq_len 32768", "1.2.0rc5", {"context_length": 32768}),
    (f"trtllm-serve serve --tp_size 8 {V32} --max_batch_size 512", "1.0", {"max_running_requests": 512}),
]  # fmt: skip


@pytest.mark.parametrize(("command", "version", "knobs"), SPELLINGS)
def test_a_spelling_is_read_as_the_engine_reads_it(
    command: str, version: str, knobs: dict[str, Any]
) -> None:
    assert set_by(command, version) == knobs


REFUSED = [
    (
        f"{VLLM} --max-num-sekvs 4",
        "0.32",
        r"unrecognized arguments: --max-num-sekvs 4.*did you mean --max-num-seqs",
    ),
    (
        f"{VLLM} --dtype bf17",
        "0.32",
        r"argument --dtype: invalid choice: 'bf17' \(choose from .*bfloat16",
    ),
    (f"{VLLM} --max-num-seqs many", "0.32", "argument --max-num-seqs: invalid int value: 'many'"),
    (f"{VLLM} --compilation-config nonsense", "0.32", "argument --compilation-config.*not JSON"),
    (f"{VLLM} --speculative-config 5", "0.32", "draft_model is malformed"),
    (f"{VLLM} --speculative-config.num_speculative_tokens", "0.32", "expected one argument"),
    (
        f"{VLLM} --max-num-s 4",
        "0.32",
        "ambiguous option: --max-num-s could match .*, --max-num-seqs",
    ),
    (f"{VLLM} --all2all-backend naive", "0.11", "unrecognized arguments: --all2all-backend naive"),
    ("vllm serve --tensor-parallel-size 8", "0.32", "names no model"),
    (f"{VLLM} --config missing.yaml", "0.32", "'missing.yaml' cannot be read"),
    ("python3 -m sglang.launch_server --tp 8", "0.5.23", "names no model"),
    (f"{SGLANG} --kv-cache-dtype fp9", "0.5.6", r"invalid choice: 'fp9' \(choose from .*fp8_e4m3"),
    (
        f"{SGLANG} --nsa-decode-backend fa3",
        "0.5.23",
        r"unrecognized arguments: --nsa-decode-backend fa3",
    ),
    (f"{SGLANG} --cuda-graph-max-bs-decode 4", "0.5.6", "unrecognized arguments"),
    (f"{TRT} --tp-size 8", "1.2", "unrecognized arguments: --tp-size 8; did you mean --tp_size"),
    (f"{TRT} --tp 8", "1.2", "unrecognized arguments: --tp 8"),
    (
        f"{VLLM} --swap-space 16 --guided_decoding_backend xgrammar --num-scheduler-steps 8",
        "0.33",
        r"--swap-space: removed in 0\.18\.0, delete it; --guided-decoding-backend: removed in 0\.12\.0, "
        r"write --structured-outputs-config\.backend; --num-scheduler-steps: removed in 0\.10\.1, delete it$",
    ),
    (f"{VLLM} --disable-log-requests", "0.32", r"requests: removed in 0\.17\.0, delete it$"),
    (f"{VLLM} --guided-decoding-backend x", "0.18.0", r"removed in 0\.12\.0, write --structured"),
    (f"{VLLM} --monokernel", "0.32", r"--monokernel: in 0\.33\.0$"),
    (
        f"{SGLANG} --tool-call-parser glm",
        "0.5.3",
        r"; --tool-call-parser glm: in 0\.5\.6\.post2 to 0\.5",
    ),
    (f"{SGLANG} --enable-radix-cache", "0.5.23", "arguments: --enable-radix-cache$"),
    (
        f"{SGLANG} --disable-piecewise-cuda-graph",
        "0.5.23",
        "write --cuda-graph-backend-prefill disa",
    ),
    (
        f"{SGLANG} --cuda-graph-max-bs 8",
        "0.5.21",
        "arguments: --cuda-graph-max-bs; --cuda-graph-max-bs: removed in",
    ),
]


@pytest.mark.parametrize(("command", "version", "message"), REFUSED)
def test_what_the_engine_refuses_is_bad_input_in_its_own_words(
    command: str, version: str, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        read(command, version)


@pytest.mark.parametrize(
    ("version", "key", "off"),
    [
        ("0.33", "enable-prefix-caching", True),
        ("0.28", "enable-prefix-caching", True),
        ("0.26", "enable-prefix-caching", False),
        ("0.33", "enable_prefix_caching", False),
        ("0.33", "enforce-eager", True),
    ],
)
def test_false_in_a_config_file_counts_in_the_versions_and_spellings_that_read_it(
    version: str, key: str, off: bool
) -> None:
    """https://github.com/vllm-project/vllm, argparse_utils.py of 0.26.0 to 0.33.0."""
    command = Command(
        ("vllm", "serve", V32, "--config", "c.yaml"),
        files={"c.yaml": f"{key}: false\nmax_num_seqs: 8\n"},
    )
    kind = engine("vllm")
    given = kind.given(
        kind.prepare((V32, *command.argv[3:]), kind.version(version), command),
        kind.version(version),
    )
    assert given.get(key.replace("-", "_")) is (False if off else None)
    assert given["max_num_seqs"] == 8


def test_false_that_vllm_drops_is_said(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("enable_prefix_caching: false\nenforce-eager: false\n")
    words = (V32, "--config", str(tmp_path / "c.yaml"))
    said = engine("vllm").borrowing("0.33.0", words) or ""
    assert "vLLM 0.33.0 ignores enable_prefix_caching: false" in said
    assert said.endswith("; add --no-enable-prefix-caching")
    assert "ignores enforce-eager" in (engine("vllm").borrowing("0.26.0", words) or "")


def test_an_unknown_program_is_answered_with_what_is_understood() -> None:
    with pytest.raises(
        BadInput,
        match=r"'lmdeploy serve api_server'.*'python3 -m sglang.launch_server …'.*'vllm serve …'",
    ):
        recognise(["lmdeploy", "serve", "api_server"])


@pytest.mark.parametrize("text", ["", "A=1", "A=1 B=2"])
def test_a_command_without_a_program_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match="names no program"):
        split_command(text)


def test_unbalanced_quotes_are_bad_input() -> None:
    with pytest.raises(BadInput, match="malformed command line"):
        split_command("vllm serve 'm")


def test_settings_stand_in_front_of_the_program() -> None:
    command = split_command("env A=1 B='x y' \\\n vllm serve m C=3 --api-key k=v")
    assert command.env == {"A": "1", "B": "x y"}
    assert command.argv == ("vllm", "serve", "m", "C=3", "--api-key", "k=v")
    assert command_of(["A=1", "vllm", "serve", "m"]) == Command(("vllm", "serve", "m"), {"A": "1"})


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("vllm", None, "0.33.0"),
        ("vllm", "0.11", "0.11.0"),
        ("vllm", "v0.13.0", "0.13.0"),
        ("sglang", "0.5.6", "0.5.6.post2"),
        ("sglang", "0.5.6.post2", "0.5.6.post2"),
        ("sglang", "0.5.3", "0.5.3"),
        ("sglang", "0.5", "0.5.23"),
        ("tensorrt_llm", "1.2.0rc5", "1.2.0"),
        ("tensorrt_llm", "1.2", "1.2.1"),
        ("tensorrt_llm", "1.3", "1.3.0rc24"),
        ("tensorrt_llm", "1.3.0rc14", "1.3.0rc14"),
        ("tensorrt_llm", "1.3.0", "1.3.0"),
        ("tensorrt_llm", None, "1.2.1"),
        ("tensorrt_llm", "1.0", "1.0.0"),
    ],
)
def test_a_version_is_found_by_its_release(name: str, text: str | None, version: str) -> None:
    assert engine(name).version(text) == version


@pytest.mark.parametrize("text", ["latest", "", "0.17.post1.dev (online pytorch backend)"])
@pytest.mark.parametrize("name", OURS)
def test_what_is_no_version_is_answered_with_the_known_ones(name: str, text: str) -> None:
    with pytest.raises(BadInput, match=f"unknown {name} version.*{engine(name).card.newest}"):
        engine(name).version(text)


def test_an_unknown_engine_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'sglang'.*tensorrt_llm, vllm"):
        engine("sglnag")


def with_file(command: str, name: str, text: str) -> tuple[Engine, Command]:
    split = split_command(command)
    return recognise(split.argv), Command(split.argv, split.env, {name: text})


@pytest.mark.parametrize(
    ("written", "limit", "padding"),
    [
        ("{enable_padding: true, max_batch_size: 128}", 128, True),
        ("{enable_padding: true, max_batch_size: 512}", 512, False),  # which has it anyway
        ("{max_batch_size: 128}", 128, False),
    ],
)
def test_padding_up_to_tensorrt_llm_s_own_limit_is_not_its_default(
    written: str, limit: int, padding: bool
) -> None:
    kind, command = with_file(
        f"{TRT} --extra_llm_api_options c.yaml", "c.yaml", f"cuda_graph_config: {written}"
    )
    knobs = kind.knobs(kind.parse(command, "1.2.0"), context("1.2.0", R1)).knobs
    assert (knobs["cuda_graph_max_batch"], knobs["cuda_graph_padding"]) == (limit, padding)


def test_tensorrt_llm_s_config_file_wins_over_the_command_line() -> None:
    text = """
tensor_parallel_size: 8
max_batch_size: 64
enable_attention_dp: true
kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.7, enable_block_reuse: false, tokens_per_block: 32}
moe_config: {backend: DEEPGEMM}
speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}
cuda_graph_config: {batch_sizes: [1, 2, 256]}
"""
    kind, command = with_file(
        f"{TRT} --tp_size 4 --max_batch_size 512 --config c.yaml", "c.yaml", text
    )
    judged = context("1.2.0", R1)
    knobs = kind.knobs(kind.parse(command, "1.2.0"), judged).knobs
    base = kind.default_knobs(judged)
    assert {name: value for name, value in knobs.items() if value != base[name]} == {
        "tensor_parallel": 1,
        "data_parallel": 8,
        "max_running_requests": 64,
        "kv_cache_dtype": "fp8",
        "memory_fraction": 0.7,
        "prefix_caching": False,
        "tokens_per_block": 32,
        "moe_backend": "DEEPGEMM",
        "speculative_tokens": 3,
        "cuda_graph_max_batch": 256,
    }


TWICE = """
tensor_parallel_size: 8
max_batch_size: 64
kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.7}
"""


@pytest.mark.parametrize(
    ("version", "won"),
    [
        ("1.2.0", (8, 64, 0.7)),
        ("1.3.0rc15", (8, 64, 0.7)),
        ("1.3.0rc21", (8, 512, 0.8)),
        ("1.4.0rc1", (8, 512, 0.8)),
    ],
)
def test_of_what_tensorrt_llm_is_told_twice_the_version_says_which_counts(
    version: str, won: tuple[Any, ...]
) -> None:
    options = "--max_batch_size 512 --kv_cache_free_gpu_memory_fraction 0.8"
    kind, command = with_file(f"{TRT} {options} --config c.yaml", "c.yaml", TWICE)
    knobs = kind.knobs(kind.parse(command, version), context(version, R1)).knobs
    assert (
        knobs["tensor_parallel"],
        knobs["max_running_requests"],
        knobs["memory_fraction"],
    ) == won
    assert knobs["kv_cache_dtype"] == "fp8"


def test_a_cache_section_replaces_the_memory_fraction_of_the_command_line_up_to_1_1() -> None:
    line = f"{TRT} --kv_cache_free_gpu_memory_fraction 0.6 --extra_llm_api_options c.yaml"
    kind, command = with_file(line, "c.yaml", "kv_cache_config: {dtype: fp8}")
    found = {
        v: kind.knobs(kind.parse(command, v), context(v, R1)).knobs["memory_fraction"]
        for v in ("1.0.0", "1.2.0")
    }
    assert found == {"1.0.0": 0.9, "1.2.0": 0.6}


@pytest.mark.parametrize(
    ("version", "key"),
    [
        ("1.0.0", "num_nextn_predict_layers"),
        ("1.2.1", "num_nextn_predict_layers"),
        ("1.3.0rc15", "num_nextn_predict_layers"),
        ("1.3.0rc16", "max_draft_len"),
        ("1.4.0rc1", "max_draft_len"),
    ],
)
def test_tensorrt_llm_is_told_its_drafts_and_its_memory_as_the_version_takes_them(
    version: str, key: str
) -> None:
    kind, judged = engine("tensorrt_llm"), context(version, R1)
    asked = Configuration(
        "tensorrt_llm", {**kind.default_knobs(judged), "tensor_parallel": 8}
    ).with_knobs(speculative_tokens=3, memory_fraction=0.75, prefix_caching=False)
    command = kind.command(asked, judged)
    assert yaml.safe_load(command.files["trtllm-config.yaml"]) == {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.75, "enable_block_reuse": False},
        "speculative_config": {"decoding_type": "MTP", key: 3},
    }
    assert not [word for word in command.argv if "fraction" in word]
    assert kind.knobs(kind.parse(command, version), judged) == asked


NO_KEY = "Extra inputs are not permitted"
BACKENDS = (
    "Input should be 'CUTLASS', 'CUTEDSL', 'WIDEEP', 'TRTLLM', 'DEEPGEMM', 'VANILLA' or 'TRITON'"
)


@pytest.mark.parametrize(
    ("version", "text", "message"),
    [
        (
            "1.2.0",
            "max_batch_sice: 3",
            f"max_batch_sice: {NO_KEY} [input_value=3]; did you mean max_batch_size?",
        ),
        (
            "1.2.0",
            "kv_cache_config: {dtipe: fp8}",
            f"kv_cache_config.dtipe: {NO_KEY} [input_value='fp8']; did you mean kv_cache_config.dtype?",
        ),
        ("1.2.1", "moe_config: {backend: AUTO}", f"moe_config.backend: {BACKENDS}"),
        (
            "1.2.1",
            "enable_energy_metrics: true",
            f"enable_energy_metrics: {NO_KEY} [input_value=True]; it is a key of 1.3.0rc24",
        ),
        (
            "1.3.0rc24",
            "enable_sleep: true",
            f"enable_sleep: {NO_KEY} [input_value=True]; it is sleep_config now",
        ),
        (
            "1.3.0rc24",
            "kv_cache_config: {onboard_blocks: true}",
            f"kv_cache_config.onboard_blocks: {NO_KEY} [input_value=True]; it is a key of 1.0.0 to 1.2.1",
        ),
        (
            "1.3.0rc24",
            "kv_cache_config: {block_reuse_policy: per_request}",
            f"{NO_KEY} [input_value='per_request']; it is kv_cache_config.block_reuse_config.policy now",
        ),
        (
            "1.3.0rc24",
            "kv_cache_config: {dtype: fp8_e4m3}",
            'kv_cache_config.dtype must be one of "auto", "fp8", "nvfp4", or valid torch.dtype',
        ),
        (
            "1.3.0rc24",
            "load_format: dumy",
            "load_format: Value error, Invalid LoadFormat [input_value='dumy']",
        ),
        ("1.3.0rc24", "stream_interval: 0", "stream_interval: Input should be greater than 0"),
        (
            "1.3.0rc24",
            "cuda_graph_config: {batch_sizes: 8}",
            "cuda_graph_config.batch_sizes: Input should be a valid list",
        ),
        (
            "1.3.0rc24",
            "max_batch_size: many",
            "max_batch_size: Input should be a valid integer, unable to parse string as an integer",
        ),
        ("1.2.0", "[1]", "not a mapping"),
        ("1.2.0", "a: [", "not YAML"),
    ],
)
def test_a_config_file_that_the_engine_refuses_is_refused_in_its_words(
    version: str, text: str, message: str
) -> None:
    kind, command = with_file(f"{TRT} --extra_llm_api_options c.yaml", "c.yaml", text)
    with pytest.raises(BadInput, match=re.escape(message)):
        kind.parse(command, version)


def test_a_config_file_that_a_version_takes_is_none_that_it_refuses() -> None:
    """A file with what is odd but right: other spellings of values, mappings with any keys."""
    texts = {
        "1.2.0": "{disable_flashinfer_sampling: true, env_overrides: {A: 1}, print_iter_log: 'yes'}",
        "1.2.1": "{load_format: DUMMY, disagg_cluster: {cluster_uri: x}, cuda_graph_config: null}",
        "1.3.0rc24": "{kv_cache_config: {dtype: FP8, use_kv_cache_manager_v2: auto}, "
        "speculative_config: {decoding_type: MTP, speculative_model_dir: /m}, max_batch_size: '8'}",
    }
    for version, text in texts.items():
        kind, command = with_file(f"{TRT} --extra_llm_api_options c.yaml", "c.yaml", text)
        assert kind.parse(command, version).config


def test_keys_that_the_nearest_table_lacks_are_told_for_another_version(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "{use_fine_grained_sync: true, enable_sleep: true, moe_config: {backend: NEW}, dtype: auto}"
    )
    kind, words = engine("tensorrt_llm"), [*TRT.split(), "--config", str(file), "--new_flag", "1"]
    told = kind.borrowing("1.4.0rc1", words)
    assert told is not None
    assert "TensorRT-LLM 1.4.0rc1's flags are not bundled; using those of 1.3.0rc24" in told
    lacking = "--new_flag, moe_config.backend: NEW, use_fine_grained_sync, enable_sleep"
    assert f"they lack {lacking}, passed on unchecked" in told
    assert kind.parse(Command(tuple(words)), "1.4.0rc1").config["enable_sleep"] is True
    assert kind.borrowing("1.3.0rc24", words) is None


def test_tensorrt_llm_s_newer_flags_say_what_their_keys_say() -> None:
    """TensorRT-LLM 1.3.0rc24: flags for attention DP and the cache's type (#11487)."""
    flags, judged = f"{TRT} --tp_size 8 --enable_attention_dp --kv_cache_dtype fp8", "1.3.0rc24"
    knobs = read(flags, judged, R1).knobs
    assert (knobs["tensor_parallel"], knobs["data_parallel"]) == (1, 8)
    assert knobs["kv_cache_dtype"] == "fp8"
    text = "{enable_attention_dp: false, kv_cache_config: {dtype: auto}}"
    kind, command = with_file(f"{flags} --config c.yaml", "c.yaml", text)
    for version, layout, cache in [("1.3.0rc24", (1, 8), "fp8"), ("1.3.0rc14", (8, 1), "auto")]:
        told = kind.knobs(kind.parse(command, version), context(version, R1)).knobs
        assert (told["tensor_parallel"], told["data_parallel"]) == layout
        assert told["kv_cache_dtype"] == cache


@pytest.mark.parametrize(
    "program", [f"vllm serve {V32}", f"python3 -m sglang.launch_server --model-path {V32}"]
)
def test_options_of_a_config_file_give_way_to_the_command_line(program: str) -> None:
    vllm = program.startswith("vllm")
    option = "max-num-seqs" if vllm else "max-running-requests"
    text = f"tensor-parallel-size: 8\n{option}: 64\n{'enforce-eager' if vllm else 'enable-torch-compile'}: true\n"
    kind, command = with_file(f"{program} --config c.yaml", "c.yaml", text)
    judged = context(kind.card.newest)
    knobs = kind.knobs(kind.parse(command, judged.version), judged).knobs
    assert knobs["tensor_parallel"] == 8
    assert knobs["max_running_requests"] == 64
    assert knobs["enforce_eager" if vllm else "torch_compile"] is True
    kind, command = with_file(f"{program} --config=c.yaml --{option} 128", "c.yaml", text)
    assert (
        kind.knobs(kind.parse(command, judged.version), judged).knobs["max_running_requests"] == 128
    )


WORDS = st.one_of(
    st.sampled_from(
        [
            "-tp",
            "8",
            "--config",
            "-O",
            "-O3",
            "--",
            "-",
            "--speculative-config",
            "{}",
            "[1]",
            "=",
            "--x.y",
            "1e9",
        ]
    ),
    st.sampled_from(
        [f for name in OURS for f in sorted(engine(name).table(engine(name).card.newest).flags)]
    ),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(OURS), words=st.lists(WORDS, max_size=6))
@example("vllm", ["--config", "\0"])
def test_no_command_line_raises_anything_but_bad_input(name: str, words: list[str]) -> None:
    kind = engine(name)
    model = (V32,) if kind.card.model_flag is None else (kind.card.model_flag, V32)
    judged = context(kind.card.newest)
    with suppress(BadInput):
        knobs = kind.knobs(
            kind.parse(Command((*kind.card.program, *model, *words)), judged.version), judged
        ).knobs
        assert set(knobs) == set(kind.card.knobs)
