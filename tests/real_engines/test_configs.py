"""Configurations in bulk: what is asked, and what is made of the answers."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.real_engines.config_compare import Comparison, compare, per_sequence, state_bytes
from tests.real_engines.config_page import page
from tests.real_engines.config_sets import write_sets
from tests.real_engines.configs import Asker, digest, unasked
from tests.real_engines.environment import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
DENSE = {
    "kind": "FullAttentionSpec",
    "bytes": 65536,
    "block_size": 16,
    "layers": 32,
}
"""Llama-3.1-8B's cache on one rank as vLLM 0.33.0 states it: 8 heads of 128, keys and values."""


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("configs")
    (folder / "defaults").mkdir()
    return {one.name: one for one in write_sets(folder, Path())["sizes"]}


def read(folder: Path, work: Path) -> dict[str, Any]:
    asker = Asker("vllm", VERSIONS["vllm"], Path(), work, ROOT)
    with closing(asker.start(0)) as process:
        return asker.read(process, "sizes", folder)


def told(ours: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A row of an engine that reads as the product, but for some facts."""
    facts = ours["facts"] | {"quantization": None, "dtype": "bfloat16"} | changes
    layout = {
        "bytes": ours["ranks"]["1"]["bytes"],
        "elements": facts["elements"],
        "caches": [DENSE],
    }
    return {**ours, "facts": facts, "ranks": {"1": layout}, "fp8": {}}


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> Comparison:
    key = (ours["set"], ours["name"])
    return compare("vllm", VERSIONS["vllm"], {key: ours}, {key: theirs})


def test_what_differs_is_told_by_kind(sizes: dict[str, Path], tmp_path: Path) -> None:
    ours = read(sizes["llama-3.1-8b"], tmp_path)

    def kinds(theirs: dict[str, Any]) -> list[str]:
        return [one.kind for one in compared(ours, theirs).differ]

    same = told(ours)
    assert kinds(same) == []
    assert kinds(told(ours, context=4096, kv_heads=32)) == ["context", "kv_heads"]
    refused = {**same, "ranks": {"1": {"refused": ["AssertionError: no", "llama.py:151"]}}}
    assert kinds(refused) == ["refused, and called likely"]
    heavier = {**same["ranks"]["1"], "bytes": 1.03 * ours["ranks"]["1"]["bytes"]}
    assert kinds({**same, "ranks": {"1": heavier}}) == ["weights"]
    absent = compared(ours, {**same, "ranks": {"1": {"refused": ["'Nothing' object"]}}})
    assert (absent.differ, absent.unasked.total()) == ([], 1)
    assert "llama-3.1-8b: TP 1 | AssertionError: no" in page([compared(ours, refused)])


def test_a_window_and_a_state_count_with_what_they_keep() -> None:
    window = {**DENSE, "kind": "SlidingWindowSpec", "sliding_window": 1024, "layers": 1}
    state = {"kind": "MambaSpec", "shapes": [[3, 8]], "dtypes": ["torch.float32"], "layers": 2}
    assert per_sequence([window, state]) == 65536 / 16 * 1024
    assert state_bytes([window, state]) == 2 * 3 * 8 * 4


def test_a_file_is_asked_about_again_when_it_has_changed(sizes: dict[str, Path]) -> None:
    files = [("sizes", one) for one in sizes.values()]
    rows = {(group, one.name): {"of": digest(one)} for group, one in files}
    rows["sizes", "phi-2"] = {"of": digest(sizes["opt-6.7b"])}
    assert unasked(files, rows) == [("sizes", sizes["phi-2"])]


@pytest.mark.engines
def test_the_engine_and_the_product_agree(sizes: dict[str, Path], tmp_path: Path) -> None:
    folder = os.environ.get("AUTOTUNE_ENGINES")
    if not folder:
        pytest.skip("AUTOTUNE_ENGINES names no environment; see tests/real_engines/environment.py")
    model = sizes["llama-3.1-8b"]
    asker = Asker("vllm", VERSIONS["vllm"], Path(folder).resolve(), tmp_path)
    with closing(asker.start(0)) as process:
        theirs = asker.read(process, "sizes", model)
    found = compared(read(model, tmp_path), theirs)
    assert found.differ == []
    assert found.counts("sizes", "weights") == (4, 0)
