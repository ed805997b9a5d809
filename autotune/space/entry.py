"""What every part of an engine's file is made of: entries that refuse unknown keys, and version ranges."""

from __future__ import annotations

from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict


def _check_versions(text: str) -> str:
    try:
        SpecifierSet("" if text == "*" else text)
    except InvalidSpecifier as error:
        raise ValueError(f"not a version range: {text!r}; write e.g. '>=0.5.6,<0.6' or '*'") from error
    return text


VersionRange = Annotated[str, AfterValidator(_check_versions)]


def in_range(version: str, versions: str) -> bool:
    """Whether a version lies in a range; release candidates and post releases count."""
    return versions == "*" or SpecifierSet(versions).contains(Version(version), prereleases=True)


class Entry(BaseModel):
    """A part of an engine's file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
