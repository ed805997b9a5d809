"""A flag that does nothing: two candidates before the launch, one after it, and a sentence that
says so."""

from __future__ import annotations

import json
from pathlib import Path

from tests.product.cli import autotune, new_home, rows

SPACE = Path(__file__).resolve().parents[2] / "examples" / "no-op-space.yaml"
QUESTION = [
    *(
        "--model",
        "deepseek-ai/DeepSeek-R1",
        "--hw",
        "h200",
        "--on",
        "emulator",
        "--engine",
        "sglang",
    ),
    *("--workload", "random:64:4:16", "--launches", "3", "--space", str(SPACE)),
]
SENTENCE = "`--ep-size 4` had no effect: SGLang ran with `expert_parallel=8`"


def test_a_width_that_deepep_decides_joins_its_equivalent(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    done = autotune("run", *QUESTION, "--study", "s", "--json", home=home)
    assert done.code == 0, done.err
    plain, odd = rows(home, "s")
    assert "--ep-size" in odd["argv"]
    assert "--ep-size" not in plain["argv"]
    assert plain["fingerprint"] != odd["fingerprint"]
    assert (
        plain["resolved"]["fingerprint"] == odd["resolved"]["fingerprint"] == plain["fingerprint"]
    )
    assert odd["resolved"]["differs"] == {"expert_parallel": [4, 8]}
    assert (done.json["trials"], done.json["launches"]) == (1, 2), "one candidate, launched twice"
    assert done.json["stop_reason"].startswith("every candidate was tried")
    assert "--ep-size" not in done.json["argv"]
    assert done.json["objective"]["repeats"] == 1, (
        "what the search measured is no evidence for the baseline"
    )
    (found,) = done.json["resolutions"]
    assert (found["note"], found["launches"], found["repeats_of"]) == (SENTENCE, [1], 0)
    (idle,) = done.json["inert"]
    assert (idle["knob"], idle["values"], idle["launches"]) == ("expert_parallel", [4], 1)
    folder = home / "studies" / "s"
    report = (folder / "report.md").read_text()
    assert report.count(SENTENCE) == 1
    assert f"{SENTENCE} (launch 1), so that it is a repeat of launch 0." in report
    assert "- `expert_parallel` (`4`): the engine ran with `8` (launch 1)." in report
    kept = json.loads((folder / "trials" / "0001" / "resolved.json").read_text())
    assert kept["told"]["expert_parallel"] == 8
    assert kept["sources"][0]["settings"]["ep_size"] == 8
