"""The schema of an engine's ``installation`` and ``renamed`` sections: how an installed engine is asked what it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autotune.space.entry import Entry, VersionRange


class InstallationFacts(Entry):
    """How an installation of the engine is recognised and asked for its options."""

    distributions: list[str] = Field(
        default=[], description="Python distributions that are the engine; the first that is there tells the version"
    )
    help: list[str] | None = Field(
        default=None, description="arguments after the program to print every option; None: its parser is not asked"
    )
    parser: Literal["argparse", "click"] | None = Field(default=None, description="of earlier cards; not used")


class Renamed(Entry):
    """An option, or an environment variable that became an option, with the versions in which each name works."""

    kind: Literal["flag", "environment"] = Field(description="what the old name is; the new one is a flag")
    old: str
    new: str
    old_versions: VersionRange = Field(description="where the old name works")
    new_versions: VersionRange = Field(description="where the new name works")
    values: dict[str, str] = Field(default={}, description="values that were renamed too, old to new")
    source: str
