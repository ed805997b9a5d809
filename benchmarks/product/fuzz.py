"""Fuzzing: every reader of somebody else's input, with inputs that were mutated from valid ones.

    .venv/bin/python -m benchmarks.product.fuzz --cases 10000 --seed 0 [--target NAME] [--json FILE]

A case is right when the reader returns, or refuses with an `AutotuneError`. It is a finding when
the reader raises anything else, takes more than 20 s or 1 GiB, or opens a file for writing, a
socket or a process. Findings are grouped by exception and place; of each group the shortest input
is printed, and kept below ``--corpus``. Mutations are drawn from the seed, so a run is repeated by
its seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError

LIMIT_S = 20.0
LIMIT_BYTES = 2**30

_ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2**63,
    10**30,
    1e308,
    -1e-308,
    float("nan"),
    float("inf"),
    "",
    " ",
]
_ODD += [
    "../../x",
    "/etc/passwd",
    "~",
    "\x00",
    "\ud800",
    "é" * 40,
    "9" * 5000,
    "a" * 20_000,
    [],
    {},
    [[]],
    {"": ""},
]
_WORDS = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n\n",
    b"'",
    b"{",
    b"[" * 2000,
    b"}}}",
    b",",
    b":",
]
_WORDS += [
    b"1e999",
    b"-1",
    b"NaN",
    b"null",
    b"9" * 400,
    b"\xf0\x9f\x98\x80",
    b"&a *a",
    b"<<: *a",
    b"!!set x",
]


@dataclass(frozen=True)
class Target:
    """A reader to be fuzzed.

    Attributes:
        make_seeds: makes valid inputs, from which all others are made.
        read: takes an input and an empty folder to work in.
        tree: parses an input into lists, dictionaries and scalars, and writes such a tree; None:
            bytes only.
    """

    name: str
    make_seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]
    tree: tuple[Callable[[bytes], Any], Callable[[Any], bytes]] | None = None

    @cached_property
    def seeds(self) -> list[bytes]:
        """What `make_seeds` made."""
        return self.make_seeds()


@dataclass
class Outcome:
    """What the cases of a target did; `findings` maps exception and place to the shortest input."""

    cases: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    findings: dict[str, bytes] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class TooSlow(BaseException):
    """A case that took longer than `LIMIT_S`."""


def mutated(draw: random.Random, target: Target) -> bytes:
    """Draw an input: a seed with values replaced, or its bytes changed, or spliced with another
    one's."""
    content = draw.choice(target.seeds)
    if target.tree is not None and draw.random() < 0.6:
        parse, write = target.tree
        tree = _parsed(parse, content)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            tree = _altered(draw, tree)
        try:
            return write(tree)
        except (ValueError, RecursionError):  # what the form cannot say
            return content
    for _ in range(draw.choice((1, 1, 2, 5))):
        content = _changed(draw, content, target)
    return content


@lru_cache(maxsize=256)
def _parsed(parse: Callable[[bytes], Any], content: bytes) -> Any:
    return parse(content)


def _altered(draw: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        kind = draw.random()
        if kind < 0.1:
            return {key: one for key, one in value.items() if key != name}
        if kind < 0.2:
            return {**value, str(draw.choice(_ODD))[:30]: draw.choice(_ODD)}
        return {**value, name: _altered(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], _altered(draw, value[at]), *value[at + draw.choice((0, 1, 1)) :]]
    if isinstance(value, int) and not isinstance(value, bool) and draw.random() < 0.3:
        return draw.choice((-value, value * 10**9, value + 0.5, str(value)))
    return draw.choice(_ODD)


def _changed(draw: random.Random, content: bytes, target: Target) -> bytes:
    at = draw.randrange(len(content) + 1)
    size = draw.choice((1, 2, 8, 64, 512))
    match draw.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + content[at + size :]
        case 2:
            return content[:at] + draw.choice(_WORDS) + content[at + draw.choice((0, size)) :]
        case 3:
            return (
                content[:at]
                + content[at : at + size] * draw.choice((2, 3, 50))
                + content[at + size :]
            )
        case 4:
            other = draw.choice(target.seeds)
            return content[:at] + other[draw.randrange(len(other) + 1) :]
        case _:
            flipped = bytearray(content or b"x")
            flipped[min(at, len(flipped) - 1)] ^= 1 << draw.randrange(8)
            return bytes(flipped)


_watched: list[tuple[Path, list[str]]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what a case must not do: Python reports each open, connection and process to its audit
    hooks."""
    if not _watched:
        return
    folder, seen = _watched[-1]
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str | bytes) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            where = Path(os.fsdecode(path)).absolute()
            if folder not in where.parents and where != Path(os.devnull):
                seen.append(f"opens {where} for writing")
    elif event in (
        "socket.connect",
        "subprocess.Popen",
        "os.system",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
    ):
        where = (
            Path(os.fsdecode(arguments[0])).absolute()
            if isinstance(arguments[0], str | bytes)
            else folder
        )
        harmless = str(arguments[0]) == "/sbin/ldconfig"  # ctypes, which looks for a library
        if not harmless and (
            event[:3] != "os." or event == "os.system" or folder not in where.parents
        ):
            seen.append(f"{event} {arguments[:1]}")


@contextmanager
def guarded(folder: Path) -> Iterator[list[str]]:
    """Watch what a case does, and end it after `LIMIT_S`; yields what it did that it must not."""
    seen: list[str] = []
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    _watched.append((folder, seen))
    try:
        yield seen
    finally:
        _watched.pop()
        signal.setitimer(signal.ITIMER_REAL, 0)


def attempt(target: Target, content: bytes, folder: Path) -> tuple[bool, str]:
    """Read one input; returns whether it was refused, and what was wrong with how it was read
    (empty: nothing)."""
    refused, wrong = False, ""
    with guarded(folder) as seen:
        try:
            target.read(content, folder)
        except AutotuneError as error:
            refused = True
            if not str(error).strip() or "Traceback" in str(error):
                wrong = f"{type(error).__name__} that says nothing"
        except (Exception, TooSlow) as error:
            wrong = _place(error)
    return refused, wrong or ("; ".join(sorted(set(seen))[:2]))


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/autotune/" in f.filename]
    where = (
        f"{frames[-1].filename.rpartition('/autotune/')[2]}:{frames[-1].lineno}"
        if frames
        else "outside"
    )
    return (
        f"{type(error).__name__} at {where}: {str(error)[:90]!r}"
        if not frames
        else f"{type(error).__name__} at {where}"
    )


def fuzz(target: Target, cases: int, seed: int) -> Outcome:
    """Run a target's cases in this process, below `LIMIT_BYTES` more memory than it has."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as made, _inside(Path(made)):
        for number in range(cases):
            content = mutated(random.Random(f"{seed} {target.name} {number}"), target)
            begun = time.perf_counter()
            refused, wrong = attempt(target, content, Path(made))
            took = time.perf_counter() - begun
            outcome.cases += 1
            outcome.refused += refused
            outcome.seconds += took
            outcome.slowest_s = max(outcome.slowest_s, took)
            if wrong:
                outcome.counts[wrong] += 1
                outcome.findings[wrong] = min(
                    outcome.findings.get(wrong, content), content, key=len
                )
    return outcome


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder, with little memory and with a clock; restores the process's own."""
    before, limits = Path.cwd(), resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT_BYTES, limits[1]))
    handler = signal.signal(signal.SIGALRM, _too_slow)
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = None
        os.chdir(before)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def _too_slow(*_: object) -> None:
    raise TooSlow


sys.addaudithook(_audit)


def main() -> None:
    """Fuzz the targets that were asked for, print the table, and exit with 1 where something was
    found."""
    from benchmarks.product.fuzz_targets import targets

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=[target.name for target in targets()])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--corpus", type=Path, help="folder for the shortest input of each finding")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(
        f"{'target':16} {'cases':>7} {'refused':>8} {'seconds':>8} {'slowest':>8} {'findings':>9}"
    )
    for target in targets():
        if asked.target and target.name not in asked.target:
            continue
        done = fuzz(target, asked.cases, asked.seed)
        print(
            f"{target.name:16} {done.cases:7} {done.refused:8} {done.seconds:8.1f} {done.slowest_s:8.2f} "
            f"{len(done.findings):9}",
            flush=True,
        )
        for number, (wrong, content) in enumerate(done.findings.items()):
            print(
                f"    {done.counts[wrong]:5} x {wrong}\n            {content[:150]!r}", flush=True
            )
            if asked.corpus is not None:
                asked.corpus.mkdir(parents=True, exist_ok=True)
                (asked.corpus / f"{target.name}-{number}").write_bytes(content)
        rows.append(
            {
                "target": target.name,
                "cases": done.cases,
                "refused": done.refused,
                "seconds": done.seconds,
            }
        )
        rows[-1] |= {"slowest_s": done.slowest_s, "findings": dict(done.counts)}
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1))
    sys.exit(any(row["findings"] for row in rows))


if __name__ == "__main__":
    main()
