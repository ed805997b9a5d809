"""Studies that an earlier version wrote: they are reported, exported and resumed.

``earlier_version/`` holds two simulated studies as the version of commit 5d80f59 left them: one that is finished, one
that ``kill -9`` ended in its fourth launch. In their ``study.yaml`` SPACE stands for the path of the space file.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .cli import autotune, new_home, rows

HERE = Path(__file__).parent
SPACE = HERE.parents[1] / "examples" / "small-space.yaml"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = new_home(tmp_path)
    shutil.copytree(HERE / "earlier_version", home / "studies")
    for path in home.glob("studies/*/study.yaml"):
        path.write_text(path.read_text().replace("SPACE", str(SPACE)))
    return home


def test_a_finished_study_is_listed_reported_and_exported(home: Path) -> None:
    kept = json.loads((HERE / "earlier_version" / "finished" / "recommendation.json").read_text())
    listed = {row["study"]: row for row in autotune("list", "--json", home=home).json}
    assert {name: (row["state"], row["launches"]) for name, row in listed.items()} == {
        "finished": ("finished", 6),
        "interrupted": ("interrupted", 3),
    }
    report = autotune("report", "finished", home=home)
    assert report.code == 0, report.err
    assert kept["command"] in report.out
    exported = autotune("export", "finished", "--to", "shell", home=home)
    assert exported.code == 0, exported.err
    assert all(word in exported.out for word in kept["argv"] if word.startswith("--"))
    again = autotune("resume", "finished", "--json", home=home)
    assert again.code == 0, again.err
    assert {key: again.json[key] for key in ("command", "gain_percent", "verdict")} == {
        key: kept[key] for key in ("command", "gain_percent", "verdict")
    }


def test_an_interrupted_study_goes_on_with_the_launch_that_was_under_way(home: Path) -> None:
    before = rows(home, "interrupted")
    done = autotune("resume", "interrupted", home=home)
    assert done.code == 0, done.err
    after = rows(home, "interrupted")
    assert after[:3] == before
    assert [row["number"] for row in after] == list(range(6))
    # Begun as 9cf47310a417, launch 2's configuration: the card has more knobs now, which are at their defaults.
    assert (after[3]["role"], after[3]["fingerprint"]) == ("final", "06921bff8386")
    assert before[2]["config"].items() < after[3]["config"].items()
    assert autotune("report", "interrupted", home=home).code == 0
