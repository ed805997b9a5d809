"""`autotune list` and `autotune report` over a home folder in which studies are finished, at work,
stopped, damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import BadInput, UnknownName
from autotune.tuner.study.home import Home
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.results import Lock, row_of
from autotune.tuner.trial import Launch
from tests import small_study
from tests.product.cli import autotune
from tests.product.processes import PROGRAM
from tests.product.terminal import Terminal

LAUNCHES = small_study.launches()
OLD_KEYS = ["study", "model", "hardware", "evidence", "verdict", "gain", "launches", "age_hours"]


def study(
    home: Path, name: str, launches: Sequence[Launch], done: Recommendation | None = None
) -> Path:
    folder = Home(home).open(small_study.spec(study=name))
    (folder / "results.jsonl").write_text(
        "".join(json.dumps(row_of(launch)) + "\n" for launch in launches)
    )
    if done is not None:
        (folder / "recommendation.json").write_text(json.dumps(done.to_json()))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies that began one after the other; ``done`` ran on two nodes, ``stopped`` has a torn
    last row."""
    home = tmp_path_factory.mktemp("product") / "home"
    second = [
        replace(launch, result=replace(launch.result, node="node-1")) for launch in LAUNCHES[5:]
    ]
    baseline = small_study.choice(small_study.BASELINE, 6000.0)
    done = small_study.giving_up().model_copy(update={"study": "done"})
    study(home, "done", [*LAUNCHES[:5], *second], done)
    same = small_study.recommendation(
        study="same", recommended=baseline, gain_percent=0.0, gain_ci95=None
    )
    study(home, "same", LAUNCHES[:2], same)
    with (study(home, "stopped", LAUNCHES[:4]) / "results.jsonl").open("a") as rows:
        rows.write('{"number": 4, "role": "sea')
    study(home, "running", [])
    (study(home, "damaged", LAUNCHES) / "study.yaml").write_bytes(b"\xff\xfe")
    for place, name in enumerate(["done", "same", "stopped", "running", "damaged"]):
        os.utime(home / "studies" / name / "study.yaml", (1e9 + place, 1e9 + place))
    return home


def test_list_tells_of_every_study_how_far_it_is(home: Path) -> None:
    lock = Lock(home / "studies" / "running")
    try:
        listed = autotune("list", "--json", home=home)
        table = autotune("list", home=home)
    finally:
        lock.release()
    assert listed.code == table.code == 0, table.err
    rows = {row["study"]: row for row in listed.json}
    assert list(rows) == ["done", "same", "stopped", "running", "damaged"]
    assert all(list(row)[: len(OLD_KEYS)] == OLD_KEYS for row in rows.values())
    expected = {
        "verdict": "better",
        "gain": "+51.7 %",
        "gain_ci95": [47.2, 56.1],
        "launches": 9,
        "engine": "sglang",
    }
    expected |= {"gain_interval90_on_a_node": [-4.0, 160.0], "holds_on_a_node": False}
    expected |= {
        "nodes": ["node-0", "node-1"],
        "state": "finished",
        "evidence": "simulated",
        "hardware": "8xh200",
    }
    assert expected.items() <= rows["done"].items()
    assert (rows["same"]["gain"], rows["same"]["gain_percent"]) == (None, None), (
        "the baseline over itself"
    )
    stopped = {
        "verdict": "unfinished",
        "state": "interrupted",
        "launches": 4,
        "budget": 9,
        "evidence": "simulated",
    }
    assert stopped.items() <= rows["stopped"].items()
    assert (rows["running"]["state"], rows["running"]["launches"]) == ("running", 0)
    assert rows["damaged"]["state"] == rows["damaged"]["verdict"] == "unreadable"
    assert table.err.count("study.yaml: not a study's specification") == 1
    lines = [line.split("  ") for line in table.out.splitlines()]
    shown = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert shown[0] == [
        "study",
        "model",
        "hardware",
        "evidence",
        "verdict",
        "gain",
        "launches",
        "nodes",
        "age",
    ]
    assert shown[1][4:8] == [
        "better, open on a node",
        "+51.7 % (+47.2 % to +56.1 %) [-4.0 % to +160 %]",
        "9",
        "2",
    ]
    assert shown[3][4:7] == ["interrupted", "–", "4 of 9"]
    assert shown[4][4] == "running"


def test_report_of_a_study_without_one(home: Path) -> None:
    """Of a finished one it is written again; before the first launch a message tells how far a
    study is."""
    assert "# deepseek-ai/DeepSeek-V3.2 on 8×H200" in autotune("report", "done", home=home).out
    begun = autotune("report", "running", home=home)
    assert begun.code == 2
    assert "0 of at most 9 launches are done" in begun.err
    assert f"\nautotune resume running --home {home}\n" in begun.err
    unknown = autotune("report", "stoped", home=home)
    assert unknown.code == 2
    assert "did you mean 'stopped'? Known: damaged, done, running, same, stopped." in unknown.err


def test_an_unfinished_study_is_reported_as_far_as_it_is(home: Path) -> None:
    """With the best so far, what failed and the way on; without a verdict, and without a file."""
    folder = home / "studies" / "stopped"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    told = autotune("report", "stopped", home=home)
    assert told.code == 0, told.err
    assert "**UNFINISHED.** 4 of at most 9 launches" in told.out
    assert "**SIMULATED.**" in told.out
    assert (
        "sglang 0.5.23, total TPS of 9,100 tok/s (1 launch, +51.7 % against the baseline)"
        in told.out
    )
    assert small_study.COMMANDS[small_study.WINNER].shell() in told.out
    assert "out_of_memory" in told.out
    assert f"\nautotune resume stopped --home {home}\n" in told.out
    assert "](report/" not in told.out, "there are no pictures in the folder"
    for word in ("Verdict", "recommended:", "Gain "):
        assert word not in told.out
    page = autotune("report", "stopped", "--format", "html", home=home)
    assert page.code == 0, page.err
    assert "UNFINISHED." in page.out
    assert '<g class="mark">' in page.out, "each launch is a point of a picture"
    shown = autotune("report", "stopped", "--json", home=home).json
    assert (shown["finished"], shown["report"].strip()) == (False, told.out.strip())
    assert autotune("report", "done", "--json", home=home).json["finished"] is True
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    lock = Lock(folder)
    try:
        running = autotune("report", "stopped", home=home)
    finally:
        lock.release()
    assert running.code == 0, running.err
    assert "UNFINISHED" in running.out
    assert "autotune resume" not in running.out


def test_a_terminal_shows_the_report_as_text_and_the_command_in_one_piece(home: Path) -> None:
    """Elsewhere it is Markdown as it stands."""
    command = [*PROGRAM, "report", "done", "--home", str(home)]
    with Terminal(command, 100) as terminal:
        terminal.watch()
        written = re.sub(r"\x1b\[[\d;]*m", "", terminal.bytes_.decode())
    assert written.strip().startswith("deepseek-ai/DeepSeek-V3.2 on 8×H200")
    for sign in ("**", "```", "| --- |", "](report/", "\\_"):
        assert sign in autotune("report", "done", home=home).out
        assert sign not in written
    serving = small_study.COMMANDS[small_study.WINNER].shell()
    assert len(serving) > 100
    assert serving in written, "the terminal breaks its line, not we"


def test_what_is_damaged_or_no_study_hides_no_other(tmp_path: Path) -> None:
    """Folders as people and crashes leave them; a renamed or copied one is a study under its own
    name."""
    home = tmp_path / "home"
    shutil.copytree(study(home, "first", LAUNCHES[:4]), home / "studies" / "copy")
    shutil.copytree(home / "studies" / "first", home / "studies" / "copy of first")
    (study(home, "lost", LAUNCHES[:1]) / "study.yaml").unlink()
    (study(home, "no-spec", []) / "study.yaml").write_text("{}")
    (study(home, "no-answer", []) / "recommendation.json").write_text("[1]")
    (home / "studies" / "folder" / "study.yaml").mkdir(parents=True)
    (home / "studies" / "gone").symlink_to("nowhere")
    (home / "studies" / "notes").mkdir()
    listed = autotune("list", "--json", home=home)
    assert {row["study"]: row["state"] for row in listed.json} == {
        **dict.fromkeys(["first", "copy"], "interrupted"),
        **dict.fromkeys(["copy of first", "lost", "no-spec", "no-answer", "folder"], "unreadable"),
    }
    assert listed.err.count("\n") == 5
    assert "lost/study.yaml: not a study's specification (No such file or directory)" in listed.err
    for name in ("lost", "no-answer", "folder"):
        told = autotune("report", name, home=home)
        assert (told.code, f"/studies/{name}/" in told.err) == (2, True)
    copied = autotune("export", "copy", "--to", "shell", home=home).err
    assert "study 'copy' is not finished" in copied
    assert "4 of at most 9 launches are done" in copied
    assert f"\nautotune resume copy --home {home}\n" in copied


def test_the_launches_of_a_lost_specification_are_not_taken_for_a_new_study_s(
    tmp_path: Path,
) -> None:
    (study(tmp_path, "lost", LAUNCHES[:1]) / "study.yaml").unlink()
    with pytest.raises(BadInput, match="study 'lost' exists"):
        Home(tmp_path).check_free("lost")


def test_two_that_begin_studies_of_one_name_at_once_do_not_mix_them(tmp_path: Path) -> None:
    """Both found the name free; the second comes to make its folder when the first has launches, or
    is done."""
    study(tmp_path, "s", LAUNCHES[:1])
    with pytest.raises(BadInput, match="study 's' exists"):
        Home(tmp_path).open(small_study.spec(study="s", gpus=4))
    assert Home(tmp_path).open(Home(tmp_path).spec("s")).name == "s"


def test_a_narrow_terminal_cuts_nothing_off(home: Path) -> None:
    shown = autotune("list", home=home, COLUMNS="60", TTY_COMPATIBLE="1", TERM="xterm").out
    assert "…" not in shown
    assert "done " in shown
    assert {
        "deepseek-ai/DeepSeek-V3.2",
        "8xh200",
        "simulated",
        "better,",
        "(+47.2",
        "interrupted",
    } <= {*shown.split()}


def test_a_link_to_a_study_is_no_second_study(tmp_path: Path) -> None:
    """Whatever it is called; of a study that lies elsewhere the links are one, too, and each name
    still works."""
    home = tmp_path / "home"
    folder = study(home, "mine", LAUNCHES, small_study.recommendation(study="mine"))
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    for name, target in (("a", folder), ("z", folder), ("other", elsewhere), ("same", elsewhere)):
        (home / "studies" / name).symlink_to(target)
    listed = {row["study"] for row in autotune("list", "--json", home=home).json}
    assert len(listed) == 2
    assert "mine" in listed
    assert listed - {"mine"} <= {"other", "same"}
    assert len(autotune("list", home=home).out.splitlines()) == 1 + 2
    assert autotune("report", "a", home=home).code == 0


def test_ages_are_told_in_minutes(tmp_path: Path) -> None:
    """Three studies that began a few minutes apart."""
    home = tmp_path / "home"
    for minutes in (24, 22, 21):
        path = study(home, f"s{minutes}", []) / "study.yaml"
        os.utime(path, (time.time() - 60 * minutes,) * 2)
    rows = autotune("list", home=home).out.splitlines()[1:]
    assert [row.split("  ")[-1].strip() for row in rows] == ["24 min", "22 min", "21 min"]


def test_of_very_many_studies_a_message_names_the_nearest(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / "studies" / f"nightly-{number:02d}").mkdir(parents=True)
        (tmp_path / "studies" / f"nightly-{number:02d}" / "study.yaml").touch()
    with pytest.raises(UnknownName, match=r"Known: nightly-07, nightly-17, .* and 50 others\."):
        Home(tmp_path).spec("nightly-o7")
