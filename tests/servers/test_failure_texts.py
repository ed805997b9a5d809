"""Failure texts of the engines as they are today: each has its kind, and where that is told its
phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.failure import Failure
from autotune.engines.library import Library
from autotune.node.emulator.launch import emulation_card
from autotune.servers.logs import known_failure, patterns_of, unknown_exit

TEXTS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "failure_texts.yaml").read_text()
)
UNSEEN: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "failure_texts_unseen.yaml").read_text()
)
LIBRARY = Library()
HARMLESS = [
    "INFO 11-23 12:59:01 [pynccl.py:103] vLLM is using nccl==2.27.3; NCCL_DEBUG=INFO tells more of an NCCL error",
    "WARNING 11-23 12:59:02 [system_utils.py:175] fd limit errors like `OSError: [Errno 24] Too many open files`.",
    "[2026-11-23 12:59:03] WARNING server_args.py:1383: DP attention is enabled. The chunked prefill size is adjusted.",
    "[2026-11-23 12:59:03 TP0] The memory capacity is unbalanced. Some GPUs may be occupied by other processes. ",
    "[11/23/2026-12:59:04] [TRT-LLM] [W] No module named 'deep_ep', falling back to another exchange of tokens",
]
"""Lines that name errors which did not happen."""


def explained(text: dict[str, Any], folder: Path) -> Failure:
    """Explain a failure text as a launch explains its log."""
    log, card = folder / "server.log", LIBRARY.engine(text["engine"])
    log.write_text(text["log"])
    known = known_failure(log, patterns_of(card), served=text.get("served", False))
    return known or unknown_exit(log, text["exit_code"], card.title)


def is_right(text: dict[str, Any], failure: Failure) -> bool:
    """Tell whether a failure has one of a text's kinds, with the phase where that is told."""
    kind = failure.kind.value
    phase = failure.phase.value if failure.phase else ""
    return not {kind, f"{kind}/{phase}"}.isdisjoint(text["expected"])


def among_others(text: dict[str, Any]) -> dict[str, Any]:
    """Return a failure text between the lines that its engine prints before and after: warnings,
    and its shutdown."""
    shutdown = emulation_card(text["engine"]).crash.after
    return {**text, "log": "\n".join([*HARMLESS, text["log"], *shutdown])}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text['engine']}: {text['about']}")
def test_a_failure_text_has_its_kind_and_phase(text: dict[str, Any], tmp_path: Path) -> None:
    for printed in (text, among_others(text)):
        failure = explained(printed, tmp_path)
        assert is_right(text, failure), failure.message


def test_texts_that_no_pattern_was_written_from_have_their_kinds(tmp_path: Path) -> None:
    right = [
        text["about"]
        for text in UNSEEN
        if all(
            is_right(text, failure) and failure.unexplained != text["explained"]
            for failure in (explained(text, tmp_path), explained(among_others(text), tmp_path))
        )
    ]
    assert (len(UNSEEN), len(right)) == (30, 2), sorted(
        {text["about"] for text in UNSEEN} - set(right)
    )


def test_no_fault_of_the_node_is_laid_to_the_configuration(tmp_path: Path) -> None:
    node = [text for text in TEXTS if set(text["expected"]) <= {"infrastructure", "port"}]
    assert [
        text["about"] for text in node if explained(text, tmp_path).blames_the_configuration
    ] == []
    told_apart = {(text["engine"], text["about"]) for text in TEXTS}
    assert (len(TEXTS), len(told_apart), len(node)) == (94, 94, 37), (
        "texts, each once, and faults of the node"
    )
