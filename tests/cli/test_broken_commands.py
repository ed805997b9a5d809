"""A command that is broken over several lines is the same command."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.outputs.report.text import command

WORDS = st.lists(st.text("ab-=${}'\"\\\\ \n#", min_size=1, max_size=12), min_size=1, max_size=12)


def run(text: str) -> str:
    """What a shell makes of it: the arguments, one per line."""
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout


@settings(max_examples=200, deadline=None)
@given(WORDS)
def test_a_shell_reads_the_same_arguments(words: list[str]) -> None:
    typed = shlex.join(["printf", "%s\\n", "--", *words])
    assert run(command(typed, 30)) == run(typed)


@pytest.mark.parametrize(
    "text", ["# a comment of many words that no shell may continue", "f 'of several\nlines' --more"]
)
def test_what_is_no_command_stays(text: str) -> None:
    assert command(text, 20) == text
