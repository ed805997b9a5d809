"""Every table of the performance lab's two documents, redone from replays of their launches."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.tuner.study.home import Home
from tests.product.cli import SHARED, new_home

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "performance_lab.py"
LAB = runpy.run_path(str(SCRIPT))
MEASURED, DOCUMENTS = SHARED / "data" / "seed_measurements.json", SHARED / "seeds"
TITLES = {"r1": "# Optimizing DeepSeek-R1 ", "v32": "# Optimizing DeepSeek-V3.2 "}
_TITLED = {
    "Total Token throughput (tok/s)": "total_token_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    **{
        f"{s} {k} (ms)": f"{s.lower()}_{k.lower()}_ms"
        for s in ("Mean", "Median", "P99")
        for k in ("TTFT", "TPOT", "ITL")
    },
}
_CASE = re.compile(
    r"TPS: ([\d.]+)<br>Mean TPOT\(ms\): ([\d.]+) \| Total TPS: ([\d.]+).*?([+\d.]+)%.*?TPOT\(ms\): ([\d.]+)"
)
_STEP = re.compile(
    r"^\| (?:Engine|Parallelism|Tool Call|Context|Attention|Total).*>\+([\d.]+)%<", re.MULTILINE
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the replays' studies lie, and the page beside them."""
    if not MEASURED.is_file() or not DOCUMENTS.is_dir():
        pytest.skip(
            f"{MEASURED} and {DOCUMENTS} are not here: the data folder beside the repository is absent"
        )
    home = new_home(tmp_path_factory.mktemp("lab"))
    words = [
        sys.executable,
        str(SCRIPT),
        str(MEASURED),
        "--home",
        str(home),
        "--out",
        str(home / "page.md"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home


def document(name: str) -> str:
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.iterdir())]
    return next(text for text in texts if text.startswith(TITLES[name]))


def replayed(home: Path, name: str) -> dict[int, dict[str, Any]]:
    """The metrics of each command of a document, by its number and workload."""
    figures: dict[int, dict[str, Any]] = LAB["figures"](
        home, name, LAB["commands"](MEASURED, LAB["MODELS"][name])
    )
    return figures


def test_the_page_is_what_the_replays_come_to(home: Path) -> None:
    made = (home / "page.md").read_text(encoding="utf-8")
    kept = (ROOT / "docs" / "performance-lab.md").read_text(encoding="utf-8")
    assert kept.partition(LAB["KEPT"])[0] == made


@pytest.mark.parametrize("name", ["r1", "v32"])
def test_every_benchmark_of_a_document_stands_in_its_replay(home: Path, name: str) -> None:
    rows = [load for row in replayed(home, name).values() for load in row.values()]
    blocks = document(name).split("Successful requests:")[1:]
    assert len(blocks) == len(rows) > 10
    for block in blocks:
        figures = dict(re.findall(r"^ *(\S.*?): +([\d.]+)$", block, re.MULTILINE)[:30])
        told = {metric: float(figures[title]) for title, metric in _TITLED.items()}
        assert any(
            told == {metric: pytest.approx(row[metric]) for metric in told} for row in rows
        ), told


@pytest.mark.parametrize("name", ["r1", "v32"])
def test_the_steps_and_conclusions_of_a_document_are_ours_too(home: Path, name: str) -> None:
    tps = {
        n: row["sharegpt"]["total_token_throughput"]
        for n, row in replayed(home, name).items()
        if row
    }
    ours = [100 * (tps[after] / tps[before] - 1) for _, before, after in LAB["STEPS"][name]]
    assert ours == pytest.approx([float(text) for text in _STEP.findall(document(name))], abs=0.06)
    done = Home(home).recommendation(name)
    assert done is not None
    before_and_after = {
        tuple(
            round(one["total_token_throughput"], 2) for one in (both.baseline, both.recommended)
        ): both.gain_percent
        for both in done.workloads.values()
        if both.baseline and both.recommended
    }
    cases = [[float(figure) for figure in case] for case in _CASE.findall(document(name))]
    assert len(cases) == {"r1": 5, "v32": 7}[name]
    if name == "r1":
        documented = {(before, after): gain for before, _, after, gain, _ in cases}
        assert before_and_after == pytest.approx(documented, abs=0.06)
    else:
        # Its conclusions are of runs that it does not show, but for these.
        shown = {
            load["total_token_throughput"]
            for row in replayed(home, name).values()
            for load in row.values()
        }
        assert shown & {tps for before, _, after, *_ in cases for tps in (before, after)} == {
            7351.59,
            3112.52,
        }


def test_twins_and_the_cap_are_named(home: Path) -> None:
    page = (home / "page.md").read_text(encoding="utf-8")
    assert re.findall(r"^- Twins [A-Z], commands (.*?):", page, re.MULTILINE) == [
        "2 and 4",
        "1 and 8",
        "2 and 13",
        "14 and 18",
    ]
    assert re.findall(r"Command (\d+) measures the engine's cap and not MTP: (\d+)", page) == [
        ("6", "48"),
        ("16", "48"),
    ]
    inert = json.loads((home / "studies" / "r1" / "recommendation.json").read_text())["inert"]
    assert "--enable-dp-attention" in {row["knob"] for row in inert}
