"""`autotune verify` and `autotune regress`: a simulated study's commands on real processes, with an
interruption."""

from __future__ import annotations

import json
from pathlib import Path

from tests.product.cli import autotune, finished_rows, kill_after, new_home, rows

ROOT = Path(__file__).resolve().parents[2]
QUESTION = [
    *(
        "--model",
        "deepseek-ai/DeepSeek-V3.2",
        "--hw",
        "h200",
        "--engine",
        "sglang",
        "--workload",
        "random:256:16:64",
    ),
    *(
        "--space",
        str(ROOT / "examples" / "emulated-space.yaml"),
        "--set",
        "cuda_graph_max_batch=512",
        "--seed",
        "3",
    ),
    # What holds shorter requests than the baseline is verified only where that is allowed.
    *("--allow", "shorter-context"),
]


def test_a_verification_is_killed_and_resumed_and_tells_each_prediction_with_its_error(
    tmp_path: Path,
) -> None:
    home = new_home(tmp_path)
    done = autotune("run", *QUESTION, "--launches", "4", "--study", "s", home=home)
    assert done.code == 0, done.err
    few = autotune("verify", "s", "--on", "emulator", "--launches", "2", home=home)
    assert few.code == 2
    assert "give at least" in few.err
    asked = ["verify", "s", "--on", "emulator", "--launches", "5", "--top", "1"]
    assert kill_after(asked, home, 0.0, lambda: bool(finished_rows(home, "s-verified"))), (
        "it ended too soon"
    )
    before = finished_rows(home, "s-verified")
    twice = autotune(*asked, home=home)
    assert twice.code == 2
    assert "autotune resume s-verified" in twice.err
    verified = autotune("resume", "s-verified", home=home)
    assert verified.code == 0, verified.err
    assert finished_rows(home, "s-verified")[: len(before)] == before
    found = json.loads((home / "studies" / "s-verified" / "recommendation.json").read_text())
    assert found["evidence"] == "emulated"
    baseline, other = found["predictions"]
    assert (baseline["role"], other["role"] in ("recommended", "next best")) == ("baseline", True)
    simulated = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert baseline["predicted"]["value"] == simulated["baseline"]["objective"]["value"]
    launched = {row["fingerprint"] for row in rows(home, "s-verified")}
    assert launched == {baseline["fingerprint"], other["fingerprint"]}
    for row in (baseline, other):
        # The emulated node runs at the simulated one's times, and on what else this machine does.
        assert abs(row["predicted"]["error_percent"]) < 30
        assert (
            row["predicted"]["interval90"][0]
            < row["predicted"]["value"]
            < row["predicted"]["interval90"][1]
        )
    assert (
        "as study `s` predicted it (SIMULATED)"
        in (home / "studies" / "s-verified" / "report.md").read_text()
    )
    assert "Baseline (sglang): predicted" in verified.out


def test_two_versions_are_compared_through_processes_killed_in_between(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    done = autotune("run", *QUESTION, "--launches", "4", "--study", "s", home=home)
    assert done.code == 0, done.err
    asked = [
        "regress",
        "s",
        "--on",
        "emulator",
        "--engine",
        "sglang==0.5.9",
        "--launches",
        "4",
        "--margin",
        "30",
    ]
    folder = home / "studies" / "s" / "regress" / "0.5.9"

    def finished() -> list[str]:
        path = folder / "results.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    assert kill_after(asked, home, 0.0, lambda: bool(finished())), "it ended too soon"
    before = finished()
    compared = autotune(*asked, "--json", home=home)
    found = json.loads(compared.out)
    assert found == json.loads((folder / "regress.json").read_text())
    assert compared.code == {"pass": 0, "regression": 5, "undecided": 6}[found["verdict"]]
    rows_ = list(map(json.loads, finished()))
    assert finished()[: len(before)] == before
    assert (found["old"], found["evidence"], found["launches"]) == (
        "launched",
        "emulated",
        len(rows_),
    )
    old = json.loads((home / "studies" / "s" / "recommendation.json").read_text())["engine_version"]
    assert {row["engine_version"] for row in rows_} == {old, "0.5.9"}
    assert all(row["pids"] and row["state"] == "complete" for row in rows_)
    assert (folder / "trials" / "0000" / "server.log").exists()
    report = (home / "studies" / "s" / "report.md").read_text()
    assert f"sglang 0.5.9 against {old} (EMULATED)" in report
    again = autotune(*asked, home=home)
    assert (again.code, len(finished())) == (compared.code, len(rows_)), "it was decided"
    # The same command on another backend launches for itself.
    other = autotune(
        *(word.replace("emulator", "simulator") for word in asked), "--json", home=home
    )
    assert other.code in (0, 5, 6), other.err
    assert other.json["evidence"] == "simulated"
    simulated = (folder.with_name("0.5.9-simulator") / "results.jsonl").read_text().splitlines()
    assert {json.loads(row)["evidence"] for row in simulated} == {"simulated"}
    assert len(finished()) == len(rows_)
