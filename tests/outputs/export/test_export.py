"""The exports: what a server would receive from them, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autotune.base import redact
from autotune.base.errors import BadInput, UnknownName
from autotune.engines.command import Command, Configuration
from autotune.outputs.export import FORMATS, winner_of
from autotune.outputs.export import export as written
from autotune.tuner.study.recommendation import Recommendation, Verdict
from tests import small_study
from tests.small_study import MODEL, SECRET

# A stand-in for the engine: writes down its arguments and environment, each ended by a NUL, and the
# files it is given.
STAND_IN = """#!/bin/bash
printf '%s\\0' "$@" > "$RECORD/argv"
env -0 > "$RECORD/env"
for argument in "$@"; do
  value="${argument#*=}"
  case "$value" in "$TMPDIR"/*) cat "$value" > "$RECORD/file" ;; esac
done
"""
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)
NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{2,12}", fullmatch=True).filter(
    lambda name: (
        not redact.is_secret_name(name) and name not in {"PATH", "RECORD", "TMPDIR", "PWD", "SHLVL"}
    )
)


def recommend(command: Command, engine: str = "vllm") -> Recommendation:
    choice = small_study.choice(Configuration(engine, {}), 9100.0, command)
    return small_study.recommendation(recommended=choice)


def export(outcome: Recommendation, form: str) -> str:
    """A recommendation of the small study in a format."""
    return written(winner_of(outcome, small_study.spec(), small_study.launches()), form)


class Machine:
    """A machine with a stand-in engine on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "tmp", "record"):
            (folder / name).mkdir()
        (folder / "bin" / "vllm").write_text(STAND_IN)
        (folder / "bin" / "vllm").chmod(0o755)

    def serve(self, script: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = self.folder / "serve.sh"
        path.write_text(script)
        env = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "RECORD": str(self.folder / "record"),
            "TMPDIR": str(self.folder / "tmp"),
            **variables,
        }
        command = ["bash", str(path), *more]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def argv(self) -> list[str]:
        return (self.folder / "record" / "argv").read_bytes().decode().split("\0")[:-1]

    @property
    def env(self) -> dict[str, str]:
        rows = (self.folder / "record" / "env").read_bytes().decode().split("\0")[:-1]
        return dict(row.split("=", 1) for row in rows)

    @property
    def file(self) -> str:
        return (self.folder / "record" / "file").read_bytes().decode()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(TEXT.filter(lambda word: redact.argv([word]) == [word]), max_size=6),
    st.dictionaries(NAMES, TEXT, max_size=3),
)
@example(
    ["$(touch x)", "`id`", "'", '"', "a b", "", "\n", "*", "!!", "\\", "--x='y'"],
    {"A_B": "$HOME\n'\""},
)
def test_the_script_starts_the_engine_with_exactly_these_words(
    machine: Machine, words: Sequence[str], variables: Mapping[str, str]
) -> None:
    # One word after an option that is no secret's, so that no word is masked by its place.
    argv = [
        "vllm",
        "serve",
        MODEL,
        *(f"--x={word}" for word in words),
        "--host",
        "127.0.0.1",
        "--y",
        *words[:1],
    ]
    argv = argv if redact.argv(argv) == argv else [*argv[:3], "--host", "::1"]
    variables = {
        name: value
        for name, value in variables.items()
        if redact.env({name: value}) == {name: value}
    }
    done = machine.serve(export(recommend(Command(tuple(argv), dict(variables))), "shell"))
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.argv == argv[1:]
    assert variables.items() <= machine.env.items()


def test_the_script_is_valid_and_says_what_it_is_worth(tmp_path: Path) -> None:
    script = export(small_study.recommendation(study="a\nb; rm -rf"), "shell")
    (tmp_path / "serve.sh").write_text(script)
    subprocess.run(["bash", "-n", tmp_path / "serve.sh"], check=True, timeout=30)
    head = script.partition("set -euo pipefail")[0]
    assert head.startswith("#!/usr/bin/env bash\n")
    assert all(line.startswith("#") for line in head.splitlines())
    assert "SIMULATED, not measured" in head
    assert "+51.7 % (95 % interval +47.2 % to +56.1 %" in head
    assert "study a b; rm -rf" in head


def test_the_script_says_what_the_command_gives_up_and_what_else_there_is() -> None:
    head = export(small_study.giving_up(), "shell").partition("set -euo pipefail")[0]
    assert (
        "# Trade-off: context_length 16384 instead of 163840: requests of more than 16384 tokens"
        in head
    )
    assert f"# has no trade-off: {small_study.COMMANDS[small_study.BASELINE].shell()}" in head
    assert "; 90 % prediction interval on a real node -4.0 % to +160 %" in head


def test_further_arguments_are_passed_on(machine: Machine) -> None:
    script = export(
        recommend(Command(("vllm", "serve", MODEL, "--port", "8000", "--host", "127.0.0.1"))),
        "shell",
    )
    machine.serve(script, "--host", "0.0.0.0", "--x", "a b")
    assert machine.argv[-4:] == ["--host", "0.0.0.0", "--x", "a b"]


def test_it_listens_on_loopback_where_the_command_does_not_say(machine: Machine) -> None:
    machine.serve(export(recommend(Command(("vllm", "serve", MODEL))), "shell"))
    assert machine.argv == ["serve", MODEL, "--host", "127.0.0.1"]


@pytest.mark.parametrize("form", ["{}", "--config={}"])
def test_files_of_the_command_are_written_as_they_are(machine: Machine, form: str) -> None:
    content = "a: 'b'\nEOF\n$HOME `id`\n\nno end of line"
    command = Command(
        ("vllm", "serve", MODEL, form.format("extra opts/o.yaml")),
        {},
        {"extra opts/o.yaml": content},
    )
    done = machine.serve(export(recommend(command), "shell"))
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.file == content


def test_secrets_are_asked_for_not_written(machine: Machine) -> None:
    command = Command(
        ("vllm", "serve", MODEL, "--api-key", "abc-my-key", f"--x={SECRET}"), {"HF_TOKEN": SECRET}
    )
    for name in ("shell", "vllm-config", "json"):
        text = export(recommend(command), name)
        assert SECRET not in text
        assert "abc-my-key" not in text
    script = export(recommend(command), "shell")
    refused = machine.serve(script)
    assert refused.returncode != 0
    assert "set HF_TOKEN" in refused.stderr
    machine.serve(script, HF_TOKEN="one", API_KEY="two words", X="three")
    assert machine.env["HF_TOKEN"] == "one"
    assert machine.argv[2:5] == ["--api-key", "two words", "--x=three"]


def test_the_vllm_file_holds_the_options() -> None:
    speculative = '{"method":"mtp","num_speculative_tokens":1}'
    argv = (
        "vllm",
        "serve",
        MODEL,
        "--tensor-parallel-size",
        "8",
        "--gpu-memory-utilization=0.90",
        "-dcp",
        "2",
    )
    argv += (
        "--no-enable-prefix-caching",
        "--speculative-config",
        speculative,
        "--cudagraph-capture-sizes",
        "1",
        "2",
    )
    text = export(recommend(Command(argv, {"VLLM_USE_DEEP_GEMM": "0"})), "vllm-config")
    assert yaml.safe_load(text) == {
        "model": MODEL,
        "tensor-parallel-size": 8,
        "gpu-memory-utilization": "0.90",
        "no-enable-prefix-caching": True,
        "speculative-config": speculative,
        "cudagraph-capture-sizes": [1, 2],
    }
    assert "# use: VLLM_USE_DEEP_GEMM=0 vllm serve --config vllm.yaml -dcp 2\n" in text


@pytest.mark.parametrize(
    ("argv", "used"),
    [
        (
            ("python3", "-m", "vllm.entrypoints.cli.main", "serve", MODEL),
            "python3 -m vllm.entrypoints.cli.main serve",
        ),
        (
            ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL),
            "python3 -m vllm.entrypoints.openai.api_server",
        ),
    ],
)
def test_the_vllm_file_takes_the_model_however_vllm_is_started(
    argv: tuple[str, ...], used: str
) -> None:
    text = export(recommend(Command((*argv, "--max-num-seqs", "8"))), "vllm-config")
    assert yaml.safe_load(text) == {"model": MODEL, "max-num-seqs": 8}
    assert f"# use: {used} --config vllm.yaml\n" in text


def as_the_engine_reads(document: Mapping[str, object]) -> list[str]:
    """The words that vLLM and SGLang make of their file (argparse_utils.py,
    server_args_config_parser.py)."""
    words: list[str] = []
    for key, value in document.items():
        words.append(f"--{key}")
        if value is not True:
            words += map(str, value) if isinstance(value, list) else [str(value)]
    return words


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9]{1,8}(-[a-z]{2,6})?", fullmatch=True).filter(
            lambda name: not redact.is_secret_name(name)
        ),
        st.lists(
            TEXT.filter(lambda word: not word.startswith("-")) | st.integers().map(str), max_size=3
        ),
        max_size=6,
    )
)
@example(
    {
        "a": ["007"],
        "b": ["1e3"],
        "c": ["true"],
        "d": ["null"],
        "e": ["0.90", "1.5"],
        "f": ["-1"],
        "g": ["~"],
    }
)
def test_the_sglang_file_means_the_same_words(options: Mapping[str, list[str]]) -> None:
    words = [word for name, values in options.items() for word in (f"--{name}", *values)]
    if redact.argv(words) != words:
        return
    argv = ("python3", "-m", "sglang.launch_server", *words)
    text = export(recommend(Command(argv), "sglang"), "sglang-config")
    assert as_the_engine_reads(yaml.safe_load(text)) == words
    assert "python3 -m sglang.launch_server --config sglang.yaml" in text


def test_an_old_sglang_is_warned_of() -> None:
    command = Command(("python3", "-m", "sglang.launch_server", "--enable-dp-attention"))
    old = recommend(command, "sglang")
    assert old.recommended is not None
    choice = old.recommended.model_copy(update={"engine_version": "0.5.6.post2"})
    assert "before 0.5.8" in export(old.model_copy(update={"recommended": choice}), "sglang-config")
    assert "before 0.5.8" not in export(old, "sglang-config")


def test_the_trtllm_file_wins_over_the_command_line() -> None:
    own = "enable_attention_dp: true\nkv_cache_config: {dtype: fp8}\nmax_batch_size: 512\n"
    argv = (
        "trtllm-serve",
        MODEL,
        "--tp_size",
        "8",
        "--ep_size",
        "8",
        "--kv_cache_free_gpu_memory_fraction",
        "0.75",
    )
    argv += (
        "--max_batch_size",
        "256",
        "--host",
        "127.0.0.1",
        "--trust_remote_code",
        "--config",
        "extra.yaml",
    )
    text = export(
        recommend(Command(argv, {}, {"extra.yaml": own}), "tensorrt_llm"), "trtllm-config"
    )
    assert yaml.safe_load(text) == {
        "enable_attention_dp": True,
        "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.75},
        "max_batch_size": 512,
        "tensor_parallel_size": 8,
        "moe_expert_parallel_size": 8,
        "trust_remote_code": True,
    }
    assert f"# use: trtllm-serve {MODEL} --config trtllm.yaml --host 127.0.0.1\n" in text


def test_trtllm_fields_and_options_exist_in_the_engine() -> None:
    data = Path(__file__).resolve().parents[4] / "shared" / "data" / "flags_tensorrt_llm_1.2.json"
    if not data.is_file():
        pytest.skip("the flags of TensorRT-LLM 1.2 are not beside the repository")
    known = json.loads(data.read_text())
    options = {
        flag for row in known["serve_cli_1_2"] + known["serve_cli_main"] for flag in row["flags"]
    }
    fields = {row["name"] for row in known["llm_args_1_2"]}
    table = yaml.safe_load(
        (Path(written.__code__.co_filename).parent / "trtllm_config.yaml").read_text()
    )
    assert {f"--{name}" for name in [*table["fields"], *table["config_options"]]} <= options
    for field in table["fields"].values():
        first, _, second = field.partition(".")
        assert first in fields
        assert not second or second in {row["name"] for row in known["nested_1_2"][first]}


def test_json_is_the_recommendation() -> None:
    row = json.loads(export(small_study.recommendation(), "json"))
    assert row == small_study.recommendation().to_json()


def test_an_unknown_format_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean 'shell'") as caught:
        export(small_study.recommendation(), "shel")
    assert all(name in str(caught.value) for name in FORMATS)


def test_a_format_of_another_engine_is_answered_with_one_that_fits() -> None:
    with pytest.raises(
        BadInput, match=r"recommends sglang; choose from: shell, docker, .*, sglang-config, json"
    ):
        export(small_study.recommendation(), "vllm-config")


def test_a_study_without_a_recommendation_has_nothing_to_export() -> None:
    with pytest.raises(BadInput, match="infeasible"):
        export(small_study.infeasible(), "shell")


def test_the_baseline_itself_claims_no_gain() -> None:
    same = small_study.choice(small_study.BASELINE, 6000.0)
    outcome = small_study.recommendation(
        verdict=Verdict.INDISTINGUISHABLE,
        recommended=same,
        baseline=same,
        gain_percent=0.0,
        gain_ci95=None,
    )
    assert "so no gain is claimed" in export(outcome, "shell")


def test_an_unopposed_command_claims_no_gain() -> None:
    outcome = small_study.recommendation(
        verdict=Verdict.UNOPPOSED, baseline=None, gain_percent=None, gain_ci95=None
    )
    assert "# Verdict: unopposed" in export(outcome, "shell")
