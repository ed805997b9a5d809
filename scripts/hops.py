"""Follow the calls of one launch: the functions of `autotune/` that a trial passes from `Study.ask`
to the report.

    python scripts/hops.py                  (on --on emulator: servers are started and measured, as on a node)
    python scripts/hops.py --on simulator

A hop is a function, called on the way of the study's second trial, that is given the trial, or what
comes of it, as an argument, or returns it: a `Trial`, its `Command`, `Measurement`, `TrialResult`
or `Launch`. A function counts once. Methods and properties of these values are not counted.
Processes of their own (the load worker, the watchdog) are not followed: what runs there is listed
in docs/trial.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import autotune
from autotune.cli.main import cli

PACKAGE = str(Path(autotune.__file__).parent)
SHAPES = ("Trial", "Command", "Measurement", "TrialResult", "Launch")
FOLLOWED = 2
"""The first trial is the baseline's, whose way has more: nothing is known before it."""


def _carries(value: object) -> bool:
    return type(value).__name__ in SHAPES and type(value).__module__.startswith("autotune.")


class Followed:
    """The functions that were entered with a trial in hand, in their order."""

    def __init__(self) -> None:
        self.hops: dict[CodeType, str] = {}
        self._asked, self._lock = 0, threading.Lock()

    def profile(self, frame: FrameType, event: str, value: Any) -> None:
        """Note a call that is given the trial, or a return of it (`sys.setprofile`)."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        if (
            code.co_name == "ask"
            and code.co_filename.endswith("search/study.py")
            and event == "call"
        ):
            self._asked += 1
        if self._asked != FOLLOWED or code.co_name.startswith("<"):
            return
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        own = given[:1] == ("self",) and _carries(frame.f_locals.get("self"))
        own |= given[:1] == ("cls",) and frame.f_locals["cls"].__name__ in SHAPES
        carried = any(_carries(frame.f_locals.get(name)) for name in given) or (
            event == "return" and _carries(value)
        )
        if carried and not own:
            with self._lock:
                path = Path(code.co_filename).relative_to(PACKAGE).with_suffix("")
                self.hops.setdefault(
                    code, f"{'.'.join(path.parts)}: {code.co_qualname}, line {code.co_firstlineno}"
                )


def main() -> int:
    """Run a study of a few launches and print the hops of one trial."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", default="emulator", choices=["emulator", "simulator"])
    given = parser.parse_args()
    followed = Followed()
    with tempfile.TemporaryDirectory() as home:
        words = [
            "run",
            "--model",
            "Qwen/Qwen3-8B",
            "--hw",
            "h200",
            "--gpus",
            "1",
            "--engine",
            "vllm",
        ]
        words += [
            "--launches",
            "3",
            "--workload",
            "random:256:32:64",
            "--on",
            given.on,
            "--home",
            home,
            "--executor",
            "local:1",
        ]
        threading.setprofile(followed.profile)
        sys.setprofile(followed.profile)
        with suppress(SystemExit):
            cli.main(words, standalone_mode=False)
        sys.setprofile(None)
    for number, hop in enumerate(followed.hops.values(), 1):
        print(f"{number:3} {hop}")
    print(f"{len(followed.hops)} hops on --on {given.on}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
