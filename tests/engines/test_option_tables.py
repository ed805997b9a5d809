"""The tables of options against dumps of the real parsers, and the reader that makes them against a
small wheel."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.base.errors import BadInput, MalformedFile
from autotune.engines.engine import flag_of
from autotune.engines.option_table import OptionTable, read_rows
from autotune.engines.registry import engine
from autotune.engines.schema import Option
from tests.engines.settings import OURS, VERSIONS, context, shared

ROOT = Path(__file__).resolve().parents[2]
SPACES = ROOT / "search_spaces"

# Where a table and a dump differ, and why. Everything else is equal.
NOT_IN_TABLES = {"-h", "--help"}
DIFFERENT_CHOICES = {
    "--kv-canary-real-data": "an enumeration of a package that is not part of the wheel",
    "--cuda-graph-backend-decode": "choices and parser come from an enumeration class; the engine checks them itself",
    "--cuda-graph-backend-prefill": "as --cuda-graph-backend-decode",
}
DIFFERENT_DEFAULTS = {
    "--mamba-backend": "the dump shows the enumeration's member, the table its value",
    "--limit-mm-per-prompt": "an empty mapping, which the table leaves out",
    "--cpu-offload-params": "an empty set, which the table leaves out",
    "--offload-params": "an empty set, which the table leaves out",
    "--kv-canary-real-data": "a member of an enumeration outside the wheel",
}
DIFFERENT_ACTIONS = {"--monokernel-backend", "--lora-paths", "--lora-modules", "--log-config-file"}
"""Actions of the engine's own class that store one value or several: the table says ``store``."""
ACTIONS = {
    "_StoreAction": "store",
    "_StoreTrueAction": "store_true",
    "_AppendAction": "append",
    "BooleanOptionalAction": "boolean_optional",
    "DeprecatedStoreTrueAction": "store_true",
}
DUMPS = [
    ("vllm", "0.32.0", "flags_vllm_0.32.json"),
    ("sglang", "0.5.23", "flags_sglang_0.5.23.json"),
]


def by_flag(table: OptionTable) -> dict[str, Option]:
    return {flag: option for option in table.options for flag in option.flags}


def by_first_flag(table: OptionTable) -> dict[str, Option]:
    return {option.flags[0]: option for option in table.options}


def dumped(file: str) -> dict[str, dict[str, Any]]:
    document = json.loads(shared(file).read_text())
    return {flag: row for row in document["flags"] for flag in row["flags"]}


def is_computed(default: Any) -> bool:
    """A default that is no literal: an object's repr, or a nested document of defaults."""
    return isinstance(default, dict) or (isinstance(default, str) and default.endswith((")", "}")))


def same(mine: Any, theirs: Any) -> bool:
    return mine == theirs or (mine in (None, False) and theirs in (None, False, [], "==SUPPRESS=="))


@pytest.mark.parametrize(("name", "version", "file"), DUMPS)
def test_the_flags_are_those_of_the_real_parser(name: str, version: str, file: str) -> None:
    assert set(dumped(file)) - NOT_IN_TABLES == engine(name).table(version).flags


@pytest.mark.parametrize(("name", "version", "file"), DUMPS)
def test_every_option_is_that_of_the_real_parser(name: str, version: str, file: str) -> None:
    theirs = dumped(file)
    options = by_flag(engine(name).table(version))
    assert len(options) > 20
    for flag, option in options.items():
        row = theirs[flag]
        assert option.dest == row["dest"], flag
        if flag not in DIFFERENT_ACTIONS:
            assert option.action == ACTIONS[row["action"]], flag
        if option.action in {"store", "append"}:
            assert option.nargs == row["nargs"], flag
        if flag not in DIFFERENT_CHOICES:
            assert set(option.choices) == set(row["choices"] or ()), flag
        if flag not in DIFFERENT_DEFAULTS and not is_computed(row["default"]):
            assert same(option.default, row["default"]), (flag, option.default, row["default"])
        if row["type"] in {"int", "float"}:
            assert option.type == row["type"], flag


PARSERS_OF_1_2 = {
    "reasoning_parser": {"deepseek-r1", "qwen3", "nano-v3"},
    "tool_parser": {
        *("qwen3", "qwen3_coder", "kimi_k2", "deepseek_v3", "deepseek_v31", "deepseek_v32")
    },
}
"""Made when the engine starts; nvidia.github.io/TensorRT-LLM/1.2.1/commands/trtllm-serve."""
AFTER_1_2 = {
    "model_kwargs",
    "use_cute_dsl_blockscaling_mm",
    "use_cute_dsl_blockscaling_bmm",
    "kv_cache_config.use_kv_cache_manager_v2",
    "kv_cache_config.max_util_for_resume",
}
"""In the copy of llm_args.py, which is of the main branch, and not in 1.2.0 and 1.2.1
(nvidia.github.io/TensorRT-LLM/1.2.0/_modules/tensorrt_llm/llmapi/llm_args.html)."""


def test_tensorrt_llm_has_the_options_and_settings_of_its_sources() -> None:
    document = json.loads(shared("flags_tensorrt_llm_1.2.json").read_text())
    table = engine("tensorrt_llm").table("1.2.0")
    assert table.flags == {flag for row in document["serve_cli_1_2"] for flag in row["flags"]}
    options = by_flag(table)
    for row in document["serve_cli_1_2"]:
        option = options[row["flags"][0]]
        assert set(option.choices) == set(row["choices"] or PARSERS_OF_1_2.get(option.dest, ()))
        assert same(option.default, row["default"])
    keys = {row["name"] for row in document["llm_args_1_2"]}
    keys |= {
        f"{parent}.{row['name']}" for parent, rows in document["nested_1_2"].items() for row in rows
    }
    assert keys - table.config_keys == AFTER_1_2
    assert engine("tensorrt_llm").table("1.2.1").file_keys == table.file_keys


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_known_version_has_its_own_table(name: str, version: str) -> None:
    table = engine(name).table(version)
    assert (table.engine, table.version) == (name, version)
    spellings = [flag for option in table.options for flag in option.flags]
    assert len(spellings) == len(set(spellings)) > 20


@pytest.mark.parametrize("name", OURS)
def test_the_newest_table_is_whole_and_others_hold_what_differs_from_the_next_newer(
    name: str,
) -> None:
    folder, versions = SPACES / name / "options", engine(name).card.versions
    assert {path.stem for path in folder.iterdir()} == set(versions)
    assert "differs_from" not in json.loads((folder / f"{versions[-1]}.json").read_text())
    rows = {one: by_first_flag(engine(name).table(one)) for one in versions}
    for version, newer in pairwise(versions):
        document = json.loads((folder / f"{version}.json").read_text())
        assert document["differs_from"] == newer
        gone = {name for name in document["without"] if name.startswith("--")}
        assert rows[newer].keys() - rows[version].keys() == gone
        for row in document["options"]:
            if "key" in row:
                continue
            flag = row["flags"][0]
            assert rows[version][flag] != rows[newer].get(flag), (version, row)


EARLIER = {"draft_schedule", "flashinfer_all_reduce", "fp4_gemm_backend", "load_balance_method"}
"""Knobs that began later than their option: its methods, its keys or its default were others."""
SET_BY_US = {"tensor_parallel"}
"""Knobs whose default is not the parser's: all GPUs of the node."""


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_knobs_and_their_defaults_are_those_of_the_version_s_table(name: str, version: str) -> None:
    kind = engine(name)
    table, defaults = kind.table(version), kind.default_knobs(context(version))
    lost, early, other = list[str](), list[str](), list[str]()
    for knob_name, knob in kind.card.knobs.items():
        flags = {
            flag_of(word).partition(".")[0]
            for addition in knob.emit
            if addition.is_for(version)
            for word in addition.args
            if word.startswith("--")
        }
        if knob.exists_in(version):
            lost += sorted(flags - table.flags)
        elif flags and flags <= table.flags and knob_name not in EARLIER:
            early.append(knob_name)
        read = re.fullmatch(r"args\.(\w+)", kind.reading(knob_name, version))
        stated = table.defaults.get(read[1]) if read else None
        if stated not in (None, defaults[knob_name]) and knob_name not in SET_BY_US:
            other.append(knob_name)
    assert lost == []
    assert early == []
    assert other == []


def test_a_table_that_differs_from_an_older_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"differs_from": "1", "options": []}')
    with pytest.raises(MalformedFile, match="differs_from: 1 is not newer than 1"):
        read_rows(lambda one: tmp_path / f"{one}.json", "1")


def test_a_known_version_without_a_table_says_which_file_is_missing() -> None:
    kind = engine("vllm")
    with pytest.raises(BadInput, match=r"vllm/options/9\.9\.9\.json does not exist"):
        type(kind)(kind.card.model_copy(update={"versions": ["9.9.9"]})).table("9.9.9")


TINY_WHEEL = {
    "vllm/config.py": """
from typing import Literal, Optional
import os
def config(cls): return cls
Backend = Literal["b", "a"]
@config
class Nested:
    depth: int = 1
@config
class ModelConfig:
    dtype: Optional[Backend] = "a"
    eager: bool = False
    window: int | None = None
    max_model_len: int = 4096
    nested: Nested = None
    names: list[str] = []
    level: float = float(os.environ.get("LEVEL", 1))
""",
    "vllm/entrypoints/openai/cli_args.py": """
import argparse
from vllm.config import ModelConfig
from vllm.engine.arg_utils import get_kwargs
DEFAULT_PORT = 8000
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--port", "-p", type=int, default=DEFAULT_PORT)
    kwargs = get_kwargs(ModelConfig)
    del kwargs["names"]["nargs"]
    kwargs["names"]["action"] = "append"
    group = parser.add_argument_group("model")
    for key, value in kwargs.items():
        group.add_argument(f"--{key.replace('_', '-')}", **value)
    return parser
""",
    "vllm/engine/arg_utils.py": "",
}


def test_the_reader_follows_names_annotations_and_loops_and_the_newest_table_is_whole(
    tmp_path: Path,
) -> None:
    wheel = tmp_path / "vllm-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in TINY_WHEEL.items():
            archive.writestr(name, text)
    folder = shutil.copytree(SPACES / "vllm", tmp_path / "vllm")
    script = [sys.executable, str(ROOT / "scripts" / "snapshot_options.py"), "vllm", str(wheel)]
    told = subprocess.run(
        [*script, "--spaces", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert told.startswith("vllm 1.2.3: 8 options, 10 lines, ")
    versions = yaml.safe_load((folder / "engine.yaml").read_text())["versions"]
    assert versions == [*engine("vllm").card.versions, "1.2.3"]
    # The newest table of before differs from this one now, and says the same.
    before = read_rows(lambda one: SPACES / "vllm" / "options" / f"{one}.json", versions[-2])
    after = read_rows(lambda one: folder / "options" / f"{one}.json", versions[-2])
    assert after[1] == before[1]
    assert after[0]["differs_from"] == "1.2.3"
    document = json.loads((folder / "options" / "1.2.3.json").read_text())
    assert document["version"] == "1.2.3"
    assert document["options"] == [
        {"flags": ["--dtype"], "dest": "dtype", "choices": ["a", "b", None], "default": "a"},
        {"flags": ["--eager"], "dest": "eager", "action": "boolean_optional", "default": False},
        {"flags": ["--level"], "dest": "level", "type": "float"},
        {
            "flags": ["--max-model-len"],
            "dest": "max_model_len",
            "type": "human_int",
            "default": 4096,
        },
        {"flags": ["--names"], "dest": "names", "action": "append"},
        {"flags": ["--nested"], "dest": "nested", "type": "json"},
        {"flags": ["--port", "-p"], "dest": "port", "type": "int", "default": 8000},
        {"flags": ["--window"], "dest": "window", "type": "int"},
    ]


def test_tensorrt_llm_s_own_lists_are_compared_with_the_newest_table(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "compare_tensorrt_llm.py"), str(tmp_path)]
    options = {
        "kv_cache_dtype": {
            "type": "Choice(['auto', 'fp4'])",
            "default": "fp4",
            "flags": ["--kv_cache_dtype"],
        },
        "newer": {"type": "int", "default": 1, "flags": ["--newer"]},
        "telemetry": {
            "type": "bool",
            "default": True,
            "flags": ["--no-telemetry", "--telemetry"],
        },
    }
    keys = {"newer": [], "load_format": ["auto"], "tokenizer_mode": ["auto", "fast"]}
    files = {
        "tests/unittest/api_stability/references/trtllm_serve_cli.yaml": yaml.safe_dump(
            {"commands": {"serve": {"options": options}}}
        ),
        "tensorrt_llm/usage/llm_args_golden_manifest.json": json.dumps(
            {
                "TorchLlmArgs": [
                    {"path": path, "allowed_values": values, "converter": ""}
                    for path, values in keys.items()
                ]
            }
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    told = subprocess.run(script, capture_output=True, text=True, check=False)
    lines = set(told.stdout.splitlines())
    assert told.returncode == 1
    assert lines >= {
        "option unknown to us: --newer",
        "option gone: --agent_types",
        "kv_cache_dtype: default 'fp4', ours 'auto'",
        "kv_cache_dtype: choices more ['fp4'], fewer ['fp8', 'nvfp4']",
        "key unknown to us: newer",
        "key gone, or not sent: stream_interval",
        "tokenizer_mode: choices more ['fast'], fewer ['slow']",
    }
    assert not [line for line in lines if line.startswith(("telemetry:", "load_format:"))]
    (tmp_path / name).unlink()
    told = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (2, f"{tmp_path} has no {name}\n")
