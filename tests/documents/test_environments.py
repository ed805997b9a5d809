"""An environment of an example that is not complete is made anew: pip would keep half of a package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("complete", [True, False])
def test_an_interrupted_environment_is_made_anew(tmp_path: Path, complete: bool) -> None:
    example, folder = EXAMPLES / "vllm_cpu", tmp_path / "env"
    folder.mkdir()
    (folder / "pyvenv.cfg").touch()
    if complete:
        packages = (example / "requirements.txt").read_bytes()
        (folder / "complete-requirements.txt").write_bytes(packages)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || echo "$@" > {tmp_path}/told\n[ "$1" = -c ]\n')
    python.chmod(0o755)
    command = ["env", f"PYTHON={python}", example / "make_environment.sh", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if complete:
        assert (done.returncode, (tmp_path / "told").exists()) == (0, False), done.stderr
    else:
        assert (tmp_path / "told").read_text() == f"-m venv --clear {folder}\n", done.stderr
