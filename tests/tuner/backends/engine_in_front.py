"""A program in an engine's place: fails a few times first, then becomes the emulated engine.

Arguments: a folder where it keeps count and notes its environment, how often it fails, what it says
then (or, if it never fails, before it becomes the engine), and the engine's own command line.
With a file ``gpus.json`` in the folder it takes the first GPU's memory when it starts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    folder, failures, words, *command = sys.argv[1:]
    starts = Path(folder, "starts")
    before = int(starts.read_text()) if starts.exists() else 0
    starts.write_text(str(before + 1))
    Path(folder, "environment.json").write_text(json.dumps(dict(os.environ)))
    if before < int(failures) or failures == "0":
        print(words, flush=True)
    if before < int(failures):
        sys.exit(1)
    gpus = Path(folder, "gpus.json")
    if gpus.exists():
        rows = json.loads(gpus.read_text())
        rows[0]["memory_used_bytes"] = 130 * 10**9
        gpus.write_text(json.dumps(rows))
    options = ["emulate", "--hw", "h200", "--startup-s", "0"]
    os.execv(sys.executable, [sys.executable, "-m", "autotune", *options, "--", *command])


if __name__ == "__main__":
    main()
