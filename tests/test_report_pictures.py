"""The pictures: that they show what is in ``results.jsonl``, and that a page with them stays small and safe."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from autotune.outputs.artefacts import write_artefacts
from autotune.outputs.report import StudyRecord
from autotune.outputs.report.pictures.launches import expected, tried
from autotune.outputs.report.render import files_of
from autotune.study.results import Results
from autotune.trial import Evidence
from tests import report_studies, small_study
from tests.small_study import BASELINE, WINNER, metrics


def drawings(page: str) -> dict[str, ElementTree.Element]:
    """The pictures of a page, by the name that their first mark begins with."""
    found = {}
    for text in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(text)
        found[str(marks_of(root)[0]["id"])] = root
    return found


def marks_of(root: ElementTree.Element) -> list[dict[str, Any]]:
    """The data of each mark, numbers as numbers, with its ``id`` and what it says as ``told``."""
    marks = []
    for element in root.iter():
        if element.get("class") != "mark":
            continue
        assert element.get("role") == "img"
        title = element.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        row: dict[str, Any] = {"id": element.get("id"), "told": title.text}
        for name, value in element.attrib.items():
            if name.startswith("data-"):
                row[name.removeprefix("data-")] = _read(value)
        marks.append(row)
    return marks


def _read(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value


class Page:
    """A report's page, and the rows that it was made of, read back from the disk."""

    def __init__(self, study: StudyRecord) -> None:
        study.folder.mkdir(parents=True)
        results = Results(study.folder / "results.jsonl")
        for launch in study.launches:
            results.append(launch)
        write_artefacts(study.folder, study.spec, study.launches, study.recommendation)
        self.text = (study.folder / "report.html").read_text(encoding="utf-8")
        lines = (study.folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
        self.rows = {row["number"]: row for row in map(json.loads, lines)}
        self.outcome = json.loads((study.folder / "recommendation.json").read_text(encoding="utf-8"))
        self._marks = [mark for root in drawings(self.text).values() for mark in marks_of(root)]

    def marks(self, picture: str) -> list[dict[str, Any]]:
        return [mark for mark in self._marks if re.match(rf"{picture}-(?!\d+-.*_ms)", mark["id"])]

    def value(self, number: float, metric: str = "total_token_throughput") -> float:
        return float(self.rows[int(number)]["metrics"]["sharegpt"][metric])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(report_studies.everything(tmp_path_factory.mktemp("studies") / "small"))


def test_every_launch_is_in_the_picture_of_what_was_tried(page: Page) -> None:
    marks = page.marks("tried")
    assert [mark["launch"] for mark in marks] == list(range(9))
    for mark in marks:
        row = page.rows[mark["launch"]]
        assert mark["role"] == row["role"]
        if row["state"] == "complete":
            assert mark["value"] == page.value(mark["launch"])
        else:
            assert "value" not in mark
    assert "out_of_memory" in marks[2]["told"]
    assert "vllm serve deepseek-ai/DeepSeek-V3.2" in marks[0]["told"]


def test_what_was_expected_has_the_level_of_the_launches(tmp_path: Path) -> None:
    study = report_studies.everything(tmp_path)
    guesses = expected(study)
    assert set(guesses) == {launch.trial.number for launch in study.launches}
    assert guesses[0] == guesses[6], "the same configuration"
    above = sum(
        launch.result.metrics["sharegpt"]["total_token_throughput"] > guesses[launch.trial.number]
        for launch in study.launches
        if "sharegpt" in launch.result.metrics
    )
    assert 2 <= above <= 5
    replayed = StudyRecord(small_study.spec(on="replay:table.csv"), study.launches, study.recommendation, tmp_path)
    assert expected(replayed) == {}


def test_speed_of_each_configuration_and_of_each_load_of_its_curve(page: Page) -> None:
    marks = page.marks("speed")
    for mark in marks:
        numbers = [int(number) for number in str(mark["launches"]).replace(".0", "").split()]
        if "load" in mark:
            (row,) = (
                row
                for row in page.rows[numbers[0]]["metrics"]["sharegpt"]["curve"]
                if row["concurrency"] == mark["load"]
            )
            figures = [(row["total_token_throughput"], row["mean_tpot_ms"])]
        else:
            figures = [(page.value(number), page.value(number, "mean_tpot_ms")) for number in numbers]
        product = lambda values: pytest.approx(_geometric(values))  # noqa: E731
        assert mark["per-gpu"] == product([total / 8 for total, _ in figures])
        assert mark["per-user"] == product([1000 / tpot for _, tpot in figures])
        assert page.rows[numbers[0]]["argv"][0] in mark["told"]
    whole = {mark["fingerprint"] for mark in marks if "load" not in mark}
    assert whole == {row["fingerprint"] for row in page.rows.values() if row["state"] == "complete"}
    assert sum("load" in mark for mark in marks) == 4 * 4


def _geometric(values: list[float]) -> float:
    product = 1.0
    for value in values:
        product *= value
    return float(product ** (1 / len(values)))


def test_the_finals_show_each_launch_and_the_interval_of_the_mean(page: Page) -> None:
    marks = page.marks("finals")
    assert {mark["launch"]: mark["value"] for mark in marks if "launch" in mark} == {
        number: page.value(number) for number in (0, 5, 6, 7, 8)
    }
    means = {mark["fingerprint"]: (mark["mean"], [mark["low"], mark["high"]]) for mark in marks if "mean" in mark}
    sides = (page.outcome, page.outcome["baseline"])
    assert means == {s["fingerprint"]: (s["objective"]["value"], s["objective"]["ci95"]) for s in sides}


def test_contributions_latencies_curves_and_workloads_have_the_values_of_the_files(page: Page) -> None:
    shown = [(mark["knob"], mark.get("gain"), mark.get("low")) for mark in page.marks("contributions")]
    rows = page.outcome["contributions"]
    assert shown == [(row["knob"], row["gain_percent"], row["ci95"] and row["ci95"][0]) for row in rows]
    latencies = page.marks("latency")
    assert {mark["metric"] for mark in latencies} == {
        f"{p}_{m}_ms" for p in ("median", "p90", "p95", "p99") for m in ("ttft", "tpot")
    }
    for mark in latencies:
        assert mark["value"] == page.outcome["workloads"]["sharegpt"][mark["side"]][mark["metric"]]
    for mark in page.marks("curves"):
        rows = page.rows[int(mark["launch"])]["metrics"]["sharegpt"]["curve"]
        assert mark["value"] == next(row[mark["metric"]] for row in rows if row["concurrency"] == mark["load"])
    assert len(page.marks("curves")) == 4 * 4 * 4
    cells = [(mark["fingerprint"], mark["workload"], mark["gain"]) for mark in page.marks("workloads")]
    assert (WINNER.fingerprint, "random:4000:200:500", -1.2) in cells
    assert BASELINE.fingerprint not in {cell[0] for cell in cells}, "the line at 0"


def test_failures_and_hours_have_the_values_of_the_rows(page: Page) -> None:
    (failure,) = page.marks("failures")
    assert (failure["cause"], failure["count"], failure["launches"]) == ("out_of_memory", 1, 2)
    hours = page.marks("hours")
    assert len(hours) == 9
    for mark in hours:
        times = page.rows[int(mark["launch"])]["times_s"]
        assert {phase: mark[phase] for phase in times} == times


def test_the_markdown_shows_the_same_pictures_as_files(page: Page, tmp_path: Path) -> None:
    study = report_studies.everything(tmp_path / "study")
    study.folder.mkdir()
    (study.folder / "report").mkdir()
    (study.folder / "report" / "gone.svg").write_text("<svg/>")
    write_artefacts(study.folder, study.spec, study.launches, study.recommendation)
    report = (study.folder / "report.md").read_text(encoding="utf-8")
    assert set(re.findall(r"!\[[^]]*]\(report/([\w-]+)\.svg\)", report)) == report_studies.ALL_PICTURES
    assert {path.stem for path in (study.folder / "report").iterdir()} == report_studies.ALL_PICTURES
    for path in (study.folder / "report").iterdir():
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert [mark["id"] for mark in marks_of(root)]
        assert "SIMULATED" in {element.text for element in root.iter()}, "a watermark"
    assert files_of(study) == files_of(study), "the same study gives the same files"


def test_a_measured_study_has_no_watermark(tmp_path: Path) -> None:
    study = report_studies.one_launch(tmp_path)
    measured = study.recommendation.model_copy(update={"evidence": Evidence.MEASURED})
    files = files_of(StudyRecord(study.spec, study.launches, measured, tmp_path))
    assert "watermark" not in files["report.html"].partition("<svg")[2]


@pytest.mark.parametrize("make", [report_studies.one_launch, report_studies.none_ran])
def test_a_study_of_little_has_the_pictures_that_there_can_be(make: Any, tmp_path: Path) -> None:
    page = Page(make(tmp_path / "study"))
    assert len(page.marks("tried")) == len(page.rows) == len(page.marks("hours"))
    assert not page.marks("finals")
    assert len(page.marks("failures")) == (0 if make is report_studies.one_launch else 3)


def test_three_hundred_launches_stay_below_three_megabytes(tmp_path: Path) -> None:
    page = Page(report_studies.many(tmp_path / "study"))
    assert len(page.text.encode()) < 3_000_000
    assert len(page.marks("tried")) == 300
    for mark in page.marks("tried"):
        assert ("value" in mark) == (page.rows[int(mark["launch"])]["state"] == "complete")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    files = files_of(report_studies.hostile(tmp_path))
    assert files["report.html"].count("<script>") == 1
    for name, content in files.items():
        if name.endswith(".svg"):
            tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(content).iter()}
            assert not tags & {"script", "a", "foreignObject", "image"}
            assert "on" not in {attribute[:2] for e in ElementTree.fromstring(content).iter() for attribute in e.attrib}


def test_an_objective_that_is_less_the_better(tmp_path: Path) -> None:
    launches = small_study.launches()
    study = StudyRecord(small_study.spec(objective="mean_tpot_ms"), launches, small_study.recommendation(), tmp_path)
    picture = tried(study)
    assert picture is not None
    assert list(picture.panels[0].lines[0].ys) == pytest.approx([200.0] * 2 + [150.0] * 6), "the best so far falls"


def test_the_best_so_far_falls_to_what_the_finals_confirm(tmp_path: Path) -> None:
    """A lucky launch of the search is the best only until its configuration is launched afresh."""
    launches = small_study.launches()
    lucky = dataclasses.replace(launches[3].result, metrics={"sharegpt": metrics(12_000.0)})
    launches[3] = dataclasses.replace(launches[3], result=lucky)
    picture = tried(StudyRecord(small_study.spec(), launches, small_study.recommendation(), tmp_path))
    assert picture is not None
    line = picture.panels[0].lines[0]
    reached = [(0, 6000.0), (1, 7000.0), (3, 12_000.0), (5, 9000.0), (6, 9000.0), (7, 9099.45), (8, 9099.45)]
    assert list(line.xs) == [*(number for number, _ in reached), 8]
    assert list(line.ys[:-1]) == pytest.approx([value for _, value in reached])


def test_matplotlib_is_loaded_only_to_draw() -> None:
    program = "import sys, autotune.run, autotune.cli.main; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
