"""Commands that really ran and were refused are accepted; one is refused by the released engine
itself."""

from __future__ import annotations

import csv

import pytest

from autotune.base.errors import BadInput, RefusedCommand
from autotune.engines.context import Context
from autotune.engines.registry import command_of, recognise, split_command
from autotune.engines.rewrite import translate_typed
from autotune.node.resolve_command import ResolvedCommand, resolve_command
from tests.engines.settings import LIBRARY, shared

_STAND_INS = {
    "glm-4": "zai-org/GLM-4.6",
    "glm-5": "zai-org/GLM-5.2-FP8",
    "llama": "meta-llama/Llama-3.3-70B-Instruct",
}
"""Of the file's models no card is packaged: one of the family, whose rules are the same."""


def _rows() -> list[list[str]]:
    lines = shared("refused_commands.tsv").read_text(encoding="utf-8").splitlines()
    return [row[:2] for row in csv.reader(lines[1:], delimiter="\t")]


def _resolved(where: str, command: str, notes: list[str]) -> ResolvedCommand:
    _, version, node = where.split()
    typed = translate_typed(split_command(command).typed(), version, LIBRARY, notes.append)
    name, _, gpus = node.rpartition("x")
    model = next(card for word, card in _STAND_INS.items() if word in command.lower())
    context = Context(LIBRARY.model(model), LIBRARY.node(name), int(gpus), "", 1000)
    return resolve_command(command_of(typed), LIBRARY, context, version)


def test_commands_that_ran_are_accepted_with_a_note() -> None:
    accepted = 0
    for where, command in _rows():
        if "gemma-4" in command or (" 0.5.3 " in where and "--tool-call-parser glm " in command):
            continue
        notes: list[str] = []
        resolved = _resolved(where, command, notes)
        assert resolved.failure is None, (where, resolved.failure)
        assert notes or resolved.context.version in resolved.card.versions, where
        accepted += 1
    assert accepted >= 6


def test_what_the_release_s_own_parser_refuses_is_refused_with_its_choices() -> None:
    # The row's version cannot be right: the choices of 0.5.3 are those of its released package.
    where, command = next(row for row in _rows() if " 0.5.3 " in row[0])
    with pytest.raises(RefusedCommand, match=r"invalid choice: 'glm' .*'glm45'"):
        _resolved(where, command, [])


def test_an_image_s_tag_is_no_version_and_is_answered_with_what_is() -> None:
    where, command = next(row for row in _rows() if "gemma4" in row[0])
    kind = recognise(split_command(command).argv)
    with pytest.raises(
        BadInput, match=r"unknown sglang version 'gemma4'\. Known: .*0\.5\.23; a prefix"
    ):
        kind.version(where.split()[1])
