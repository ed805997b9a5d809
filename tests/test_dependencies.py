"""What is installed with autotune: licences that permit its use, and no known vulnerability."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

import httpx
import pytest
from packaging.requirements import Requirement

PERMISSIVE = re.compile(
    r"\b(?:MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla Public|Zlib|CC0|Unlicense|HPND)\b"
    r"|Permission is hereby granted, free of charge"
)
RESTRICTIVE = re.compile(
    r"\b(?:AGPL|GPL|LGPL|GNU|SSPL|Commons Clause|non-commercial)\b", re.IGNORECASE
)
ADVISORIES = "https://pypi.org/pypi/{name}/{version}/json"
"""The Python Package Index's own; its ``vulnerabilities`` are those of the PyPA advisory
database."""


def dependencies() -> dict[str, Distribution]:
    """Every distribution that installing autotune brings, without extras."""
    known: dict[str, Distribution] = {}
    waiting = ["autotune-serving"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in known:
            continue
        try:
            known[name] = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        requirements = map(Requirement, known[name].requires or [])
        waiting += [
            one.name
            for one in requirements
            if one.marker is None or one.marker.evaluate({"extra": ""})
        ]
    return known


def licences(made: Distribution) -> Iterator[str]:
    """What a distribution says of its licence: its fields, else the text beside it."""
    fields = [made.metadata.get("License-Expression"), made.metadata.get("License")]
    fields += [
        name for name in made.metadata.get_all("Classifier") or [] if name.startswith("License ::")
    ]
    yield from filter(None, fields)
    files = [
        file
        for file in made.files or []
        if re.search(r"licen[cs]e|copying", file.name, re.IGNORECASE)
    ]
    yield from (
        file.read_text()[:2000] for file in files if file.suffix in ("", ".txt", ".md", ".rst")
    )


def test_every_dependency_is_permissively_licensed() -> None:
    found = {name: " ".join(licences(made)) for name, made in dependencies().items()}
    assert len(found) > 30
    assert not [name for name, text in found.items() if not PERMISSIVE.search(text)]
    stated = {name: next(licences(made), "")[:200] for name, made in dependencies().items()}
    assert not [
        name
        for name, text in stated.items()
        if RESTRICTIVE.search(text) and not PERMISSIVE.search(text)
    ]


def test_no_dependency_has_a_known_vulnerability() -> None:
    """Skipped where the index cannot be asked."""
    installed = {
        name: made.version for name, made in dependencies().items() if name != "autotune-serving"
    }
    vulnerable: dict[str, list[str]] = {}
    with httpx.Client(timeout=10) as index:
        for name, version in installed.items():
            try:
                answer = index.get(ADVISORIES.format(name=name, version=version))
                known = answer.raise_for_status().json()["vulnerabilities"]
            except (httpx.HTTPError, ValueError, KeyError) as error:
                pytest.skip(f"the package index tells no advisories: {error}")
            if known:
                vulnerable[f"{name} {version}"] = [one["id"] for one in known]
    assert vulnerable == {}
