"""All intentional exceptions of the package, each with its exit code.

A configuration that cannot run is *not* an exception: it is a value, `trial.Failure`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_MOST_NAMES = 40
"""Most names in a message; of a longer list only the nearest ones."""
_FEW_NAMES = 20
"""Most names next to a suggestion."""


class AutotuneError(Exception):
    """Error with one message for the user, without a traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as raised, for worker processes: the message is built from arguments that are not
        stored."""
        return _raised_elsewhere, (type(self), self.args, self.__dict__)


def _raised_elsewhere(
    kind: type[AutotuneError], words: tuple[Any, ...], state: dict[str, Any]
) -> AutotuneError:
    error = kind.__new__(kind, *words)
    error.__dict__.update(state)
    return error


class BadInput(AutotuneError):
    """Invalid input; the message names the error, its place and the valid form."""

    exit_code = 2


class UnknownName(BadInput):
    """Unknown name, answered with the existing names, and a hint: one more sentence.

    `meant` are the names that were probably meant; empty: the nearest one; None: no name says
    which. A long list is cut to the `usual` names; without these to the nearest ones.
    """

    def __init__(
        self,
        what: str,
        name: str,
        known: Iterable[str],
        hint: str = "",
        meant: Sequence[str] | None = (),
        usual: Sequence[str] = (),
    ) -> None:
        names = sorted(set(known))
        close = (
            []
            if meant is None
            else difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
        )
        guesses = list(map(repr, meant or [n for n in names if n.lower() in close][:1]))
        parts = [f"unknown {what} {name!r}"]
        choice = " or ".join(filter(None, [", ".join(guesses[:-1]), *guesses[-1:]]))
        parts.append(f"; did you mean {choice}?" if guesses else ".")
        some = usual or sorted(difflib.get_close_matches(name, names, n=10, cutoff=0))
        listed = names if len(names) <= _MOST_NAMES else some
        others = f" and {len(names) - len(listed)} others" if len(listed) < len(names) else ""
        if not guesses or len(listed) <= _FEW_NAMES:
            parts.append(f" Known: {', '.join(listed) if listed else 'none'}{others}.")
        if hint:
            parts.append(f" {hint}")
        super().__init__("".join(parts))


class MalformedFile(BadInput):
    """File that does not fit its schema: the message names the error, the line and the valid
    form."""

    def __init__(self, path: Path | str, problem: str, line: int | None = None) -> None:
        where = f"{path}:{line}" if line is not None else str(path)
        super().__init__(f"{where}: {problem}")


class RefusedCommand(BadInput):
    """Command line refused by an engine's own parser, in its words (`engine_message`)."""

    def __init__(self, where: str, engine_message: str, hint: str = "") -> None:
        super().__init__(f"{where}: error: {engine_message}{hint}")
        self.engine_message = engine_message


class StudyLocked(AutotuneError):
    """Study locked by another tuner."""

    exit_code = 2


class NothingFeasible(AutotuneError):
    """No configuration ran, so there is no recommendation; the report gives the reasons."""

    exit_code = 3


class LoadFailed(AutotuneError):
    """Failed requests of a bench, or a client that did not keep up; the result records it and is
    written."""

    exit_code = 4


class ClientFailed(LoadFailed):
    """A process of the load client ended during a load, or has a bug; the message names it."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: an interruption like Ctrl-C, but for its exit code."""

    exit_code = 143


class Interrupted(AutotuneError):
    """The user stopped the study; it can be resumed."""

    exit_code = 130

    @classmethod
    def by(cls, stop: KeyboardInterrupt, message: str) -> Interrupted:
        """Return the error with the exit code of what stopped it."""
        error = cls(message)
        error.exit_code = getattr(stop, "exit_code", cls.exit_code)
        return error


class CannotGoOn(Interrupted):
    """The machine prevents launches or their storage; the message names the remedy."""
