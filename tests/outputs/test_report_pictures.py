"""The pictures: that they show what is in ``results.jsonl``, and that a page with them stays small
and safe."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.etree import ElementTree

import pytest

from autotune.base.evidence import Evidence
from autotune.outputs.export import write_artefacts
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.pictures import (
    Picture,
    Point,
    contributions,
    curves,
    finals,
    speed,
    tried,
)
from autotune.outputs.report.render import DRAWN, files_of
from autotune.tuner.study.results import Results
from tests import small_study
from tests.outputs import report_studies
from tests.small_study import metrics

SVG = "{http://www.w3.org/2000/svg}"


def told_by(svg: str) -> list[str]:
    """What the points of a drawn picture tell, as a reader of XML reads it."""
    marks = (
        element for element in ElementTree.fromstring(svg).iter() if element.get("class") == "mark"
    )
    return [str(mark.findtext(f"{SVG}title")) for mark in marks]


class Study:
    """A study's pictures, and the files of its folder, read back from the disk."""

    def __init__(self, record: StudyRecord) -> None:
        record.folder.mkdir(parents=True)
        results = Results(record.folder / "results.jsonl")
        for launch in record.launches:
            results.append(launch)
        write_artefacts(record.folder, record.spec, record.launches, record.recommendation)
        self.record = record
        self.text = (record.folder / "report.html").read_text(encoding="utf-8")
        lines = (record.folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
        self.rows = {row["number"]: row for row in map(json.loads, lines)}
        self.outcome = json.loads(
            (record.folder / "recommendation.json").read_text(encoding="utf-8")
        )

    def points(self, make: Callable[[StudyRecord], Picture | None]) -> list[Point]:
        """Return a picture's points, of which each must be drawn with what it tells."""
        picture = make(self.record)
        if picture is None:
            return []
        points = [point for panel in picture.panels for point in panel.points]
        file = self.record.folder / "report" / f"{picture.name}.svg"
        assert sorted(told_by(file.read_text(encoding="utf-8"))) == sorted(
            point.tooltip for point in points
        )
        return points

    def value(self, number: float, metric: str = "total_token_throughput") -> float:
        return float(self.rows[int(number)]["metrics"]["sharegpt"][metric])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(report_studies.everything(tmp_path_factory.mktemp("studies") / "small"))


def test_every_launch_is_in_the_picture_of_what_was_tried(study: Study) -> None:
    points = study.points(tried)
    assert [point.x for point in points] == list(range(9))
    for point in points:
        row = study.rows[int(point.x)]
        assert f"({row['role']})" in point.tooltip
        complete = row["state"] == "complete"
        assert (point.shape == "x") is not complete
        assert point.y == (study.value(point.x) if complete else 0.0)
    assert "out_of_memory" in points[2].tooltip
    assert "vllm serve deepseek-ai/DeepSeek-V3.2" in points[0].tooltip


def test_speed_of_each_configuration_and_of_each_load_of_its_curve(study: Study) -> None:
    points = study.points(speed)
    loads = 0
    for point in points:
        numbers = _numbers(point.tooltip)
        if load := re.search(r", load (\d+),", point.tooltip):
            loads += 1
            rows = study.rows[numbers[0]]["metrics"]["sharegpt"]["curve"]
            (row,) = (row for row in rows if row["concurrency"] == int(load[1]))
            figures = [(row["total_token_throughput"], row["mean_tpot_ms"])]
        else:
            figures = [
                (study.value(number), study.value(number, "mean_tpot_ms")) for number in numbers
            ]
        assert point.y == pytest.approx(geometric_mean(total / 8 for total, _ in figures))
        assert point.x == pytest.approx(geometric_mean(1000 / tpot for _, tpot in figures))
        assert study.rows[numbers[0]]["argv"][0] in point.tooltip
    complete = {row["fingerprint"] for row in study.rows.values() if row["state"] == "complete"}
    assert (len(points) - loads, loads) == (len(complete), 4 * 4)


def _numbers(told: str) -> list[int]:
    """The launches that a point speaks of."""
    found = re.search(r"launch(?:es)? ([\d, ]+):", told)
    assert found is not None
    return [int(number) for number in found[1].split(", ")]


def test_the_finals_show_each_launch_and_the_interval_of_the_mean(study: Study) -> None:
    points = study.points(finals)
    singles = {_numbers(point.tooltip)[0]: point.x for point in points if point.shape != "D"}
    assert singles == {number: study.value(number) for number in (0, 5, 6, 7, 8)}
    means = {(point.x, point.interval) for point in points if point.shape == "D"}
    goals = [side["objective"] for side in (study.outcome, study.outcome["baseline"])]
    assert means == {(goal["value"], tuple(goal["ci95"])) for goal in goals}


def test_contributions_and_curves_have_the_values_of_the_files(study: Study) -> None:
    shown = [(point.x, point.interval) for point in study.points(contributions)]
    rows = study.outcome["contributions"]
    assert shown == [
        (row["gain_percent"] or 0.0, row["ci95"] and tuple(row["ci95"])) for row in rows
    ]
    points = study.points(curves)
    assert len(points) == 4 * 4 * 4
    for point in points:
        rows = study.rows[int(re.findall(r"launch (\d+)", point.tooltip)[0])]["metrics"][
            "sharegpt"
        ]["curve"]
        assert point.y in next(row for row in rows if row["concurrency"] == point.x).values()


def test_the_markdown_shows_the_same_pictures_as_files(tmp_path: Path) -> None:
    study = report_studies.everything(tmp_path / "study")
    study.folder.mkdir()
    (study.folder / "report").mkdir()
    # An earlier writing's picture goes; one that a person has put there stays.
    (study.folder / "report" / "gone.svg").write_text('<svg class="drawn"/>')
    theirs = study.folder / "report" / "theirs.svg"
    theirs.write_text("<svg/>")
    write_artefacts(study.folder, study.spec, study.launches, study.recommendation)
    assert theirs.read_text() == "<svg/>"
    theirs.unlink()
    report = (study.folder / "report.md").read_text(encoding="utf-8")
    assert (
        set(re.findall(r"!\[[^]]*]\(report/([\w-]+)\.svg\)", report)) == report_studies.ALL_PICTURES
    )
    assert {
        path.stem for path in (study.folder / "report").iterdir()
    } == report_studies.ALL_PICTURES
    for path in (study.folder / "report").iterdir():
        svg = path.read_text(encoding="utf-8")
        assert DRAWN in svg, "the mark by which the next writing knows it"
        assert told_by(svg)
        assert "SIMULATED" in {element.text for element in ElementTree.fromstring(svg).iter()}, (
            "a watermark"
        )
    assert files_of(study) == files_of(study), "the same study gives the same files"


def test_a_measured_study_has_no_watermark(tmp_path: Path) -> None:
    study = report_studies.one_launch(tmp_path)
    measured = study.recommendation.model_copy(update={"evidence": Evidence.MEASURED})
    files = files_of(StudyRecord(study.spec, study.launches, measured, tmp_path))
    assert "watermark" not in files["report.html"].partition("<svg")[2]


@pytest.mark.parametrize("make", [report_studies.one_launch, report_studies.none_ran])
def test_a_study_of_little_has_the_pictures_that_there_can_be(make: Any, tmp_path: Path) -> None:
    study = Study(make(tmp_path / "study"))
    assert len(study.points(tried)) == len(study.rows)
    assert not study.points(finals)


def test_three_hundred_launches_stay_below_three_megabytes(tmp_path: Path) -> None:
    study = Study(report_studies.many(tmp_path / "study"))
    assert len(study.text.encode()) < 3_000_000
    points = study.points(tried)
    assert len(points) == 300
    for point in points:
        assert (point.shape != "x") == (study.rows[int(point.x)]["state"] == "complete")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    files = files_of(report_studies.hostile(tmp_path))
    assert files["report.html"].count("<script>") == 1
    for name, content in files.items():
        if name.endswith(".svg"):
            tags = {
                element.tag.rpartition("}")[2] for element in ElementTree.fromstring(content).iter()
            }
            assert not tags & {"script", "a", "foreignObject", "image"}
            assert "on" not in {
                attribute[:2]
                for e in ElementTree.fromstring(content).iter()
                for attribute in e.attrib
            }


def test_an_objective_that_is_less_the_better(tmp_path: Path) -> None:
    launches = small_study.launches()
    study = StudyRecord(
        small_study.spec(objective="mean_tpot_ms"), launches, small_study.recommendation(), tmp_path
    )
    picture = tried(study)
    assert picture is not None
    assert list(picture.panels[0].lines[0].ys) == pytest.approx([200.0] * 2 + [150.0] * 6), (
        "the best so far falls"
    )


def test_the_best_so_far_falls_to_what_the_finals_confirm(tmp_path: Path) -> None:
    """A lucky launch of the search is the best only until its configuration is launched afresh."""
    launches = small_study.launches()
    lucky = dataclasses.replace(launches[3].result, metrics={"sharegpt": metrics(12_000.0)})
    launches[3] = dataclasses.replace(launches[3], result=lucky)
    picture = tried(
        StudyRecord(small_study.spec(), launches, small_study.recommendation(), tmp_path)
    )
    assert picture is not None
    line = picture.panels[0].lines[0]
    reached = [
        (0, 6000.0),
        (1, 7000.0),
        (3, 12_000.0),
        (5, 9000.0),
        (6, 9000.0),
        (7, 9099.45),
        (8, 9099.45),
    ]
    assert list(line.xs) == [*(number for number, _ in reached), 8]
    assert list(line.ys[:-1]) == pytest.approx([value for _, value in reached])


def test_matplotlib_is_loaded_only_to_draw() -> None:
    program = "import sys, autotune.run, autotune.cli.main; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
