"""Records commands as a terminal of 80 columns shows them.

    python scripts/record_terminal.py --out docs/recordings.md

Each runs in a pseudo-terminal of its own. Colours are left out, and the temporary home folder reads ``mlruns``.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

COLUMNS = 80
MODEL = "--model deepseek-ai/DeepSeek-V3.2 --hw h200"
SCENES = [
    ("The main job", f"autotune run {MODEL} --study demo", None),
    ("Names that do not exist", "autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h2000", None),
    ("A knob by another name", f"autotune run {MODEL} --set max_num_sequences=64", None),
    (
        "Weights that do not fit",
        "autotune run --model deepseek-ai/DeepSeek-V3.2 --hw examples/half-memory-node.yaml",
        None,
    ),
    ("Interrupted by Ctrl-C in the sixth launch", f"autotune run {MODEL} --launches 12 --study stopped", "5/12"),
    ("Resumed", "autotune resume stopped", None),
    ("What there is", "autotune list", None),
]
"""Heading, command, and the text after which Ctrl-C is pressed."""
_TOKENS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]|([\r\n])|([^\x1b\r\n]+)")


def shown(text: str) -> str:
    """What stands on the screen in the end, lines that were drawn over left out; folded as the terminal folds."""
    lines, row = [""], 0
    at_start = True
    for token in _TOKENS.finditer(text):
        count, letter, move, words = token.groups()
        if letter == "A":
            row = max(0, row - int(count or 1))
        elif letter == "K":
            lines[row] = ""
        elif move == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif words:
            lines[row] = words if at_start else lines[row] + words
        at_start = move is not None or (at_start and not words)
    kept = [line.rstrip()[i : i + COLUMNS] for line in lines for i in range(0, max(len(line.rstrip()), 1), COLUMNS)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")


def record(command: str, home: Path, stop_after: str | None) -> str:
    """Run a command in a terminal and return what it showed."""
    words = command.replace("autotune", f"{sys.executable} -m autotune", 1).split()
    main, terminal = pty.openpty()
    environment = {**os.environ, "AUTOTUNE_HOME": str(home), "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    # A session of its own, so that Ctrl-C goes to it alone.
    child = subprocess.Popen(
        words, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the terminal has no user any more
            part = b""
        if not part:
            break
        seen += part
        if stop_after is not None and f"{stop_after} ".encode() in seen:
            child.send_signal(signal.SIGINT)
            stop_after = None
    os.close(main)
    text = shown(seen.decode()).replace(str(home), "mlruns")
    return f"$ {command}\n{text}\n[exit code {child.wait()}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    parts = [
        "# Recordings\n\nCommands in a terminal of 80 columns, without colours; all numbers are simulated. Made by "
        "`python scripts/record_terminal.py --out docs/recordings.md`.\n"
    ]
    with tempfile.TemporaryDirectory() as folder:
        for heading, command, stop_after in SCENES:
            parts.append(f"## {heading}\n\n```text\n{record(command, Path(folder) / 'mlruns', stop_after)}\n```\n")
    out.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
