"""Four winners, and what they look like in every format.

Their studies lie under ``home/``, as `autotune run` on the simulator left them, cut down to what an
export reads. After a wanted change of a format, ``python -m tests.outputs.export.golden`` writes the files
under ``golden/`` again; read the difference. ``python -m tests.outputs.export.golden --studies`` makes the
studies themselves again first (a minute).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.outputs.export import FORMATS, Winner, all_of, winner_of
from autotune.tuner.study.home import Home

HERE = Path(__file__).parent
HOME = Home(HERE / "home")
GOLDEN = HERE / "golden"
STUDIES = {
    "h200-v32-vllm": ("deepseek-ai/DeepSeek-V3.2", "h200", "vllm"),
    "h200-v32-sglang": ("deepseek-ai/DeepSeek-V3.2", "h200", "sglang"),
    "h200-v32-tensorrt-llm": ("deepseek-ai/DeepSeek-V3.2", "h200", "tensorrt_llm"),
    "mi300x-r1": ("deepseek-ai/DeepSeek-R1", "mi300x", None),
}
"""Model, hardware and the only engine searched; every one that runs there for None."""
LEFT_OUT = {FORMATS["json"].filename}
"""As long as the study itself."""


def winner(study: str) -> Winner:
    """The winner of one of `STUDIES`."""
    outcome = HOME.recommendation(study)
    assert outcome is not None
    return winner_of(outcome, HOME.spec(study), HOME.launches(study))


def texts(study: str) -> dict[str, str]:
    """File name to text, as it should lie under ``golden/<study>/``."""
    return {name: text for name, text in all_of(winner(study))[0].items() if name not in LEFT_OUT}


def _make(study: str) -> None:
    model, hardware, engine = STUDIES[study]
    options = [
        "--on",
        "simulator",
        "--launches",
        "8",
        "--seed",
        "0",
        *(["--engine", engine] if engine else []),
    ]
    with tempfile.TemporaryDirectory() as home:
        command = [
            sys.executable,
            "-m",
            "autotune",
            "run",
            "--model",
            model,
            "--hw",
            hardware,
            *options,
        ]
        subprocess.run([*command, "--study", study, "--home", home], check=True)
        _keep(Path(home) / "studies" / study, HOME.studies / study)


def _keep(made: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "study.yaml", kept)
    outcome = json.loads((made / "recommendation.json").read_text())
    outcome |= {key: [] for key in ("inert", "matrix", "contributions", "resolutions")}
    outcome |= {"workloads": {}, "excluded": []}
    (kept / "recommendation.json").write_text(json.dumps(outcome, indent=1) + "\n")
    rows = map(json.loads, (made / "results.jsonl").read_text().splitlines())
    same = [
        {**row, "metrics": {}, "resolved": None}
        for row in rows
        if row["fingerprint"] == outcome["fingerprint"]
    ]
    (kept / "results.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in same))


def _write(study: str) -> None:
    folder = GOLDEN / study
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in texts(study).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    for name in STUDIES:
        if "--studies" in sys.argv[1:]:
            _make(name)
        _write(name)
