"""``autotune calibrate``: reads, fits, writes; what cannot be read ends with exit code 2 and the reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from pydantic import BaseModel

from autotune.calibrate.predicted import Predicted
from autotune.commands.calibration import Asked, calibrate
from autotune.errors import BadInput
from tests.product.cli import autotune

from .files import SGLANG, VLLM, lab_file, lab_row


class Factor(BaseModel):
    """What the stand-in for the fit finds."""

    factor: float


class HalfAgain:
    """A fit that predicts half again as much as was measured, and with a group left out twice as much."""

    def calibrate(self, points, *, start, progress):
        progress(f"fitting from {start}")
        return Factor(factor=1.5)

    def predict(self, points, figures):
        ran = [{name: v * figures.factor for name, v in point.metrics.items()} for point in points]
        return [Predicted(metrics, failure=None if metrics else "unsupported") for metrics in ran]

    def cross_validate(self, points, left_out, predictions, *, start, progress):
        found = list(predictions)
        for group in left_out:
            for place in group.members:
                twice = {group.kind: points[place].metrics.get("total_token_throughput", 0.0) * 2}
                found[place] = replace(found[place], left_out={**found[place].left_out, **twice})
        return found


@pytest.fixture
def data(tmp_path):
    failed = {**lab_row(f"{VLLM} -dcp 8"), "failure": "no LSE"}
    return lab_file(tmp_path, lab_row(), lab_row(f"{SGLANG} --enable-dp-attention"), lab_row(VLLM), failed)


def test_the_figures_are_written_and_the_outcome_is_told(data, tmp_path, capsys):
    home = tmp_path / "home"
    calibrate(Asked(files=[data], start="physics", cross_validate=True), home, True, HalfAgain())
    said = capsys.readouterr()
    path = home / "coefficients.yaml"
    assert path.read_text().startswith("# Written by `autotune calibrate`")
    assert yaml.safe_load(path.read_text()) == {"factor": 1.5}
    answer = json.loads(said.out)
    assert answer["wrote"] == str(path)
    assert answer["read"]["engine"] == {"sglang": 1, "vllm": 2}
    assert answer["read"]["twins"] == [{"label": "0+1", "spread": 0}]
    assert answer["errors"]["throughput"] == pytest.approx(0.5)
    assert answer["errors"]["left_out"] == {"engine": pytest.approx(1), "version": pytest.approx(1)}
    assert answer["errors"]["failures"] == {"measured": 1, "predicted": 1}
    assert [one["label"] for one in answer["predictions"]] == ["0+1", "2", "3"]
    assert "fitting from physics" in said.err
    assert "4 rows, 1 of them failures: 3 points" in said.err


def test_the_table_is_printed_and_the_file_lies_where_it_was_asked_for(data, tmp_path, capsys):
    wanted = tmp_path / "mine.yaml"
    calibrate(Asked(files=[data, data], output=wanted), tmp_path / "home", False, HalfAgain())
    text = capsys.readouterr().out
    assert "| 0+1 | DeepSeek-V3.2 |" in text
    assert "median error of total token throughput 50.0%" in text
    assert wanted.is_file()
    assert not (tmp_path / "home").exists()


def test_a_file_that_cannot_be_written_is_refused_before_the_fit(data, tmp_path):
    with pytest.raises(BadInput, match="there is no folder"):
        calibrate(Asked(files=[data], output=tmp_path / "no" / "folder.yaml"), tmp_path, False)


def test_no_data_and_an_unknown_study_end_with_exit_code_2_and_make_nothing(tmp_path):
    with pytest.raises(BadInput, match="--data FILE"):
        calibrate(Asked(), tmp_path / "home", False)
    done = autotune("calibrate", "--study", "nobody", "--from", "physics", home=tmp_path / "home")
    assert (done.code, done.out) == (2, "")
    assert "unknown study 'nobody'" in done.err
    assert not (tmp_path / "home").exists()
