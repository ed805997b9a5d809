"""Find the cause of a server's failure in its log.

The root cause is rarely the last line: engines end with "see root cause above" and the noise of
their shutdown. So the first line that matches one of the engine's patterns (``failures:`` in its
YAML) counts; a pattern that is weak counts where no other matches. Without a match, the first line
that looks like an exception counts, else the first that is marked as an error, else the last line.
A line that its engine marks as a warning or less never counts: a vLLM that runs well warns of "Too
many open files". Patterns see a line without the process, time and level in front of it.

Memory that runs out has another way out at each phase of a server's life. Where the line does not
tell the phase, the marks of progress before it do (``progress:`` in the YAML), and so does having
served.
"""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from autotune.base import Strings, frozen
from autotune.engines import EngineCard, Failure, FailureKind
from autotune.engines.failure import Phase
from autotune.engines.library import shared_failures
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
_PREFIX = re.compile(
    r"^(?:(?:\([\w.]+ (?:\w+=\w+ )?pid=\d+[^)]*\)|\[rank\d+\]:|[EWIF]\d{4} [\d:.]+ +\d+ \S+\]"
    r"|\[[EWIF]?\d[^\]]*[:/-][^\]]*\]|\[(?:TRT-LLM|RANK \d+|[EF]|[\w.]+:\d+)\]|[\w.]+\.py:\d+\]"
    r"|\d+[-:/.][\d:.,/-]* |(?:ERROR|CRITICAL|FATAL)\b:?)\s*)*"
)
"""Words in front of a line: process, rank, time, level and source file."""
_EXCEPTION = re.compile(
    r"(?<![\w.\"'(])(?:(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)\b|(?:[a-z_]\w*\.)+(?:[A-Z]\w*|\w*error))"
    r"(?:\(\w+\))?(?::(?= |$)| *$|(?=\([\"']))"
)
_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b|\[[EF]\]|\b[EF]\d{3,4} \d\d:|\bE \d+ \d+\]"
    r"|\b[Ee]rror ?:|\bfatal\b|\bpanic:|Segmentation fault|\bcannot create\b"
)
ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals with which users, service managers and the kernel end processes from outside."""
# The level stands first, behind the process and the time at most: "NCCL_DEBUG=INFO" within an error
# is no level.
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
_HARMLESS = re.compile(r"(?<!=)\b(?:WARNING|WARN|INFO|DEBUG)\b|\[[WID]\]")
_NO_SOURCE = re.compile(r"[\s^~]*$|Traceback \(most|During handling of|The above exception")
_DIGITS = str.maketrans("", "", "0123456789")
_LINES_OF_A_FRAME = 5  # Frame, source, marks below it, blank ones
_NUMBER = re.compile(r"(?<![\w\\])\d[\d.]*")
_VALUES = r"""(?> ?[=:]? ?(?:\([^()]*\)|\[[^\[\]]*\]|'[^']*'|"[^"]*"|`[^`]*`|-?\d[\w.]*))*"""
"""Values that an engine prints between the words of a rule's message; a value is matched in one way
alone, because else a line of many numbers takes minutes."""


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
    return [*card.serving.heartbeats, *shared_failures().heartbeats]


@frozen
class LogPatterns:
    """Patterns of an engine's log: of failures, and of progress."""

    failures: Sequence[LogPattern]
    progress: Sequence[ProgressMark] = ()

    def strong(self) -> LogPatterns:
        """Return the patterns that also count beside an error from which a server recovers."""
        return LogPatterns([one for one in self.failures if not one.weak], self.progress)


def patterns_of(card: EngineCard) -> LogPatterns:
    """Collect the messages of an engine's rules, its ``failures``, those of all engines, and its
    progress marks."""
    rules = [
        LogPattern(
            pattern=as_printed(rule.message),
            kind=rule.kind,
            way_out=f"{rule.reason[:1].upper()}{rule.reason[1:].rstrip('.')}.".replace(
                "{", "{{"
            ).replace("}", "}}"),
            source=rule.source,
        )
        for rule in card.rules
        if rule.kind not in (FailureKind.RULE, FailureKind.LOAD_ERRORS)
    ]
    # Because those that read figures of the line have the better advice.
    own = sorted([*rules, *card.failures], key=lambda one: not _NAMED_GROUP.search(one.pattern))
    return LogPatterns([*own, *shared_failures().failures], card.progress)


def as_printed(message: str) -> str:
    """Return a rule's message as a pattern of the line that an engine prints: with other numbers,
    and with values between its words."""
    words = [_NUMBER.sub(r"\\d[\\w.]*", re.escape(word)) for word in message.rstrip(".").split()]
    # Because pydantic prints the two so.
    words[0] = {
        "ValueError:": "(?:ValueError:|Value error,)",
        "AssertionError:": "(?:AssertionError:|Assertion failed,)",
    }.get(words[0], words[0])
    return f"{_VALUES} ".join(words)


def known_failure(
    log: Path, patterns: LogPatterns, offset: int = 0, served: bool = False
) -> Failure | None:
    """Find the failure that patterns match in a log from `offset` on; None for no match. `served`:
    under load."""
    found = _first_match(read_lines(log, offset), patterns)
    if found is None:
        return None
    phase = found.pattern.phase
    if phase is None and found.pattern.kind is FailureKind.OUT_OF_MEMORY:
        phase = (
            Phase.SERVING
            if served
            else _phase(read_lines(log, offset), found.line.text, patterns.progress)
        )
    return _from_pattern(found, phase)


def failure_in(text: str, patterns: LogPatterns) -> Failure | None:
    """Find the failure that an engine's patterns match in an excerpt of its log; None for no
    match."""
    found = _first_match(text.splitlines(), patterns)
    return None if found is None else _from_pattern(found, found.pattern.phase)


def remarks_in(text: str) -> Strings:
    """Return what an engine's log says of its speed."""
    return tuple(one.remark for one in shared_failures().remarks if re.search(one.pattern, text))


def unknown_exit(
    log: Path, exit_code: int, title: str, offset: int = 0, served: bool = False
) -> Failure:
    """Describe an exit that no pattern explains; a negative `exit_code` is a signal, `title` names
    the engine.

    A signal that people and machines send to end a process (`ENDING`) is laid to them, unless the
    log has an error: SGLang kills its own processes after any exception.
    """
    line = _error_line(read_lines(log, offset)) or last_line(log, offset)
    last_words = f"last log line: {line}" if line else "its log is empty"
    from_outside = -exit_code in ENDING and not _is_error(line) and not _wrappers().search(line)
    how = (
        f"with exit code {exit_code}"
        if exit_code
        else "with exit code 0 although it was not stopped"
    )
    if exit_code < 0:
        known = -exit_code in set(signal.Signals)
        how = f"by {signal.Signals(-exit_code).name if known else f'signal {-exit_code}'}"
    message = f"{title} ended {how}{', which autotune did not send' if from_outside else ''}; {last_words}"
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


@frozen
class _Line:
    """A line of a log, and the few above it."""

    text: str
    above: Sequence[str]

    @property
    def words(self) -> str:
        """Return the line without what stands in front of its words."""
        return _PREFIX.sub("", self.text, count=1)

    @property
    def source(self) -> str:
        """Return the source line that a traceback quotes above it, with its frame."""
        code = ""
        for text in reversed(self.above):
            words = _PREFIX.sub("", text, count=1)
            if words.startswith('File "'):
                return f"{code} ({words})" if code else words
            if _NO_SOURCE.match(words):
                continue
            if code:
                break
            code = words
        return code

    @property
    def is_noise(self) -> bool:
        """True for a warning, or less, and for source code with an error's words."""
        return bool(_BELOW_ERROR.search(self.text) or _QUOTED.search(self.text))


def _new_lines(lines: Iterable[str], seen: set[str]) -> Iterator[_Line]:
    """Yield the lines that differ by more than numbers from those `seen`: a server that runs
    repeats itself."""
    above: deque[str] = deque(maxlen=_LINES_OF_A_FRAME)
    for text in lines:
        form = text.translate(_DIGITS)
        if form not in seen:
            if len(seen) >= _MOST_SEEN:
                seen.clear()
            seen.add(form)
            yield _Line(text, tuple(above))
        above.append(text)


def _is_error(line: str) -> bool:
    """Return whether a line has an exception, or is marked as an error."""
    return bool(_EXCEPTION.search(line) or _ERROR.search(line))


def _wrappers() -> re.Pattern[str]:
    """Return the words of errors that name no cause."""
    return re.compile("|".join(words.pattern for words in shared_failures().wrappers))


@frozen
class _Found:
    """A line that a pattern matches."""

    pattern: LogPattern
    match: re.Match[str]
    line: _Line


def _first_match(lines: Iterable[str], patterns: LogPatterns) -> _Found | None:
    of_errors = patterns.failures
    of_others = [one for one in of_errors if not one.weak]
    any_of_errors = _any_of(of_errors)
    any_of_others = _any_of(of_others)
    serving = [mark.pattern for mark in patterns.progress if mark.phase is Phase.SERVING]
    weak = None
    seen = set[str]()
    for line in _new_lines(lines, seen):
        # Because a server that got ready got over it.
        if weak and any(re.search(mark, line.text) for mark in serving):
            weak = None
        error = _is_error(line.text)
        words = line.words
        if line.is_noise or (any_of_errors if error else any_of_others).search(words) is None:
            continue
        for pattern in of_errors if error else of_others:
            match = re.search(pattern.pattern, words)
            if match and not pattern.weak:
                return _Found(pattern, match, line)
            if match and weak is None:
                weak = _Found(pattern, match, line)
                # Because it may come again once the server is ready.
                seen.discard(line.text.translate(_DIGITS))
    return weak


def _any_of(patterns: Sequence[LogPattern]) -> re.Pattern[str]:
    """Return one expression for all patterns, as nearly every line matches none."""
    return re.compile(
        "|".join(f"(?:{_NAMED_GROUP.sub('(?:', pattern.pattern)})" for pattern in patterns)
    )


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


def _from_pattern(found: _Found, phase: Phase | None) -> Failure:
    pattern = found.pattern
    match = found.match
    groups = {name: text or "" for name, text in match.groupdict().items()}
    way_out = pattern.way_out_at.get(phase, pattern.way_out) if phase else pattern.way_out
    exception = _EXCEPTION.search(match.string)
    before = match.string[: match.start()]
    begin = len(before) - len(before.rpartition(": ")[2])
    if exception:
        begin = min(match.start(), exception.start())
    cause = match.string[begin:]
    if exception and exception.end() == len(match.string):
        cause = _with_source(cause, found.line.source)
    message = f"{_shorten(cause.rstrip('.'))}. {way_out.format(**groups)}"
    line = found.line.text[:_EXCERPT_CHARACTERS]
    return Failure(pattern.kind, message, line, phase, lasting=not pattern.retry)


def _error_line(lines: Iterator[str]) -> str:
    """Return the first exception, else the first error, else words that name no cause with the line
    before them; empty for none."""
    wrappers = _wrappers()
    error = wrapper = ""
    for line in _new_lines(lines, set()):
        if wrappers.search(line.text):
            before = next((text for text in reversed(line.above) if re.search(r"\w", text)), "")
            wrapper = wrapper or "; ".join(filter(None, (before, line.text)))
        elif _HARMLESS.search(line.text) or line.is_noise:
            continue
        elif exception := _EXCEPTION.search(line.text):
            return _with_message(line, exception, lines)[:_EXCERPT_CHARACTERS]
        elif not error and _ERROR.search(line.text):
            error = line.text
    return (error or wrapper)[:_EXCERPT_CHARACTERS]


def _with_message(line: _Line, exception: re.Match[str], following: Iterator[str]) -> str:
    """Return an exception's line; where its message begins on a later one, with the first that is
    not blank; without a message, with the source line above it."""
    if exception.end() < len(line.text):
        return line.text
    if line.text.endswith(":"):
        # Each line of a process begins with its name.
        own = line.text[: exception.start()].strip()
        words = next(filter(None, (one.removeprefix(own).strip() for one in following)), "")
        if words and not _EXCEPTION.search(words) and words == _PREFIX.sub("", words):
            return f"{line.text} {words}"
    return _with_source(line.text, line.source)


def _with_source(exception: str, source: str) -> str:
    """Return an exception without a message, with the source line that raised it."""
    return f"{exception.rstrip(': ')}: {source}" if source else exception


def _shorten(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:299]}…"
