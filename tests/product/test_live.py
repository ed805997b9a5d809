"""A study on a terminal, as a person sees it: the lines above, the live block below, and what is
left of it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.product.cli import new_home, rows
from tests.product.processes import PROGRAM
from tests.product.terminal import Terminal, row

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("run", "--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", "--study", "s")
EMULATED = [
    *(*MODEL, "--on", "emulator", "--workload", "random:128:16:64", "--launches", "4"),
    *("--space", str(ROOT / "examples" / "emulated-space.yaml")),
]
SIMULATED = [
    *(*MODEL, "--on", "simulator", "--launches", "6"),
    *("--space", str(ROOT / "examples" / "small-space.yaml")),
]
PROMPT = "someone@here:~$ "
BLOCK = ("running", "next", "best")


def numbers(lines: Sequence[str]) -> list[int]:
    """The launches that have a line."""
    return [int(found[1]) for line in lines if (found := re.match(r"#\d+ +(\d+)/\d+  [a-z]", line))]


def left_of_the_block(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if any(row([line], label) for label in BLOCK)]


def test_narrow_and_resized_it_neither_folds_nor_eats_a_line(tmp_path: Path) -> None:
    """Nor does a study that takes seconds flicker: the block is drawn with a line, and four times a
    second."""
    home, began_s = new_home(tmp_path), time.monotonic()
    with Terminal([*PROGRAM, *SIMULATED], 40, AUTOTUNE_HOME=str(home)) as terminal:
        assert terminal.watch(lambda lines: "(" in row(lines, "best"))
        block = terminal.lines[-3:]
        assert [line[:8].rstrip() for line in block[1:]] in (["running", "best"], ["next", "best"])
        assert "SIMULATED" in block[0]
        assert row(block, "best").endswith("…")
        assert not terminal.screen.cursor.hidden
        assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (len(terminal.lines), 0), (
            "a row of its own"
        )
        for columns in (100, 60):
            terminal.resize(columns)
            seen = numbers(terminal.lines)[-1]
            assert terminal.watch(lambda lines, seen=seen: numbers(lines)[-1] > seen)
            assert len(left_of_the_block(terminal.lines)) <= 2, "drawn once"
        assert not terminal.watch()
        assert terminal.process.wait() == 0
    assert numbers(terminal.lines) == [*range(1, 1 + len(rows(home, "s")))]
    assert left_of_the_block(terminal.lines) == []
    assert b"\x1b[?1049h" not in terminal.bytes_, "the usual screen"
    drawn = terminal.bytes_.count(b"SIMULATED \xc2\xb7") + terminal.bytes_.count(b"SIMULATED\xe2")
    assert drawn <= 10 * (time.monotonic() - began_s)


def test_what_runs_and_ctrl_c(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    with Terminal([*PROGRAM, *EMULATED], 160, AUTOTUNE_HOME=str(home)) as terminal:
        for doing in ("starting", "loaded with random:128:16:64"):
            assert terminal.watch(
                lambda lines, doing=doing: row(lines, "running").startswith(doing)
            )
        assert row(terminal.lines, "running").endswith(" s · sglang  engine defaults")
        assert terminal.watch(
            lambda lines: "starting" in row(lines, "running") and numbers(lines) == [1]
        )
        assert any(" 1/4 · EMULATED · " in line for line in terminal.lines), terminal.lines
        terminal.press(b"\x03")
        assert not terminal.watch()
        assert terminal.process.wait() == 130
    *_, stopped, resume = terminal.lines
    assert stopped == "autotune: stopped, 1 launches are stored; continue with:"
    assert resume.startswith("autotune resume s --home ")
    assert left_of_the_block(terminal.lines) == []
    assert not terminal.screen.cursor.hidden


def test_ctrl_z_and_kill_leave_the_terminal_to_the_shell(tmp_path: Path) -> None:
    """What the shell prints stays, and its prompt has a line of its own. With ``--json`` there is
    no block."""
    program = ["bash", "--norc", "-i"]
    with Terminal(program, 160, AUTOTUNE_HOME=str(new_home(tmp_path)), PS1=PROMPT) as terminal:

        def prompted(lines: Sequence[str]) -> bool:
            return lines[-1] == PROMPT.rstrip()

        terminal.press(" ".join([*PROGRAM, *EMULATED, "\n"]).encode())
        assert terminal.watch(lambda lines: "starting" in row(lines, "running"))
        terminal.press(b"\x1a")
        assert terminal.watch(prompted)
        assert left_of_the_block(terminal.lines) == []
        terminal.press(b"seq 3\n")
        assert terminal.watch(lambda lines: prompted(lines) and lines[-2] == "3")
        terminal.press(b"fg\n")
        assert terminal.watch(lambda lines: "loaded" in row(lines, "running"))
        assert [line for line in terminal.lines if line in ("1", "2", "3")] == ["1", "2", "3"]
        children = Path(
            f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children"
        ).read_text()
        os.kill(int(children), signal.SIGKILL)
        assert terminal.watch(prompted)
        assert not terminal.screen.cursor.hidden
        before = len(terminal.bytes_)
        words = [
            *SIMULATED,
            "--launches",
            "1",
            "--study",
            "t",
            "--json",
            ">",
            str(tmp_path / "answer.json"),
        ]
        terminal.press(" ".join([*PROGRAM, *words, "\n"]).encode())
        assert terminal.watch(lambda lines: prompted(lines) and "  1/1  baseline" in "".join(lines))
        assert b"\x1b[2K" not in terminal.bytes_[before:]
        terminal.press(b"exit\n")
        assert not terminal.watch()
