"""A version whose options are another's says so wherever they are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.product.cli import autotune

SAID = "vLLM 0.31.0's flags are not bundled; using those of 0.30.0"
ASKED = ["--model", "qwen3-8b", "--hw", "h200"]
QWEN = "vllm serve Qwen/Qwen3-8B"


@pytest.mark.e2e
def test_a_borrowed_table_is_named_by_every_command_that_uses_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    shown = autotune("space", "show", *ASKED, "--engine", "vllm==0.31.0", home=home)
    assert SAID in shown.out
    told = autotune("space", "show", *ASKED, "--engine", "vllm==0.31.0", "--json", home=home)
    assert SAID in told.json["notes"]
    words = ["simulate", "--hw", "h200", "--workload", "random:64:4:4"]
    predicted = autotune(*words, "--engine-version", "0.31.0", "--", QWEN, home=home)
    assert SAID in predicted.err
    compared = autotune(*words, "--versus", "0.31.0", "--", QWEN, home=home)
    assert SAID in compared.err

    tuned = [*ASKED, "--engine", "vllm==0.31.0", "--on", "simulator", "--launches", "2"]
    run = autotune("run", *tuned, "--study", "borrowed", home=home)
    assert run.code == 0, run.err
    assert SAID in run.err
    assert SAID in autotune("report", "borrowed", home=home).out
    bundle = tmp_path / "study.bundle"
    autotune("bundle", "borrowed", "--output", str(bundle), home=home)
    replayed = autotune("run", *ASKED, "--on", f"replay:{bundle}", "--launches", "2", home=home)
    assert SAID in replayed.err
    newer = ["--engine", "vllm==0.29.0", "--launches", "2"]
    regressed = autotune("regress", "borrowed", *newer, home=home)
    assert "vLLM 0.29.0's flags are not bundled; using those of 0.28.0" in regressed.out
