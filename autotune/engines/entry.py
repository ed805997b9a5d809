"""Base of the schemas: entries that refuse unknown keys, versions and version ranges; the YAML
parser."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import yaml
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C is eight times as fast, which `autotune list` of many studies needs; the other
one takes less."""

_DEEPEST = 200
"""The parser in C recurses for each level, and ends the process where the stack ends; no document
needs as many."""

_BRACKET = re.compile(r"[\[\]{}]")
_BLOCKS = re.compile(rf"^(?:[ \t?:-][ \t?:-]){{{_DEEPEST}}}", re.MULTILINE)


def spaces_root() -> Path:
    """Return the packaged ``search_spaces`` folder: in an installed wheel, or next to the package
    in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "search_spaces"
    beside = package.parent / "search_spaces"
    return inside if inside.is_dir() else beside


def parse_yaml(text: str) -> Any:
    """Parse a YAML document into dictionaries, lists and scalars; raises ``yaml.YAMLError``."""
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth = max(depth + (1 if bracket[0] in "[{" else -1), 0)
        if depth > _DEEPEST:
            break
    if depth > _DEEPEST or _BLOCKS.search(text):
        raise yaml.YAMLError(f"nested more than {_DEEPEST} deep")
    return yaml.load(text, Loader=LOADER)


def spaces_file(name: str) -> Any:
    """Parse a packaged file of ``search_spaces``."""
    return parse_yaml((spaces_root() / name).read_text(encoding="utf-8"))


def _check_versions(text: str) -> str:
    try:
        SpecifierSet("" if text == "*" else text)
    except InvalidSpecifier as error:
        raise ValueError(
            f"not a version range: {text!r}; write e.g. '>=0.5.6,<0.6' or '*'"
        ) from error
    return text


def is_version(text: str) -> bool:
    """Return whether a text is a version (PEP 440)."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _check_version(text: str) -> str:
    if not is_version(text):
        raise ValueError(f"not a version: {text!r}; write e.g. '0.5.6'")
    return text


KnownVersion = Annotated[str, AfterValidator(_check_version)]
VersionRange = Annotated[str, AfterValidator(_check_versions)]
NonEmpty = Annotated[list[str], Field(min_length=1)]


def span(versions: Sequence[str]) -> str:
    """Name the first and the last of some versions."""
    return " to ".join(dict.fromkeys([versions[0], versions[-1]]))


@lru_cache(maxsize=4096)
def in_range(version: str, versions: str) -> bool:
    """Return whether a version is in a range; each version is in exactly one of ``<B`` and ``>=B``.

    A release candidate or development build counts as the release that it leads to; only a bound
    that is one itself (``>=1.2.0rc3``) tells them apart.
    """
    return versions == "*" or all(
        _holds(bound, Version(version)) for bound in SpecifierSet(versions)
    )


def _holds(bound: Specifier, version: Version) -> bool:
    exact = bound.operator == "===" or Version(bound.version.removesuffix(".*")).is_prerelease
    if version.is_prerelease and not exact:
        # A post release of a candidate still leads to the release itself.
        post = "" if version.post is None or version.pre is not None else f".post{version.post}"
        version = Version(version.base_version + post)
    return bound.contains(version, prereleases=True)


class Entry(BaseModel):
    """A part of a file: unknown keys are refused."""

    # Schemas are built when first used: every launch of an emulated engine imports more of them
    # than it reads.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def with_fields(self, **fields: Any) -> Self:
        """Return a copy with other values in some fields."""
        return self.model_copy(update=fields)


class Sourced(Entry):
    """A statement, with the place where it can be checked."""

    source: str


class Explained(Sourced):
    """A statement that also says why it is so."""

    reason: str


class Versioned(Entry):
    """An entry for a range of the engine's versions."""

    versions: VersionRange = "*"

    def is_for(self, version: str) -> bool:
        """Return whether a version is in the entry's range."""
        return in_range(version, self.versions)


Ranged = TypeVar("Ranged", bound=Versioned)


def first_for(entries: Iterable[Ranged], version: str) -> Ranged | None:
    """Return the first entry for a version; None if there is none."""
    return next((entry for entry in entries if entry.is_for(version)), None)
