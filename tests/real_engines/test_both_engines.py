"""One search over a real SGLang and a real vLLM: both are measured, and nothing of either is
left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.product.cli import autotune
from tests.real_engines.server import EXAMPLE, SETTINGS, environment
from tests.servers.settings import alive_with

pytestmark = pytest.mark.real_engines

ASKED = (
    "--dtype float32 --enforce-eager",
    "--dtype float32 --max-total-tokens 40000 --mem-fraction-static 0.2",
)


def sglang() -> Path:
    """The environment that ``AUTOTUNE_SGLANG`` names; skips the test when it names none."""
    named = Path(os.environ.get("AUTOTUNE_SGLANG", ""))
    if not (named / "bin" / "python").is_file():
        pytest.skip(
            "AUTOTUNE_SGLANG names no environment made by examples/sglang_cpu/make_environment.sh"
        )
    return named


def test_both_are_measured_and_end_without_a_trace(model: Path, tmp_path: Path) -> None:
    programs = {"vllm": environment(), "sglang": sglang()}
    # Of the command line alone: the process that it is forked from goes on, and is no trace.
    settings = {**SETTINGS, "OMP_NUM_THREADS": "1", "LAUNCH_TEST": tmp_path.name}
    home = tmp_path / "home"
    engines = [
        word
        for (name, program), asked in zip(programs.items(), ASKED, strict=True)
        for word in (
            "--engine",
            name,
            "--engine-bin",
            f"{name}={program}",
            "--engine-arg",
            f"{name}={asked}",
        )
    ]
    done = autotune(
        *("run", "--model", str(model), "--hw", "local", "--on", "process", *engines),
        *("--space", str(EXAMPLE / "space"), "--workload", "tiny-shared-prefix", "--launches", "4"),
        *(
            "--baseline",
            f"vllm serve {model} {ASKED[0]} --max-num-seqs 4 --no-enable-prefix-caching",
        ),
        *("--study", "both", "--json"),
        home=home,
        **settings,
    )
    print(done.err)
    assert done.code == 0, done.err
    assert done.json["evidence"] == "measured"
    folder = home / "studies" / "both"
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert {row["state"] for row in rows} <= {"complete", "invalid"}
    ran = [row for row in rows if row["state"] == "complete"]
    assert {
        row["config"]["engine"] if "engine" in row["config"] else row["engine"] for row in ran
    } == set(programs)
    for row in ran:
        metrics = row["metrics"]["tiny-shared-prefix"]
        assert (metrics["completed"], metrics["total_input_tokens"]) == (48, 48 * 544)
        # The baseline computes every prompt whole; 512 of 544 tokens are shared by groups of
        # twelve.
        assert (metrics["cache_hit_rate"] > 0.3) is row["config"]["prefix_caching"]
        kept = json.loads(
            (folder / "trials" / f"{row['number']:04d}" / "resolved.json").read_text()
        )
        for knob in ("prefix_caching", "max_running_requests"):
            assert kept["config"][knob] == row["config"][knob]
    assert alive_with(tmp_path.name) == []
