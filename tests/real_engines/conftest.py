from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_engines.server import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny")
