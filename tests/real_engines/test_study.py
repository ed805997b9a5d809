"""A study that launches a real vLLM: what it recommends, and what vLLM says of its arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.product.cli import autotune
from tests.real_engines.server import EXAMPLE, SETTINGS, environment
from tests.servers.settings import alive_with

pytestmark = pytest.mark.real_engines

LAUNCHES = 11


def test_caching_and_the_larger_batch_are_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = environment()
    for name, value in {**SETTINGS, "LAUNCH_TEST": tmp_path.name}.items():
        monkeypatch.setenv(name, value)
    started = "--enforce-eager --dtype float32"
    home = tmp_path / "home"
    done = autotune(
        *(
            "run",
            "--model",
            str(model),
            "--hw",
            "local",
            "--engine",
            "vllm",
            "--engine-bin",
            f"vllm={program}",
        ),
        *("--on", "process", "--space", str(EXAMPLE / "space"), "--workload", "tiny-shared-prefix"),
        *(
            "--engine-arg",
            f"vllm={started}",
            "--launches",
            str(LAUNCHES),
            "--study",
            "real",
            "--json",
        ),
        *(
            "--baseline",
            f"vllm serve {model} {started} --max-num-seqs 4 --no-enable-prefix-caching",
        ),
        home=home,
    )
    print(done.err)
    assert done.code == 0, done.err
    found = done.json
    print(
        json.dumps(
            {name: found[name] for name in ("verdict", "command", "gain_percent", "gain_ci95")},
            indent=2,
        )
    )
    assert (found["verdict"], found["evidence"]) == ("better", "measured")
    assert (found["config"]["prefix_caching"], found["config"]["max_running_requests"]) == (
        True,
        64,
    )
    assert found["gain_ci95"][0] > 0
    folder = home / "studies" / "real"
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert {row["state"] for row in rows} <= {"complete", "invalid"}
    for row in rows:
        if row["state"] != "complete":
            continue
        kept = json.loads(
            (folder / "trials" / f"{row['number']:04d}" / "resolved.json").read_text()
        )
        for knob in ("prefix_caching", "max_running_requests"):
            assert kept["config"][knob] == row["config"][knob]
    assert alive_with(tmp_path.name) == []
