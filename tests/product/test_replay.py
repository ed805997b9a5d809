"""``--on replay:FILE``: a table of anything, from the first line to the files, interrupted and
resumed."""

from __future__ import annotations

import json
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.outputs.export import export, winner_of
from autotune.outputs.progress import Progress
from autotune.run import run
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.home import Home, library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import Recommendation
from tests.product.cli import Finished, autotune, new_home, rows
from tests.product.test_bad_input import GOOD, refused

STUDY = ["--study", "s", "--launches", "20", "--baseline", "alpha=1,beta=x"]


def table() -> str:
    """An engine and knobs that nobody knows; alpha=8 with beta=z is best, and alpha=16 does not
    fit."""
    gains = {"x": 100.0, "y": 110.0, "z": 150.0}
    lines = [
        f"foo,{alpha},{beta},,{gain * (1 + alpha / 4)},{5000 / gain}"
        for alpha in (1, 2, 4, 8)
        for beta, gain in gains.items()
    ]
    lines += [f"bar,16.0,{beta},Out of memory,," for beta in gains]
    return "\n".join(["engine,alpha,beta,failure,total_token_throughput,mean_ttft_ms", *lines, ""])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    (folder / "table.csv").write_text(table())
    return new_home(folder)


@pytest.fixture(scope="module")
def done(home: Path) -> Finished:
    return autotune("run", *GOOD, "--on", "replay:table.csv", *STUDY, home=home)


def test_a_table_of_anything_ends_with_its_best_row(home: Path, done: Finished) -> None:
    assert done.code == 0, done.err
    assert done.err.startswith(
        f"REPLAYED: nothing is launched; all numbers are as recorded in {home.parent / 'table.csv'}"
    )
    assert "knobs: alpha, beta; metrics: total_token_throughput, mean_ttft_ms" in done.err
    folder = home / "studies" / "s"
    found = json.loads((folder / "recommendation.json").read_text())
    assert (found["evidence"], found["verdict"], found["engine"]) == ("replayed", "better", "foo")
    assert found["config"] == {"alpha": 8, "beta": "z"}
    assert found["gain_percent"] == pytest.approx(100 * (450 / 125 - 1))
    assert found["command"] == "replayed:foo --alpha=8 --beta=z"
    assert found["command"] in done.unbroken
    assert "REPLAYED" in done.out
    assert {row["evidence"] for row in rows(home, "s")} == {"replayed"}
    assert rows(home, "s")[0]["config"] == {"alpha": 1, "beta": "x"}
    report = (folder / "report.md").read_text()
    assert "**REPLAYED.** No server ran" in report
    assert f"--on replay:{home.parent / 'table.csv'}" in report


def test_what_has_no_command_is_not_served_nor_exported_as_one(home: Path, done: Finished) -> None:
    folder = home / "studies" / "s"
    script = subprocess.run([folder / "serve.sh"], capture_output=True, text=True, check=False)
    assert script.returncode == 1
    assert "has no start command of foo; its row is: --alpha=8 --beta=z" in script.stderr
    assert "serve " not in done.out
    found = Recommendation.from_json(json.loads((folder / "recommendation.json").read_text()))
    winner = winner_of(found, Home(home).spec("s"), Home(home).launches("s"))
    assert '"evidence": "replayed"' in export(winner, "json")
    for form in ("vllm-config", "docker", "k8s"):
        with pytest.raises(BadInput, match=r"table has no command.*from: shell, json$"):
            export(winner, form)


def test_a_study_is_resumed_with_the_same_table_only(home: Path, done: Finished) -> None:
    folder, file = home / "studies" / "s", home.parent / "table.csv"
    before = rows(home, "s")
    kept = (folder / "results.jsonl").read_text().splitlines(keepends=True)[:4]
    (folder / "results.jsonl").write_text("".join(kept))
    spec = Home(home).spec("s")
    progress = Progress(spec, Console(file=StringIO()))
    file.write_text(table().replace("125.0", "126.0"))
    with pytest.raises(BadInput, match=r"table\.csv has changed since the study began"):
        run(spec, Home(home), progress)
    file.write_text(table())
    assert run(spec, Home(home), progress).evidence is Evidence.REPLAYED
    what = ("number", "role", "config", "metrics", "failure")
    assert [[row[key] for key in what] for row in rows(home, "s")] == [
        [row[key] for key in what] for row in before
    ]


def test_the_rows_of_a_study_are_a_table_too(home: Path, done: Finished) -> None:
    path = home / "studies" / "s" / "results.jsonl"
    asked = RunOptions(
        GOOD[1], GOOD[3], on=f"replay:{path}", slos=["mean_ttft_ms<=40"], pins=["alpha=4"]
    )
    spec = build_spec(asked)
    found = prepare(spec, library_of(spec)).candidates.items
    tried = {tuple(row["config"].items()) for row in rows(home, "s") if row["config"]["alpha"] == 4}
    assert {tuple(candidate.configuration.knobs.items()) for candidate in found} == tried


def test_a_bad_table_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(table().replace("foo,2,y,,", "foo,2,y,,x"))
    refused(
        autotune("run", *GOOD, "--on", "replay:table.csv", home=tmp_path / "home"),
        "table.csv:6:",
        "not a number",
    )
    assert not (tmp_path / "home").exists()


def test_a_finished_study_goes_on_with_a_larger_budget_and_new_finals(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(table())
    home = new_home(tmp_path)
    small = ["--study", "s", "--launches", "7", "--noise", "0.03", "--baseline", "alpha=1,beta=x"]
    assert autotune("run", *GOOD, "--on", "replay:table.csv", *small, home=home).code == 0
    before = rows(home, "s")
    assert "final" in {row["role"] for row in before}
    few = autotune("resume", "s", "--launches", "9", home=home)
    assert (few.code, "has 7 launches, and new finals take 3; give at least 10" in few.err) == (
        2,
        True,
    )
    done = autotune("resume", "s", "--launches", "16", "--json", home=home)
    assert done.code == 0, done.err
    after = rows(home, "s")
    assert after[:7] == before, "what was measured stays as it is"
    assert [row["role"] for row in after[7:]].count("final") >= 2
    assert "search" in {row["role"] for row in after[7:]}
    assert (done.json["launches"], Home(home).spec("s").launches) == (len(after), 16)
    # The finals of the smaller budget chose what is tested now: they do not decide again.
    fresh = [
        row
        for row in after[7:]
        if row["fingerprint"] == done.json["fingerprint"] and row["role"] == "final"
    ]
    assert done.json["objective"]["repeats"] == len(fresh)
    again = autotune("resume", "s", "--json", home=home)
    assert again.json == done.json
