"""A model and a node that do not ship, added by the documented steps alone: the page's own lines are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def test_the_documented_steps_end_in_a_command(tmp_path: Path) -> None:
    (steps,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = f'set -eu\nautotune() {{ "{sys.executable}" -m autotune "$@"; }}\n{steps}'
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "AUTOTUNE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "(90 % interval on a real node: " in done.stdout
    assert "for qwen3-30b-a3b on 2 x l40s (SIMULATED)" in done.stdout
    (served,) = (tmp_path / "home" / "studies").glob("*/serve.sh")
    assert "vllm serve qwen3-30b-a3b" in served.read_text()
