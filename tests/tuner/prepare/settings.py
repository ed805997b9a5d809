"""What the tests of preparation share: a question over a small space."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.home import library_for
from autotune.tuner.study.options import RunOptions

SPACE = Path(__file__).resolve().parents[3] / "examples" / "small-space.yaml"
LIBRARY = library_for(SPACE)
V32 = "deepseek-ai/DeepSeek-V3.2"
RUN = RunOptions(
    V32, "h200", workloads=["random:1000:100:64"], on="simulator", study="s", space=SPACE
)


def prepared(request: RunOptions) -> Prepared:
    return prepare(build_spec(request), library_for(request.space))


def said(request: RunOptions) -> str:
    with pytest.raises(BadInput) as refused:
        prepared(request)
    return str(refused.value)
