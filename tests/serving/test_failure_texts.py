"""Failure texts of the engines as they are today: each has its kind, and where that is told its phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.serving.logs import known_failure, patterns_of, unknown_exit
from autotune.space.library import Library
from autotune.trial import Failure

TEXTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "failure_texts.yaml").read_text())
LIBRARY = Library()


def explained(text: dict[str, Any], folder: Path) -> Failure:
    """Explain a failure text as a launch explains its log."""
    log, card = folder / "server.log", LIBRARY.engine(text["engine"])
    log.write_text(text["log"])
    return known_failure(log, patterns_of(card)) or unknown_exit(log, text["exit_code"], card.title)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text['engine']}: {text['about']}")
def test_a_failure_text_has_its_kind_and_phase(text: dict[str, Any], tmp_path: Path) -> None:
    failure = explained(text, tmp_path)
    told = {failure.kind.value, f"{failure.kind.value}/{failure.phase.value if failure.phase else ''}"}
    assert told & set(text["expected"]), failure.message
