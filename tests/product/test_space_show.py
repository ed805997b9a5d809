from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.product.cli import autotune


@pytest.mark.e2e
def test_it_tells_what_remains_and_what_each_rule_removed(tmp_path: Path) -> None:
    done = autotune("space", "show", "--json", home=tmp_path / "home")
    assert done.code == 0, done.err
    engines = done.json["engines"]
    assert set(engines) == {"vllm", "sglang", "tensorrt_llm"}
    for row in engines.values():
        assert row["candidates"] > 50
        assert row["combinations"] == row["candidates"] + row["twins"] + sum(
            row["removed"].values()
        )
        assert all(row["reasons"][rule] for rule in row["removed"])
        for knob in row["knobs"].values():
            assert sum(value["candidates"] for value in knob["values"]) == row["candidates"]
    knobs = engines["sglang"]["knobs"]
    assert knobs["tensor_parallel"]["options"] == ["--tp-size"]
    assert knobs["tensor_parallel"]["default"] == 8
    assert {value["value"] for value in knobs["tensor_parallel"]["values"]} == {1, 2, 4, 8}
    lossy = {value["value"]: value["gives_up"] for value in knobs["kv_cache_dtype"]["values"]}
    assert lossy["bfloat16"] is None
    assert "less precision" in lossy["fp8_e4m3"]
    assert engines["vllm"]["knobs"]["deep_gemm"]["options"] == ["VLLM_USE_DEEP_GEMM"]


def test_it_lists_the_knobs_and_why_combinations_were_removed(tmp_path: Path) -> None:
    done = autotune("space", "show", "--engine", "vllm", home=tmp_path / "home")
    lines = done.out.splitlines()
    assert lines[0].startswith(
        "deepseek-ai/DeepSeek-V3.2: 671.8 billion parameters, 37.4 billion active per token"
    )
    knob = next(
        number for number, line in enumerate(lines) if line.split()[:1] == ["kv_cache_dtype"]
    )
    assert lines[knob].split()[1:] == ["--kv-cache-dtype"]
    assert lines[knob + 1].strip() == "2 values: bfloat16, fp8_ds_mla; default bfloat16"
    assert "fp8_ds_mla trades off: " in lines[knob + 2]
    unsearched = next(line for line in lines if line.split()[:1] == ["block_size"])
    assert "--block-size" in unsearched
    apart = next(line for line in lines if "not searched, prefill apart from decode: " in line)
    assert "https://github.com/ai-dynamo/dynamo/issues/3774" in apart
    removed = [line.partition("removed by ")[2] for line in lines if "removed by " in line]
    assert removed
    assert all(reason.partition(": ")[2] for reason in removed)


def test_it_tells_what_is_tried_beside_the_best(tmp_path: Path) -> None:
    load = """
        name: many
        description: 1250 prompts of 16,256 tokens, the first 16,000 shared by groups
        origin: llm-d, guides/tiered-prefix-cache
        prefix: {tokens: 16000, groups: 250}
        points: [{prompts: 1250, lengths: {kind: fixed, input_tokens: 16256, output_tokens: 256}}]
    """
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "many.yaml").write_text(dedent(load))
    question = ["--model", "Qwen/Qwen3-32B", "--hw", "h100", "--engine", "vllm", "--gpus", "1"]
    more = ["--space", str(tmp_path), "--workload", "many"]
    lines = autotune("space", "show", *question, *more, home=tmp_path / "home").out.splitlines()
    knob = next(n for n, line in enumerate(lines) if line.split()[:1] == ["host_cache_gb"])
    assert lines[knob + 1].strip() == "1 value: 0; default 0"
    assert lines[knob + 2].strip() == "tried beside the best, where trials are measured: 64"


def test_a_narrowed_space_is_small(tmp_path: Path) -> None:
    small = Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml"
    done = autotune("space", "show", "--json", "--space", str(small), home=tmp_path / "home")
    assert done.code == 0, done.err
    assert set(done.json["engines"]) == {"vllm", "sglang"}
    (effect,) = done.json["engines"]["vllm"]["knobs"]["stream_interval"]["published"]
    assert effect.startswith("×1.57, gpt-oss-20b on a B200, 1024 requests in flight")
    assert "vllm#27869" in effect
    assert 1 < done.json["engines"]["sglang"]["candidates"] <= 4
    assert autotune("space", "check", str(small), home=tmp_path / "home").code == 0


def test_a_dry_run_launches_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    small = [
        "--space",
        str(Path(__file__).resolve().parents[2] / "examples" / "emulated-space.yaml"),
    ]
    done = autotune(
        "run",
        "--model",
        "deepseek-ai/DeepSeek-V3.2",
        "--hw",
        "h200",
        *small,
        "--dry-run",
        home=home,
    )
    assert done.code == 0, done.err
    assert "sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2" in done.out, "the baseline"
    assert "--attn-dp-size 8" in done.out, "a good start"
    assert not home.exists()
