"""A user's folder of spaces: what nobody would read is refused, with where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.engines.library import spaces_root
from autotune.tuner.study.home import library_for

MODEL = (spaces_root() / "models" / "qwen3-8b.yaml").read_text(encoding="utf-8")


def folder(at: Path, *files: str) -> Path:
    for name in files:
        path = at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODEL.replace("Qwen/Qwen3-8B", "mine/model"), encoding="utf-8")
    return at


@pytest.mark.parametrize("lost", ["model/mine.yaml", "mine.yaml", "models/mine.yml"])
def test_a_file_that_nobody_reads_is_refused(tmp_path: Path, lost: str) -> None:
    with pytest.raises(BadInput, match=rf"{lost}: is not read; right: .*models/\*\.yaml"):
        library_for(folder(tmp_path, "models/other.yaml", lost))


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(BadInput, match="is not read"):
        library_for(tmp_path)


def test_documents_and_a_copy_of_the_packaged_folder_are_read(tmp_path: Path) -> None:
    assert "mine/model" in library_for(folder(tmp_path, "models/mine.yaml")).models
    assert library_for(spaces_root()).models
