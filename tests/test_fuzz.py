"""Readers of other people's input refuse what is broken; `benchmarks.product.fuzz` tries thousands of
cases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.product.fuzz import attempt, fuzz
from benchmarks.product.fuzz_targets import targets

SLOW = {
    "engine card": 4,
    "command line": 8,
    "narrowing": 10,
    "server log": 10,
    "engine command": 10,
    "workload": 10,
}


def config(odd: dict[str, Any]) -> bytes:
    """A `config.json` with odd values in it."""
    sizes = {
        "num_hidden_layers": 4,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 9,
    }
    return json.dumps(sizes | {"vocab_size": 9, "max_position_embeddings": 9} | odd).encode()


def row_with(digits: bytes) -> bytes:
    """A row of a study with an odd figure in it."""
    row = (
        next(target for target in targets() if target.name == "replayed rows")
        .seeds[0]
        .split(b"\n")[0]
    )
    return re.sub(rb'("total_token_throughput": ?)[\d.]+', rb"\g<1>" + digits, row)


FOUND = {
    "config.json": [
        config({"num_experts": 4, "mlp_only_layers": 7}),
        config({"num_experts": 4, "num_hidden_layers": 48 * 10**9}),
        config({"hidden_size": 10**400}),
        config({"model_type": [1]}),
        config(
            {
                "num_attention_heads": 32,
                "head_dim": 0,
                "quantization_config": {"quant_method": "fp8"},
            }
        ),
        config({"quantization_config": {"quant_method": "fp8", "weight_block_size": ["x", 128]}}),
        config({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": True}}),
        b"[" * 100_000,
    ],
    "engine command": [
        b"vllm serve deepseek-ai/DeepSeek-V3.2 --tensor-parallel-size " + b"9" * 400,
        b"python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2 --tp-size 8 --dp-size "
        + b"9" * 400,
    ],
    "earlier answers": [b'{"kind": "builtin", "logprobs": true, "answers": {}, "seconds": 2.5}'],
    "hardware card": [b"a: " + b"[" * 100_000, b"- " * 100_000 + b"a"],
    "results.jsonl": [b'{"number": ' + b"[" * 100_000 + b"\n{}\n{}", row_with(b"1" + b"0" * 400)],
    "MLflow URI": [b"://user:hunter2@db/x", b"postgresql://user:hunter2@db/\n:hunter2@db/x"],
    "replayed rows": [row_with(b"1" + b"0" * 400)],
    "command line": [
        b"compare a.json " + b"9" * 400,
        b"space check x --space " + b"a/" * 9 + b"b" * 300,
    ],
}
"""Inputs that were once read wrongly."""


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_a_mutated_input_is_read_or_refused(target, tmp_path: Path) -> None:
    assert fuzz(target, SLOW.get(target.name, 25), seed=0).findings == {}
    for content in FOUND.get(target.name, []):
        assert attempt(target, content, tmp_path)[1] == "", content[:80]


def test_what_a_reader_must_not_do_is_seen(tmp_path: Path) -> None:
    """The watch itself works."""
    target = targets()[0]
    writes = type(target)(
        "writes",
        lambda: [b"x"],
        lambda content, folder: Path("/tmp/outside").write_bytes(content) * 0,
    )
    raises = type(target)("raises", lambda: [b"x"], lambda content, folder: [][1])
    assert "opens /tmp/outside" in attempt(writes, b"", tmp_path)[1]
    assert attempt(raises, b"", tmp_path)[1].startswith("IndexError")
