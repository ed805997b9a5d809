"""`kill -9` at random moments, then `autotune resume`: nothing lost, nothing twice, the same
recommendation."""

from __future__ import annotations

import json
import random
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.product.cli import autotune, finished_rows, kill_after, new_home, rows

QUESTION = [
    *("--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", "--launches", "12", "--seed", "5"),
    *("--workload", "random:256:64:64"),
    *("--space", str(Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml")),
]
SCREENED = [*("20" if word == "12" else word for word in QUESTION), "--screen", "auto"]
"""Some of its launches have random weights, which 12 launches are too few for."""
MOST = 30
"""Kills by which each fidelity has been met."""
KILLS = [
    pytest.param(QUESTION, 3, marks=pytest.mark.e2e),
    pytest.param(SCREENED, 4, marks=pytest.mark.e2e),
    pytest.param(QUESTION, 20, marks=pytest.mark.slow),
]


def recommendation(home: Path, study: str) -> dict[str, Any]:
    """Without what must differ between two runs of one question."""
    found: dict[str, Any] = json.loads(
        (home / "studies" / study / "recommendation.json").read_text()
    )
    return {key: value for key, value in found.items() if key not in {"study", "duration_s"}}


def essence(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in {"started_at", "pids"}}


def children(home: Path, study: str) -> list[int]:
    """Numbers of the study's child runs in the MLflow database."""
    with sqlite3.connect(home / "mlflow.db") as database:
        found = database.execute(
            "select number.value from tags as number join tags as name on number.run_uuid = name.run_uuid "
            "where number.key = 'number' and name.key = 'study' and name.value = ? order by 1",
            (study,),
        ).fetchall()
    return sorted(int(value) for (value,) in found)


@pytest.mark.parametrize(("question", "wanted"), KILLS, ids=["full", "screened", "often"])
def test_nothing_is_lost_or_run_twice_or_taken_for_the_other_fidelity(
    tmp_path: Path, question: list[str], wanted: int
) -> None:
    home = new_home(tmp_path)
    undisturbed = autotune("run", *question, "--study", "undisturbed", home=home)
    assert undisturbed.code == 0, undisturbed.err
    reference = [essence(row) for row in rows(home, "undisturbed")]
    expected = recommendation(home, "undisturbed")

    moments = random.Random(20)
    fidelities = {row["fidelity"] for row in reference}
    assert fidelities == {"full", *["random_weights"][: question is SCREENED]}
    kills, study_number, broken_off = 0, 0, set[str]()

    def enough() -> bool:
        return kills >= wanted and (broken_off == fidelities or kills >= MOST)

    while not enough():
        study_number += 1
        study = f"killed-{study_number}"
        arguments = ["run", *question, "--study", study]
        killed = True
        while killed and not enough():
            # Every other kill meets a launch for certain, however slow the machine is; the rest
            # come at any time.
            if kills % 2:
                killed = kill_after(arguments, home, moments.uniform(0.0, 3.0))
            else:
                more = len(finished_rows(home, study)) + moments.randint(1, 5)
                moment = partial(lambda study, n: len(finished_rows(home, study)) >= n, study, more)
                killed = kill_after(arguments, home, moments.uniform(0.0, 0.3), moment)
            kills += killed
            if (home / "studies" / study / "study.yaml").exists():
                arguments = ["resume", study]
            kept = finished_rows(home, study)
            assert [essence(json.loads(line)) for line in kept] == reference[: len(kept)]
            broken_off |= {row["fidelity"] for row in reference[len(kept) :][: int(killed)]}
        finished = autotune(*arguments, home=home)
        assert finished.code == 0, finished.err
        assert [essence(row) for row in rows(home, study)] == reference
        assert recommendation(home, study) == expected
        assert children(home, study) == list(range(len(reference)))
    assert broken_off == fidelities
    again = autotune("resume", "killed-1", home=home)
    assert again.code == 0
    assert expected["command"] in again.unbroken
