"""Somebody else's evaluation: a command that is run against the server, and whose last line is the score.

``{url}`` and ``{model}`` in it are replaced. The last line may hold the score's standard error behind it. It is run
without a shell; ``sh -c '…'`` is one.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress

from autotune.errors import BadInput

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
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BadInput(f"--accuracy {text!r}: did not end within {LIMIT_S / 3600:g} hours") from None
            raise
    if process.returncode != 0:
        why = (err.strip() or out.strip())[-_TAIL:] or "it said nothing"
        raise BadInput(f"--accuracy {text!r}: ended with exit code {process.returncode}: {why}")
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
