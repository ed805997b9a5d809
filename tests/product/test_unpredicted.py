"""A model whose layers the simulator does not know: refused by what predicts, tuned on servers.

The servers are emulated ones of a card of the model; the tuner sees the model's folder alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.engines.command import gpus_of_a_server
from autotune.engines.library import Library
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.options import RunOptions
from tests.engines.stand_ins import executable, python_with
from tests.product.cli import autotune, new_home, rows
from tests.product.test_real_path import nothing_is_left

CONFIG = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "nemotron-nas",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": None,
    "intermediate_size": None,
    "block_configs": [{"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 3.755}}] * 80,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
"""Figures of nvidia/Llama-3_3-Nemotron-Super-49B-v1; its layers have 3.755 on average."""
NEAREST = """id: nearest
family: nemotron-nas
architecture:
  {layers: 80, hidden_size: 8192, vocab_size: 128256, heads: 64, kv_heads: 8, head_dim: 128,
   intermediate_size: 20507, context_limit: 131072}
source: the mean of its layers
"""
WEIGHTS_BYTES = 99_734_000_000


def checkpoint(tmp_path: Path, weights_gb: float = 0) -> Path:
    """The folder of a model, with the index of its weights' files."""
    model = tmp_path / "nemotron"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    if weights_gb:
        index = {"metadata": {"total_size": weights_gb * 1e9}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return model


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "--hw", "h200", "--", "vllm", "serve", "./nemotron"],
        ["run", "--model", "./nemotron", "--hw", "h200"],
        ["run", "--model", "./nemotron", "--hw", "h200", "--on", "simulator"],
        ["run", "--model", "./nemotron", "--hw", "h200", "--on", "emulator", "--dry-run"],
    ],
    ids=["simulate", "auto", "simulator", "emulator"],
)
def test_what_predicts_refuses_it_in_one_sentence(tmp_path: Path, command: list[str]) -> None:
    checkpoint(tmp_path)
    done = autotune(*command, home=new_home(tmp_path), cwd=tmp_path)
    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert "nemotron is not simulated: layers of different sizes (Nemotron NAS)" in last
    assert "--on process or docker" in last
    assert ". " not in last, "one sentence"


@pytest.mark.parametrize("weights_gb", [0, 100, 500])
def test_on_servers_the_size_of_its_files_says_what_cannot_start(
    tmp_path: Path, weights_gb: int
) -> None:
    asked = RunOptions(str(checkpoint(tmp_path, weights_gb)), "h200", on="docker")
    prepared = prepare(build_spec(asked), Library())
    assert set(prepared.spaces) == {"vllm", "sglang", "tensorrt_llm"}
    searched = [one.configuration for one in prepared.candidates.items]
    assert {8} <= {one.knobs["tensor_parallel"] for one in searched} <= {1, 2, 4, 8}
    least = min(gpus_of_a_server(one, 8) for one in searched)
    # An H200 has 141 GB; without the files a layout of any size may start.
    assert least == {0: 2, 100: 1, 500: 4}[weights_gb]


def test_weights_beyond_a_node_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    asked = RunOptions(str(checkpoint(tmp_path, 1300)), "h200", on="docker")
    with pytest.raises(BadInput, match="1,300 GB of weights, 1,128 GB of memory on 8 x h200"):
        prepare(build_spec(asked), Library())


def test_its_space_is_listed_without_a_number_of_parameters(tmp_path: Path) -> None:
    model = str(checkpoint(tmp_path, 100))
    shown = autotune("space", "show", "--model", model, "--hw", "h200", home=tmp_path)
    assert shown.code == 0, shown.err
    assert "is predicted: layers of different sizes" in shown.out.splitlines()[0]
    assert "billion" not in shown.out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint's folder, and a vLLM on the PATH that is emulated with the nearest figures."""
    model = checkpoint(tmp_path)
    with (model / "model.safetensors").open("wb") as weights:
        weights.truncate(WEIGHTS_BYTES)  # A sparse file: it takes no room.
    card = tmp_path / "nearest.yaml"
    card.write_text(NEAREST)
    emulate = ["-m", "autotune", "emulate", "--hw", "h200", "--gpus", "2", "--startup-s", "0", "--"]
    serves = (
        f"#!{python_with(tmp_path, vllm='0.33.0')}\nimport os, sys\n"
        "if '--port' not in sys.argv:\n    sys.exit('only its server is emulated')\n"
        f"words = [{str(card)!r} if one == {str(model)!r} else one for one in sys.argv[1:]]\n"
        f"words += ['--served-model-name', {str(model)!r}]\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *{emulate!r}, 'vllm', *words])\n"
    )
    program = executable(tmp_path / "bin" / "vllm", serves)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.e2e
def test_it_is_tuned_on_servers_to_a_verdict(folder: Path) -> None:
    """The user's command admits 8 requests at once; the first guess already admits more."""
    home = new_home(folder)
    question = ["--model", "./nemotron", "--hw", "h200", "--gpus", "2", "--on", "process"]
    mine = "vllm serve ./nemotron --tensor-parallel-size 2 --max-num-seqs 8"
    few = ["--workload", "random:64:16:64", "--launches", "8", "--seed", "1", "--study", "s"]
    done = autotune(
        "run", *question, "--engine", "vllm", "--baseline", mine, *few, home=home, cwd=folder
    )
    assert done.code == 0, done.err
    assert "nothing of ./nemotron is predicted: layers of different sizes" in done.err
    assert "its 100 GB of weights alone say what cannot start" in done.err
    found = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert found["verdict"] == "better", done.err
    assert found["gain_percent"] > 50
    launches = [row for row in rows(home, "s") if row["state"] == "complete"]
    # The servers' logs tell their KV caches, which nothing predicted.
    assert {row["longest_request_tokens"] for row in launches} == {131072}
    assert all(row["kv_cache_tokens"] > 131072 for row in launches)
    assert nothing_is_left(home, 0) == []
