"""The measured studies under examples/: a bundle comes to the recommendation that its report
shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.product.cli import autotune, new_home

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("example", ["llama_server", "vllm_cpu", "sglang_cpu"])
def test_the_bundle_comes_to_the_command_of_the_report(tmp_path: Path, example: str) -> None:
    """Also where its engine is not installed."""
    measured = EXAMPLES / example / "measured"
    done = autotune(
        "run", "--on", f"replay:{measured / 'study.bundle'}", "--json", home=new_home(tmp_path)
    )
    assert done.code == 0, done.err
    assert "the recommendation is the same as in study measured" in done.err
    report = re.sub("</?span>", "", (measured / "report.html").read_text())
    assert done.json["command"] in report
    assert f"{done.json['gain_percent']:+.1f} %" in report


def test_a_bundle_of_an_unfinished_study_recommends_what_its_launches_show(tmp_path: Path) -> None:
    """The three launches on an H200 (docs/real-gpu.md): both candidates were slower than the
    baseline."""
    bundle = EXAMPLES / "vllm_gpu" / "measured" / "study.bundle"
    done = autotune("run", "--on", f"replay:{bundle}", "--json", home=new_home(tmp_path))
    assert done.code == 0, done.err
    assert "study h200 had not ended when it was bundled" in done.err
    assert done.json["command"] == "vllm serve ./qwen3-8b --host 127.0.0.1"
    assert done.json["verdict"] == "indistinguishable"
