"""A file that no study or command of ours has made is not overwritten or removed unless the user
names it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.base.files import write_atomically
from autotune.cli.calibration import _output
from autotune.load.bench.results import Bench
from autotune.load.request_file import write_requests
from autotune.node.emulator.process import read_faults
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import CalibrateOptions
from tests import small_study


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root `-o /dev/null` would replace it for the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("name", ["report.md", "serve.sh", "trials/0000/server.log"])
def test_a_folder_that_no_study_made_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    home, spec = Home(tmp_path), small_study.spec()
    theirs = home.study_folder(spec.study) / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    for refuse in (lambda: home.check_free(spec.study), lambda: home.open(spec)):
        with pytest.raises(BadInput, match="is no study's folder"):
            refuse()
    assert theirs.read_text() == "theirs"


def test_a_study_that_was_killed_at_its_very_start_begins_again(tmp_path: Path) -> None:
    home, spec = Home(tmp_path), small_study.spec()
    folder = home.study_folder(spec.study)
    (folder / "trials").mkdir(parents=True)
    (folder / "lock").touch()
    (folder / ".study.yaml.node.1.tmp").touch()
    home.check_free(spec.study)
    assert home.open(spec) == folder


def test_a_file_of_requests_is_not_written_over_a_strangers(tmp_path: Path) -> None:
    result, beside = tmp_path / "r.json", tmp_path / "r.requests.parquet"
    bench = Bench(url="http://127.0.0.1:1", save_result=result, seed=1)
    bench.check_result_file()
    beside.write_text("theirs")
    with pytest.raises(BadInput, match=r"r\.requests\.parquet lies next to it"):
        bench.check_result_file()
    write_requests(beside, (), {})
    bench.check_result_file()


def test_a_calibration_that_a_person_wrote_is_not_overwritten(tmp_path: Path) -> None:
    own = Home(tmp_path).calibration
    for theirs in (b"# Written by hand\n", b"\xff\xfe no text"):
        own.write_bytes(theirs)
        with pytest.raises(BadInput, match="was not written by"):
            _output(CalibrateOptions(), tmp_path)
    assert _output(CalibrateOptions(output=own), tmp_path) == own, "named by the user"
    own.write_text("# Written by `autotune calibrate`; the next calibration overwrites it.\n")
    assert _output(CalibrateOptions(), tmp_path) == own


def test_a_file_of_faults_is_removed_only_if_it_has_faults(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("oom, and milk")
    with pytest.raises(BadInput):
        read_faults(f"@{notes}")
    assert notes.read_text() == "oom, and milk"
