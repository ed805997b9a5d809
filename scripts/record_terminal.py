"""Records commands as a terminal of 80 columns shows them.

    python scripts/record_terminal.py --out docs/recordings.md

Each runs in a pseudo-terminal of its own. Colours are left out, and the temporary home folder reads
``mlruns``.
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

import pyte

COLUMNS, ROWS = 80, 400
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
    (
        "Interrupted by Ctrl-C in the sixth launch",
        f"autotune run {MODEL} --launches 12 --study stopped",
        "5/12",
    ),
    ("Resumed", "autotune resume stopped", None),
    ("What there is", "autotune list", None),
]
"""Heading, command, and the text after which Ctrl-C is pressed."""
AT_A_GLANCE = ("24/30", 7)
"""The launch of the first scene after which the screen is recorded, too, and how many of its last
lines."""


def shown(screen: pyte.Screen) -> list[str]:
    """What stands on the screen, without the empty lines at its end."""
    rows = [screen.buffer[y] for y in range(screen.cursor.y + 1)]
    lines = ["".join(row[x].data for x in range(COLUMNS)).rstrip() for row in rows]
    return "\n".join(lines).rstrip("\n").split("\n")


def record(command: str, home: Path, stop_after: str | None) -> tuple[str, str]:
    """Run a command in a terminal and return what it showed in the end, and what in the middle of
    it."""
    words = command.replace("autotune", f"{sys.executable} -m autotune", 1).split()
    main, terminal = pty.openpty()
    environment = {
        **os.environ,
        "AUTOTUNE_HOME": str(home),
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm",
    }
    environment["LINES"] = str(ROWS)
    # A session of its own, so that Ctrl-C goes to it alone.
    child = subprocess.Popen(
        words,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
    )
    os.close(terminal)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, seen, glance = pyte.ByteStream(screen), b"", ""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the terminal has no user any more
            part = b""
        if not part:
            break
        seen += part
        stream.feed(part)
        if stop_after is not None and f"{stop_after} ".encode() in seen:
            child.send_signal(signal.SIGINT)
            stop_after = None
        after, rows = AT_A_GLANCE
        if (
            not glance
            and f"{after} ".encode() in seen
            and "running" in "".join(shown(screen)[-rows:])
        ):
            glance = "\n".join(shown(screen)[-rows:])
    os.close(main)
    text = "\n".join(shown(screen)).replace(str(home), "mlruns")
    # Where the checkout lies is nobody's business; the terminal may have broken the path's line.
    checkout = "\n?".join(map(re.escape, f"{Path(__file__).resolve().parents[1]}/"))
    text = re.sub(checkout, "", text)
    return f"$ {command}\n{text}\n[exit code {child.wait()}]", glance


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    parts = [
        "# Recordings\n\nCommands in a terminal of 80 columns, without colours; all numbers are simulated. Made by "
        "`python scripts/record_terminal.py --out docs/recordings.md`.\n"
    ]
    with tempfile.TemporaryDirectory() as folder:
        for heading, command, stop_after in SCENES:
            whole, glance = record(command, Path(folder) / "mlruns", stop_after)
            parts.append(f"## {heading}\n\n```text\n{whole}\n```\n")
            if glance:
                parts.append(
                    f"While it runs, the last lines of the screen:\n\n```text\n{glance}\n```\n"
                )
    out.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
