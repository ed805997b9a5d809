"""Environment variables of a shell that servers would read: recorded, kept or dropped, by
``search_spaces/environment.yaml``.

A recorded secret is a reference to its variable, as in every stored command.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from autotune.base import Environment, StringDict, redact

from .entry import Entry, Explained, NonEmpty, Sourced


class Variables(Explained):
    """Names of variables, as shell patterns, and what they have in common."""

    names: NonEmpty


class Download(Explained):
    """Files that a server of a model family downloads, unless a variable names their folder."""

    family: str
    variable: str
    files: NonEmpty
    url: str


class Place(Sourced):
    """A folder that a variable names, else a usual place."""

    variable: str
    folder: str


class ServerEnvironment(Entry):
    """Schema of ``search_spaces/environment.yaml``; a name belongs to the last list that has it.

    Attributes:
        recorded: part of a study: each of its servers gets the recorded value.
        kept: of this machine: inherited where set, and no part of a command.
        dropped: taken from no shell.
        places: folders of caches, by the variables that name them.
    """

    recorded: list[Variables]
    kept: list[Variables]
    dropped: list[Variables]
    downloads: list[Download]
    places: list[Place]

    def record(self, shell: Environment) -> StringDict:
        """Return the variables of a shell that become part of a study, by name."""
        others = (*self.kept, *self.dropped)
        return {
            name: stored(name, shell[name])
            for name in sorted(shell)
            if among(name, self.recorded) and not among(name, others)
        }

    def inheritable(self, shell: Environment, *, all_recorded: bool = False) -> StringDict:
        """Return what a server inherits without what its study records; of an old study,
        `all_recorded`, with that."""
        left_out = {} if all_recorded else self.record(shell)
        return {
            name: value
            for name, value in shell.items()
            if name not in left_out and not among(name, self.dropped)
        }

    def why_dropped(self, shell: Environment) -> StringDict:
        """Return the variables that no server gets, with the reasons."""
        found = {name: among(name, self.dropped) for name in sorted(shell)}
        return {name: entry.reason for name, entry in found.items() if entry is not None}


def among(name: str, listed: Sequence[Variables]) -> Variables | None:
    """Return the first listed entry whose patterns match a variable's name; None if none does."""
    return next((e for e in listed if any(fnmatchcase(name, p) for p in e.names)), None)


def stored(name: str, value: str) -> str:
    """Return a variable's value as a study keeps it: of a secret, the reference to it."""
    return value if redact.env({name: value})[name] == value else f"${{{name}}}"


def shown(variables: Environment) -> str:
    """List variables for people; a secret is *set*."""
    return ", ".join(
        f"{name} (set)" if value == f"${{{name}}}" else f"{name}={value}"
        for name, value in variables.items()
    )


def differences(a: Environment, b: Environment) -> list[tuple[str, str, str]]:
    """List the variables that two environments set differently, with both values as words."""
    values = ({name: redact.env({name: v})[name] for name, v in one.items()} for one in (a, b))
    first, second = values
    return [
        (name, first.get(name, "not set"), second.get(name, "not set"))
        for name in sorted({**first, **second})
        if first.get(name) != second.get(name)
    ]
