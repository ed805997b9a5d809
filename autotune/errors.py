"""Every exception that leaves the package on purpose, each with its exit code.

A configuration that cannot run is *not* an exception: it is a value, `trial.Failure`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_MOST_NAMES = 40  # Of more names, as of a home's studies, a message gives the nearest ones
_FEW_NAMES = 20  # Of more names none is listed beside the one that was probably meant


class AutotuneError(Exception):
    """Something that autotune tells its user in one message, without a traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was raised, also from a worker process: a message is made of arguments that are not kept."""
        return _raised_elsewhere, (type(self), self.args, self.__dict__)


def _raised_elsewhere(kind: type[AutotuneError], words: tuple[Any, ...], state: dict[str, Any]) -> AutotuneError:
    error = kind.__new__(kind, *words)
    error.__dict__.update(state)
    return error


class BadInput(AutotuneError):
    """The input is wrong; the message says what, where, and what would be right."""

    exit_code = 2


class UnknownName(BadInput):
    """A name that does not exist, answered with the names that do, and a hint: one more sentence.

    `meant` are the names that were probably meant; empty: the nearest one; None: no name says which.
    """

    def __init__(
        self, what: str, name: str, known: Iterable[str], hint: str = "", meant: Sequence[str] | None = ()
    ) -> None:
        names = sorted(set(known))
        close = [] if meant is None else difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
        guesses = list(map(repr, meant or [n for n in names if close and n.lower() == close[0]][:1]))
        parts = [f"unknown {what} {name!r}"]
        choice = " or ".join([*filter(None, [", ".join(guesses[:-1])]), *guesses[-1:]])
        parts.append(f"; did you mean {choice}?" if guesses else ".")
        listed = names if len(names) <= _MOST_NAMES else sorted(difflib.get_close_matches(name, names, n=10, cutoff=0))
        others = f" and {len(names) - len(listed)} others" if len(listed) < len(names) else ""
        if not guesses or len(listed) <= _FEW_NAMES:
            parts.append(f" Known: {', '.join(listed) if listed else 'none'}{others}.")
        if hint:
            parts.append(f" {hint}")
        super().__init__("".join(parts))


class MalformedFile(BadInput):
    """A file that does not fit its schema: the message says what is wrong in which line, and what would be right."""

    def __init__(self, path: Path | str, problem: str, line: int | None = None) -> None:
        where = f"{path}:{line}" if line is not None else str(path)
        super().__init__(f"{where}: {problem}")


class RefusedCommand(BadInput):
    """An engine's own parser refuses a command line, in its own words (`engine_message`)."""

    def __init__(self, where: str, engine_message: str, hint: str = "") -> None:
        super().__init__(f"{where}: error: {engine_message}{hint}")
        self.engine_message = engine_message


class StudyLocked(AutotuneError):
    """Another tuner holds the study's lock."""

    exit_code = 2


class NothingFeasible(AutotuneError):
    """No configuration ran, so there is nothing to recommend; the report says why."""

    exit_code = 3


class LoadFailed(AutotuneError):
    """Requests of a bench failed, or its client did not keep up; the result says so and is written all the same."""

    exit_code = 4


class ClientFailed(LoadFailed):
    """A process of the load client ended in the middle of a load, or has a fault of its own; says which."""


class Interrupted(AutotuneError):
    """The user stopped the study; it can be resumed."""

    exit_code = 130


class CannotGoOn(Interrupted):
    """The machine keeps launches from being made or kept; the message says what to put right to go on."""
