"""``autotune export`` as a user runs it, and the files that a study leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotune.cli.main import cli
from autotune.outputs.export import FORMATS, write_artefacts
from tests import small_study
from tests.outputs.export.golden import GOLDEN, HOME, STUDIES
from tests.product.cli import autotune

STUDY = "h200-v32-vllm"


def test_an_unknown_study_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    done = autotune("export", "h200-v32-vlm", "--to", "k8s", home=HOME.path, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert f"unknown study 'h200-v32-vlm'; did you mean '{STUDY}'?" in " ".join(done.err.split())
    assert all(study in done.err for study in STUDIES)


def test_an_unknown_format_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    done = autotune("export", STUDY, "--to", "kubernetes", home=HOME.path, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "unknown export format 'kubernetes'" in done.err
    assert all(name in done.err for name in FORMATS)


def exported(*options: str) -> str:
    """What the command prints, in this process."""
    done = CliRunner().invoke(cli, ["export", STUDY, *options, "--home", str(HOME.path)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("name", "mode"), [("docker", 0o755), ("k8s", 0o644)])
def test_a_file_that_is_to_be_run_can_be(tmp_path: Path, name: str, mode: int) -> None:
    path = tmp_path / "out"
    assert exported("--to", name, "-o", str(path)) == ""
    assert path.stat().st_mode & 0o777 == mode
    assert path.read_text() == (GOLDEN / STUDY / FORMATS[name].filename).read_text()


def test_an_image_of_one_s_own_and_json() -> None:
    said = json.loads(exported("--to", "compose", "--image", "me/vllm:1", "--json"))
    assert said["format"] == "compose"
    assert "image: me/vllm:1\n" in said["text"]


def test_a_study_leaves_its_winner_in_every_form_that_it_has(tmp_path: Path) -> None:
    exports = tmp_path / "exports"
    rows = small_study.launches()
    write_artefacts(tmp_path, small_study.spec(), rows, small_study.recommendation())
    names = {"docker-run.sh", "compose.yaml", "kubernetes.yaml", "gpustack.yaml", "sglang.yaml"}
    assert {path.name for path in exports.iterdir()} == {
        *names,
        "service.dstack.yml",
        "task.dstack.yml",
    }
    assert os.access(exports / "docker-run.sh", os.X_OK)
    assert os.access(tmp_path / "serve.sh", os.X_OK)
    # Resumed, the study may end with another engine's winner, or with none.
    other = small_study.recommendation(recommended=small_study.choice(small_study.BASELINE, 6000.0))
    write_artefacts(tmp_path, small_study.spec(), rows, other)
    assert {path.name for path in exports.iterdir()} >= {"vllm.yaml", "kubernetes.yaml"}
    assert not (exports / "sglang.yaml").exists()
    write_artefacts(tmp_path, small_study.spec(), rows, small_study.infeasible())
    assert list(exports.iterdir()) == []
    assert not (tmp_path / "serve.sh").exists()
    assert json.loads((tmp_path / "recommendation.json").read_text())["verdict"] == "infeasible"


def test_a_study_whose_report_cannot_be_written_is_not_finished(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").mkdir()
    with pytest.raises(OSError, match=r"serve\.sh"):
        write_artefacts(
            tmp_path, small_study.spec(), small_study.launches(), small_study.recommendation()
        )
    assert not (tmp_path / "recommendation.json").exists()


def test_it_is_printed_as_it_would_be_written(tmp_path: Path) -> None:
    text = (GOLDEN / STUDY / "compose.yaml").read_text()
    assert exported("--to", "compose") == text
    assert exported("--to", "compose", "-o", "-") == text
    path = tmp_path / "out"
    said = json.loads(exported("--to", "compose", "-o", str(path), "--json"))
    assert (said["file"], said["text"], path.read_text()) == (str(path), text, text)


def test_what_stands_at_the_output_is_written_to_not_replaced(tmp_path: Path) -> None:
    """A device such as /dev/stdout would be gone, and a link's target would stay as it was."""
    text = (GOLDEN / STUDY / "compose.yaml").read_text()
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_text("old")
    link.symlink_to(file)
    exported("--to", "compose", "-o", str(link))
    assert (link.is_symlink(), file.read_text()) == (True, text)
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    exported("--to", "compose", "-o", str(pipe))
    assert (os.read(end, 65536).decode(), pipe.is_fifo()) == (text, True)
    os.close(end)
