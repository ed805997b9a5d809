"""From a server's log to the reason why it failed.

The root cause is rarely the last line: engines end with "see root cause above" and the noise of their shutdown. So the
first line that matches one of the engine's known patterns (``failures:`` in its YAML) counts, else the first line that
looks like an exception, else the first that is marked as an error, else the last line.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from autotune.space.schema import EngineCard
from autotune.space.serving import LogPattern
from autotune.trial import Failure, FailureKind

HEAD_BYTES = 32 * 2**20
TAIL_BYTES = 32 * 2**20
"""Of a longer log the beginning and the end are read: a start fails early, a server that ran fails at the end."""
_HEAD_TEXT_BYTES = 4 * 2**20
"""Enough for what engines print before they are ready."""
_BLOCK_BYTES = 2**20
_LINE_CHARACTERS = 4096
_EXCERPT_CHARACTERS = 500

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")
_EXCEPTION = re.compile(r"(?<![\w.\"'(])(?:[a-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception)\b(?::| *$)")
_ERROR = re.compile(r"\bERROR\b|\bFATAL\b|\bCRITICAL\b|\[[EF]\]|\b[Ee]rror:|\bpanic:|Segmentation fault")
_HARMLESS = re.compile(r"\b(?:WARNING|WARN|INFO|DEBUG)\b|\[[WID]\]")


def read_lines(path: Path, offset: int = 0) -> Iterator[str]:
    """The lines of a log without colours, in bounded memory and time.

    Progress bars, which a carriage return begins anew, come as lines of their own; lines are cut at 4096 characters;
    bytes that are no UTF-8 are replaced. A log that is gone has no lines.

    Args:
        offset: bytes to skip, e.g. what an earlier, interrupted launch left in the same file.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            ranges = [(offset, size)]
            if size - offset > HEAD_BYTES + TAIL_BYTES:
                ranges = [(offset, offset + HEAD_BYTES), (size - TAIL_BYTES, size)]
            for begin, stop in ranges:
                stream.seek(begin)
                yield from _split(iter(lambda: stream.read(min(_BLOCK_BYTES, stop - stream.tell())), b""))  # noqa: B023
    except OSError:
        return


def read_head(path: Path, offset: int = 0) -> str:
    """The beginning of a log as one text without colours, its lines whole, however long; empty when it is gone.

    Args:
        offset: bytes to skip.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(_HEAD_TEXT_BYTES)
    except OSError:
        return ""
    return _ANSI.sub("", re.sub(rb"[\r\n]+", b"\n", content).decode("utf-8", errors="replace"))


def _split(blocks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for block in blocks:
        *lines, rest = re.split(rb"[\r\n]+", rest + block)
        yield from (_clean(line) for line in lines if line)
        # A line without end must not grow without bound.
        rest = rest[:_LINE_CHARACTERS]
    if rest:
        yield _clean(rest)


def _clean(line: bytes) -> str:
    return _ANSI.sub("", line[:_LINE_CHARACTERS].decode("utf-8", errors="replace")).strip()


class Progress:
    """How much a server has said of its own accord: the bytes of its log, without the lines about our own requests.

    SGLang answers its health check before it is ready, and each of our looks is a line of its access log.

    Args:
        path: the log; one that is gone does not grow.
        offset: bytes that it held before.
        ours: what only the lines about our requests hold, e.g. ``/health``.
    """

    def __init__(self, path: Path, offset: int, ours: Sequence[str]) -> None:
        self._path, self._read = path, offset
        self._ours = [text.encode() for text in ours]
        self._bytes = 0

    def __call__(self) -> int:
        try:
            size = self._path.stat().st_size
            if size - self._read > _BLOCK_BYTES:
                self._bytes += size - self._read
                self._read = size
            elif size > self._read:
                self._take()
        except OSError:
            pass
        return self._bytes

    def _take(self) -> None:
        with self._path.open("rb") as stream:
            stream.seek(self._read)
            data = stream.read(_BLOCK_BYTES)
        self._read += len(data)
        for line in data.splitlines():
            if not any(text in line for text in self._ours):
                self._bytes += len(line)


def patterns_of(card: EngineCard) -> list[LogPattern]:
    """What an engine's log may tell: the messages of its rules, word for word, then its ``failures``."""
    rules = [
        LogPattern(
            pattern=re.escape(rule.message),
            kind=rule.kind,
            way_out=_sentence(rule.reason).replace("{", "{{").replace("}", "}}"),
            source=rule.source,
        )
        for rule in card.rules
        if rule.kind not in (FailureKind.RULE, FailureKind.LOAD_ERRORS)
    ]
    return [*rules, *card.failures]


def known_failure(log: Path, patterns: Sequence[LogPattern], offset: int = 0) -> Failure | None:
    """The failure that the engine's patterns find in a log; None when none matches."""
    match = _first_match(read_lines(log, offset), patterns)
    return _from_pattern(*match) if match else None


def explain_exit(log: Path, patterns: Sequence[LogPattern], exit_code: int, title: str, offset: int = 0) -> Failure:
    """Why a server's process ended.

    Args:
        exit_code: of its first process; negative = ended by that signal.
        title: the engine's, for the message.
        offset: where in the log this launch begins, bytes.
    """
    match = _first_match(read_lines(log, offset), patterns)
    if match is not None:
        return _from_pattern(*match)
    line = _best_line(read_lines(log, offset))
    said = f"its log says: {line}" if line else "its log is empty"
    message = f"{title} ended {_how(exit_code)}; {said}"
    return Failure(FailureKind.CRASHED, f"{_shorten(message)} (see {log.name}).", line)


def last_line(log: Path, offset: int = 0) -> str:
    """The last line that is not empty; what a silent server said last."""
    last = ""
    for line in read_lines(log, offset):
        last = line or last
    return last[:_EXCERPT_CHARACTERS]


def _first_match(lines: Iterable[str], patterns: Sequence[LogPattern]) -> tuple[LogPattern, re.Match[str]] | None:
    if not patterns:
        return None
    # One expression for all patterns, as nearly every line matches none.
    any_of = re.compile("|".join(f"(?:{_NAMED_GROUP.sub('(?:', pattern.pattern)})" for pattern in patterns))
    for line in lines:
        if any_of.search(line) is None:
            continue
        for pattern in patterns:
            match = re.search(pattern.pattern, line)
            if match is not None:
                return pattern, match
    return None


def _from_pattern(pattern: LogPattern, match: re.Match[str]) -> Failure:
    groups = {name: text or "" for name, text in match.groupdict().items()}
    line = match.string[:_EXCERPT_CHARACTERS]
    exception = _EXCEPTION.search(match.string)
    begin = min(match.start(), exception.start()) if exception else match.start()
    told = _shorten(match.string[begin:].rstrip("."))
    return Failure(pattern.kind, f"{told}. {pattern.way_out.format(**groups)}", line)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _best_line(lines: Iterable[str]) -> str:
    """The first exception, else the first error, else the last line."""
    error, last = "", ""
    for line in lines:
        last = line or last
        if _HARMLESS.search(line):
            continue
        if _EXCEPTION.search(line):
            return line[:_EXCERPT_CHARACTERS]
        if not error and _ERROR.search(line):
            error = line
    return (error or last)[:_EXCERPT_CHARACTERS]


def _how(exit_code: int) -> str:
    if exit_code == 0:
        return "by itself with exit code 0, though nobody had stopped it"
    if exit_code > 0:
        return f"with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (the kernel does that when the machine's memory is used up)" if name == "SIGKILL" else ""
    return f"by {name}{hint}"


def _shorten(text: str, characters: int = 300) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
