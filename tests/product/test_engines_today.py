"""Studies of TensorRT-LLM and on AMD's GPUs, against emulated engines that print, name and refuse
what the real ones do: read back, with a failure of a kind that no rule knows, to a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.product.cli import autotune, new_home, rows

SPACE = """narrow:
  {engine}:
    search:
      tensor_parallel: [1, 8]
      data_parallel: [1, 8]
      cuda_graph_max_batch: [96, {graphs}]
      memory_fraction: [{fraction}]
"""
STUDIES = {
    "vllm on ROCm": (
        ("vllm", "mi300x", 512, 0.92),
        ("Memory access fault by GPU", "other backends or shapes"),
    ),
    "sglang on ROCm": (
        ("sglang", "mi300x", 512, 0.88),
        ("HIP error: operation not permitted when stream is capturing", "smaller batches"),
    ),
    "TensorRT-LLM on Hopper": (
        ("tensorrt_llm", "h200", 128, 0.9),
        ("CUDA error: operation not permitted when stream is capturing", "another backend"),
    ),
    # The newer manager of the KV cache, which tells bytes.
    "TensorRT-LLM on Blackwell": (
        ("tensorrt_llm==1.4.0rc4", "b200", 128, 0.9),
        ("Error occurred when running GEMM!", "other backends or shapes"),
    ),
}


@pytest.mark.e2e
@pytest.mark.parametrize("about", STUDIES)
def test_a_study_ends_with_a_verdict(about: str, tmp_path: Path) -> None:
    (asked, hardware, graphs, fraction), (telling, way_out) = STUDIES[about]
    engine = asked.partition("==")[0]
    home, space = new_home(tmp_path), tmp_path / "space.yaml"
    space.write_text(SPACE.format(engine=engine, graphs=graphs, fraction=fraction))
    question = ["--model", "deepseek-ai/DeepSeek-R1-0528", "--hw", hardware, "--on", "emulator"]
    load = ["--workload", "random:256:16:64", "--launches", "5", "--seed", "3"]
    more = ["--engine", asked, "--space", str(space), "--study", "s"]
    done = autotune("run", *question, *load, *more, home=home)
    assert done.code == 0, done.err
    found = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert (found["evidence"], found["engine"]) == ("emulated", engine)
    launches = rows(home, "s")
    failed = [row["failure"] for row in launches if row["state"] == "failed"]
    assert failed
    for failure in failed:
        assert telling in failure["log_excerpt"]
        assert way_out in failure["message"]
    ran = [row for row in launches if row["state"] == "complete"]
    assert ran
    for row in ran:
        assert row["resolved"]["source"]
        assert row["kv_cache_tokens"] > 100_000
        assert row["longest_request_tokens"] == 163_840
