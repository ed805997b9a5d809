"""A simulated study of eight launches, and what is replayed from its bundle."""

from __future__ import annotations

import json
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from rich.console import Console

from autotune.base.notify import silent
from autotune.outputs.bundle import bundle
from autotune.outputs.progress import Progress
from autotune.run import run
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.replay.bundle import MANIFEST, pack
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import Recommendation
from tests.product.cli import new_home

SPACE = Path(__file__).resolve().parents[3] / "examples" / "small-space.yaml"
SECRET = "hf_AbCdEf0123456789AbCdEf0123456789"
QUESTION = RunOptions(
    "deepseek-ai/DeepSeek-V3.2",
    "h200",
    on="simulator",
    space=SPACE,
    launches=8,
    allow=("shorter-context",),
    seed=5,
    slos=["p99_ttft_ms<=200000"],
    study="s",
)


def done(options: RunOptions, home: Path) -> Recommendation:
    """Run a study to its end."""
    spec = build_spec(options)
    return run(spec, Home(home), Progress(spec, Console(file=StringIO())))


def study_in(folder: Path) -> Path:
    """The home of the study, whose launch 2 left a log with a secret and a prompt."""
    home = new_home(folder)
    done(QUESTION, home)
    left = home / "studies" / "s" / "trials" / "0002"
    left.mkdir(parents=True)
    lines = [
        f"token={SECRET}",
        "Received request 7: prompt: 'the novel that nobody knows'",
        "x" * 40_000,
        "Killed",
    ]
    (left / "server.log").write_text("\n".join(["vLLM 0.33.0", *lines]))
    (left / "server-1").mkdir()
    (left / "server-1" / "server.log").write_text(f"the second server\ntoken={SECRET}\nKilled")
    (left / "resolved.json").write_text(
        json.dumps({"args": {"hf_token": SECRET, "tensor_parallel_size": 8}})
    )
    return home


def bundled(home: Path, study: str = "s", *, prompts: bool = False) -> bytes:
    return bundle(Home(home), study, silent, prompts=prompts)


def members_of(content: bytes) -> dict[str, bytes]:
    with ZipFile(BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: dict[str, bytes], **about: Any) -> bytes:
    """The bundle of other members, with checksums that fit them."""
    own = json.loads(members[MANIFEST])
    kept = {key: value for key, value in own.items() if key not in ("schema", "members", "sha256")}
    return pack(
        {**kept, **about}, {name: content for name, content in members.items() if name != MANIFEST}
    )
