from __future__ import annotations

from pathlib import Path

from .cli import autotune


def test_it_tells_what_remains_and_what_each_rule_removed(tmp_path: Path) -> None:
    done = autotune("space", "show", "--json", home=tmp_path / "home")
    assert done.code == 0, done.err
    engines = done.json["engines"]
    assert set(engines) == {"vllm", "sglang", "tensorrt_llm"}
    for row in engines.values():
        assert row["candidates"] > 50
        assert row["combinations"] == row["candidates"] + row["twins"] + sum(row["removed"].values())
    shown = autotune("space", "show", "--engine", "vllm", home=tmp_path / "home").out
    assert shown.startswith("deepseek-ai/DeepSeek-V3.2: 671.8 billion parameters, 37.4 billion active per token")
    assert "removed by" in shown


def test_a_narrowed_space_is_small(tmp_path: Path) -> None:
    small = Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml"
    done = autotune("space", "show", "--json", "--space", str(small), home=tmp_path / "home")
    assert done.code == 0, done.err
    assert set(done.json["engines"]) == {"vllm", "sglang"}
    assert 1 < done.json["engines"]["sglang"]["candidates"] <= 4
    assert autotune("space", "check", str(small), home=tmp_path / "home").code == 0


def test_a_dry_run_launches_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    small = ["--space", str(Path(__file__).resolve().parents[2] / "examples" / "emulated-space.yaml")]
    done = autotune("run", "--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", *small, "--dry-run", home=home)
    assert done.code == 0, done.err
    assert "sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2" in done.out, "the baseline"
    assert "--enable-dp-attention" in done.out, "a good start"
    assert not home.exists()
