"""Somebody else's evaluation: a command that is run against the server, and whose last line is the score.

``{url}`` and ``{model}`` in it are replaced. The last line may hold the score's standard error behind it. It is run
without a shell; ``sh -c '…'`` is one.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import BadInput
from autotune.serving import ShutdownTimeouts
from autotune.serving.process import WatchdogClient
from autotune.serving.processes import MARKER, Membership, end
from autotune.serving.watchdog import Request

LIMIT_S = 4 * 3600
"""Of one run; a server may be asked thousands of questions."""
_TAIL = 300


def check_command(text: str) -> list[str]:
    """The words of a command; raises `BadInput` where it can be told now that it will not run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--accuracy {text!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        program = words[0] if words else ""
        raise BadInput(
            f"--accuracy {text!r}: there is no program {program!r} here; give builtin, a FILE.jsonl, or a command with "
            "{url} and {model} in it"
        )
    if "{url}" not in text:
        raise BadInput(f"--accuracy {text!r}: the command does not say {{url}}, so it cannot ask the server")
    return words


def run_command(text: str, url: str, model: str) -> tuple[float, float | None]:
    """Run a command against a server: its score, and the standard error where it tells one.

    Raises:
        BadInput: it fails, does not end, or prints no number.
    """
    words = [word.replace("{url}", url).replace("{model}", model) for word in check_command(text)]
    code, out, err = _run(text, words)
    if code != 0:
        why = (err.strip() or out.strip())[-_TAIL:] or "it said nothing"
        raise BadInput(f"--accuracy {text!r}: ended with exit code {code}: {why}")
    last = next((line.strip() for line in reversed(out.splitlines()) if line.strip()), "")
    try:
        numbers = [float(word) for word in last.split()]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(map(math.isfinite, numbers)):
        raise BadInput(
            f"--accuracy {text!r}: its last line is {last[:_TAIL]!r}; print the score there, and behind it the "
            "standard error where there is one, e.g. 0.853 0.0097"
        )
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _run(text: str, words: Sequence[str]) -> tuple[int, str, str]:
    """Run a program under a watchdog, which ends all that it started: its exit code, standard output and error."""
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        marker = uuid.uuid4().hex
        request = Request(
            argv=[shutil.which(words[0]) or words[0], *words[1:]],
            env={**os.environ, MARKER: marker, "TMPDIR": folder},
            folder=os.getcwd(),
            log=str(err),
            log_offset=0,
            marker=marker,
            tuner=os.getpid(),
            temporary=folder,
            output=str(out),
        )
        watchdog = WatchdogClient(request)
        try:
            deadline = time.monotonic() + LIMIT_S
            while watchdog.exit_code is None and not watchdog.lost and (left_s := deadline - time.monotonic()) > 0:
                watchdog.listen(left_s)
            texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
        finally:
            if watchdog.stop(timeouts := ShutdownTimeouts()) is None:  # it was killed itself
                end(Membership(marker).alive, timeouts.terminate_s, timeouts.kill_s)
    if watchdog.exit_code is None:
        why = "somebody ended it" if watchdog.lost else f"did not end within {LIMIT_S / 3600:g} hours"
        raise BadInput(f"--accuracy {text!r}: {why}")
    return watchdog.exit_code, texts[0], texts[1]
