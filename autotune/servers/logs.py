"""Find the cause of a server's failure in its log.

The root cause is rarely the last line: engines end with "see root cause above" and the noise of
their shutdown. So the first line that matches one of the engine's patterns (``failures:`` in its
YAML) counts, else the first line that looks like an exception, else the first that is marked as an
error, else the last line. A line that its engine marks as a warning or less never counts: a vLLM
that runs well warns of "Too many open files".

Memory that runs out has another way out at each phase of a server's life. Where the line does not
tell the phase, the marks of progress before it do (``progress:`` in the YAML), and so does having
served.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from autotune.engines import EngineCard, Failure, FailureKind
from autotune.engines.failure import Phase
from autotune.engines.library import shared_failures, shared_heartbeats
from autotune.engines.serving import Heartbeat, LogPattern, ProgressMark

from .watchdog import END_BYTES

_HEAD_TEXT_BYTES = 4 * 2**20  # Bytes that hold everything engines print before they are ready
_BLOCK_BYTES = 2**20
_LINE_CHARACTERS = 4096
_EXCERPT_CHARACTERS = 500
_TRACEBACK_LINES = 1000
"""Lines after the first decisive one in which an engine may name the cause: each worker prints a
traceback."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")
_EXCEPTION = re.compile(
    r"(?<![\w.\"'(])(?:[a-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)\b(?::| *$)"
)
_ERROR = re.compile(
    r"\bERROR\b|\bFATAL\b|\bCRITICAL\b|\[[EF]\]|\b[Ee]rror:|\bpanic:|Segmentation fault"
)
# The level stands first, behind the process and the time at most: "NCCL_DEBUG=INFO" within an error
# is no level.
_ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which people, service managers and the kernel end a process that did nothing wrong."""
_BELOW_ERROR = re.compile(
    r"^(?:\([^)]{1,80}\) *)?(?:\[[^\]]{1,80}\] *)?(?:[\d:.,/-]+ +)*"
    r"(?:(?:WARNING|WARN|INFO|DEBUG)\b|(?:\[TRT-LLM\] *)?\[[WID]\])"
)
_QUOTED = re.compile(r"(?:^|\s)raise [A-Za-z_][\w.]*\(")
"""A source line quoted by a traceback: the exception's line below it is more specific."""
_PASSING = re.compile(
    rb"\d+:\d\d(?::\d\d)?(?:[.,]\d+)?"  # Clock times, and the times of a progress bar
    rb"|(?i:\d+(?:\.\d+)? ?(?:m?s|m?secs?|seconds?|m|min|minutes?|h|hours?)(?![a-z]))"
    rb"|[\d.?]+ ?(?:it|[kKMG]?i?B)/s"
    rb"|(?i:\b(?:pid|tid|elapsed|waited|uptime)[ =:]*[\d.]+)"
    rb"|\d{9,}(?:\.\d+)?|0x[0-9a-f]+"  # Epochs, numbers of threads, addresses
)
"""Figures that change while nothing happens."""
_MOST_SEEN = 100_000  # Different lines that are kept apart; more in one start are progress anyway
_HARMLESS = re.compile(r"\b(?:WARNING|WARN|INFO|DEBUG)\b|\[[WID]\]")


def read_lines(path: Path, offset: int = 0) -> Iterator[str]:
    """Yield the lines of a log from byte `offset` on, without colours, in bounded memory and time.

    Progress bars, which a carriage return begins anew, come as lines of their own; lines are cut at
    4096 characters; bytes that are no UTF-8 are replaced. A log that is gone has no lines.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            ranges = [(offset, size)]
            if size - offset > 2 * END_BYTES:
                ranges = [(offset, offset + END_BYTES), (size - END_BYTES, size)]
            for begin, stop in ranges:
                stream.seek(begin)
                yield from _lines_until(stream, stop)
    except OSError:
        return


def read_head(path: Path, offset: int = 0) -> str:
    """Read the start of a log from `offset` on, without colours, in whole lines; empty if the log
    is missing."""
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(_HEAD_TEXT_BYTES)
    except OSError:
        return ""
    return _ANSI.sub("", re.sub(rb"[\r\n]+", b"\n", content).decode("utf-8", errors="replace"))


def _lines_until(stream: BinaryIO, stop: int) -> Iterator[str]:
    """Yield the lines of a file from where it stands, up to byte `stop`."""
    rest = b""
    at_end = False
    while not at_end:
        block = stream.read(min(_BLOCK_BYTES, stop - stream.tell()))
        at_end = not block
        *lines, rest = re.split(rb"[\r\n]+", rest + (block or b"\n"))
        for line in filter(None, lines):
            yield _ANSI.sub("", line[:_LINE_CHARACTERS].decode("utf-8", errors="replace")).strip()
        # A line without end must not grow without bound.
        rest = rest[:_LINE_CHARACTERS]


class Progress:
    """Count the bytes of a server's log that say something new.

    A line is new if no earlier one is equal to it apart from times, durations, rates and process
    ids: a count that advances is news, a wait that is reported once a minute is not. A line that
    matches a heartbeat never is, nor is the access log of our own requests, which holds one of the
    texts `ours`, e.g. ``/health``: SGLang answers its health check before it is ready.

    Attributes:
        waiting: the latest wait for a lock, and the path of that lock; None once there was news.
    """

    def __init__(
        self, path: Path, offset: int, ours: Sequence[str], heartbeats: Sequence[Heartbeat] = ()
    ) -> None:
        self._path = path
        self._read = offset
        self._ours = [text.encode() for text in ours]
        self._heartbeats = [(re.compile(one.pattern.encode()), one) for one in heartbeats]
        self._seen: set[bytes] = set()
        self._tail = b""
        self._bytes = 0
        self.waiting: tuple[Heartbeat, str] | None = None

    def __call__(self) -> int:
        with suppress(OSError), self._path.open("rb") as stream:
            size = stream.seek(0, 2)
            # Skip bytes that come too fast to be read: so many are progress, whatever they say.
            unread = max(0, size - self._read - END_BYTES)
            self._read += unread
            self._bytes += unread
            stream.seek(self._read)
            while self._read < size and (data := stream.read(_BLOCK_BYTES)):
                self._read += len(data)
                *lines, tail = re.split(rb"[\r\n]", self._tail + data)
                # Take the beginning of a line as a line as well: it may be all that comes.
                for line in dict.fromkeys([*lines, tail]):
                    self._bytes += self._news(line)
                self._tail = tail if len(tail) < _LINE_CHARACTERS else b""
        return self._bytes

    def _news(self, line: bytes) -> int:
        """Return the bytes of a line that is news, else 0."""
        if len(line) >= _LINE_CHARACTERS:
            return len(line)
        if any(text in line for text in self._ours):
            return 0
        for pattern, heartbeat in self._heartbeats:
            if match := pattern.search(line):
                if "lock" in pattern.groupindex:
                    self.waiting = heartbeat, os.fsdecode(match["lock"])
                return 0
        words = _PASSING.sub(b"", line).strip()
        if not words or words in self._seen:
            return 0
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(words)
        self.waiting = None
        return len(line)


def heartbeats_of(card: EngineCard) -> list[Heartbeat]:
    """Collect the lines without progress of an engine and of its libraries."""
    return [*card.serving.heartbeats, *shared_heartbeats()]


@dataclass(frozen=True, slots=True)
class LogPatterns:
    """Patterns of an engine's log: of failures, and of progress."""

    failures: Sequence[LogPattern]
    progress: Sequence[ProgressMark] = ()


def patterns_of(card: EngineCard) -> LogPatterns:
    """Collect the messages of an engine's rules, its ``failures``, those of all engines, and its
    progress marks."""
    rules = [
        LogPattern(
            pattern=re.escape(rule.message),
            kind=rule.kind,
            way_out=f"{rule.reason[:1].upper()}{rule.reason[1:].rstrip('.')}.".replace(
                "{", "{{"
            ).replace("}", "}}"),
            source=rule.source,
        )
        for rule in card.rules
        if rule.kind not in (FailureKind.RULE, FailureKind.LOAD_ERRORS)
    ]
    return LogPatterns([*rules, *card.failures, *shared_failures()], card.progress)


def known_failure(
    log: Path, patterns: LogPatterns, offset: int = 0, served: bool = False
) -> Failure | None:
    """Find the failure that patterns match in a log from `offset` on; None for no match. `served`:
    under load."""
    first = _first_match(read_lines(log, offset), patterns.failures)
    if first is None:
        return None
    pattern, match = first
    phase = pattern.phase
    if phase is None and pattern.kind is FailureKind.OUT_OF_MEMORY:
        phase = (
            Phase.SERVING
            if served
            else _phase(read_lines(log, offset), match.string, patterns.progress)
        )
    return _from_pattern(pattern, match, phase)


def failure_in(text: str, patterns: LogPatterns) -> Failure | None:
    """Find the failure that an engine's patterns match in an excerpt of its log; None for no
    match."""
    match = _first_match(text.splitlines(), patterns.failures)
    return None if match is None else _from_pattern(*match, match[0].phase)


def unknown_exit(
    log: Path, exit_code: int, title: str, offset: int = 0, served: bool = False
) -> Failure:
    """Describe an exit that no pattern explains; a negative `exit_code` is a signal, `title` names
    the engine.

    A signal that people and machines send to end a process (`_ENDING`) is laid to them, unless the
    log has an error: SGLang kills its own processes after any exception.
    """
    line = _best_line(read_lines(log, offset))
    last_words = f"last log line: {line}" if line else "its log is empty"
    from_outside = -exit_code in _ENDING and not _EXCEPTION.search(line) and not _ERROR.search(line)
    hint = ", which autotune did not send" if from_outside else ""
    how = (
        f"with exit code {exit_code}"
        if exit_code
        else "with exit code 0 although it was not stopped"
    )
    if exit_code < 0:
        known = -exit_code in set(signal.Signals)
        how = f"by {signal.Signals(-exit_code).name if known else f'signal {-exit_code}'}"
    message = f"{title} ended {how}{hint}; {last_words}"
    return Failure(
        FailureKind.INFRASTRUCTURE if from_outside else FailureKind.CRASHED,
        f"{_shorten(message)} (see {log.name}).",
        line,
        Phase.SERVING if served else None,
        unexplained=True,
    )


def log_problem(log: Path) -> str:
    """Explain why a server cannot write its log, of which it may die silently; empty if it can."""
    if not log.exists():
        return f"the log {log} was deleted"
    try:
        with log.open("ab") as stream:
            stream.write(b"\n")
    except OSError as error:
        return f"the log {log} is no longer writable ({error.strerror}); free disk space there"
    return ""


def last_line(log: Path, offset: int = 0) -> str:
    """Return the last non-empty line."""
    last = ""
    for line in read_lines(log, offset):
        last = line or last
    return last[:_EXCERPT_CHARACTERS]


def _first_match(
    lines: Iterable[str], patterns: Sequence[LogPattern]
) -> tuple[LogPattern, re.Match[str]] | None:
    # One expression for all patterns, as nearly every line matches none.
    any_of = re.compile(
        "|".join(f"(?:{_NAMED_GROUP.sub('(?:', pattern.pattern)})" for pattern in patterns)
    )
    for line in lines:
        if any_of.search(line) is None or _BELOW_ERROR.search(line) or _QUOTED.search(line):
            continue
        for pattern in patterns:
            match = re.search(pattern.pattern, line)
            if match is not None:
                return pattern, match
    return None


def _phase(lines: Iterator[str], telling: str, marks: Sequence[ProgressMark]) -> Phase | None:
    """Return the phase of the last mark before a line, unless a mark soon after the line names the
    cause."""
    phase = None
    for line in lines:
        if line == telling:
            break
        mark = next(
            (m for m in marks if not m.names_the_cause and re.search(m.pattern, line)), None
        )
        phase = mark.phase if mark else phase
    naming = [mark for mark in marks if mark.names_the_cause]
    for line in islice(lines, _TRACEBACK_LINES if naming else 0):
        for mark in naming:
            if re.search(mark.pattern, line):
                return mark.phase
    return phase


def _from_pattern(pattern: LogPattern, match: re.Match[str], phase: Phase | None) -> Failure:
    groups = {name: text or "" for name, text in match.groupdict().items()}
    way_out = pattern.way_out_at.get(phase, pattern.way_out) if phase else pattern.way_out
    line = match.string[:_EXCERPT_CHARACTERS]
    exception = _EXCEPTION.search(match.string)
    begin = min(match.start(), exception.start()) if exception else match.start()
    cause = _shorten(match.string[begin:].rstrip("."))
    message = f"{cause}. {way_out.format(**groups)}"
    return Failure(pattern.kind, message, line, phase, lasting=not pattern.retry)


def _best_line(lines: Iterator[str]) -> str:
    """Return the first exception, else the first error, else the last line."""
    error = ""
    last = ""
    for line in lines:
        last = line or last
        if _HARMLESS.search(line):
            continue
        if exception := _EXCEPTION.search(line):
            return _with_message(line, exception, lines)[:_EXCERPT_CHARACTERS]
        if not error and _ERROR.search(line):
            error = line
    return (error or last)[:_EXCERPT_CHARACTERS]


def _with_message(line: str, exception: re.Match[str], following: Iterator[str]) -> str:
    """Return an exception's line; where its message begins on a later one, with the first that is
    not blank."""
    if exception.end() < len(line):
        return line
    # Each line of a process begins with its name.
    own = line[: exception.start()].strip()
    words = (one.removeprefix(own).strip() for one in following)
    return f"{line} {next(filter(None, words), '')}".rstrip()


def _shorten(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:299]}…"
