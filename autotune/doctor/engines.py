"""Which engines this machine can start, and whether autotune itself is whole."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from autotune.doctor.finding import PROCESS, TARGETS, Answer, Check, Host, missing, ok, warning
from autotune.engines import engine, names
from autotune.engines.detect import find
from autotune.errors import BadInput
from autotune.space.library import Library


def installed(name: str, library: Library) -> tuple[str, str | None]:
    """Describe an installed engine, and why it cannot be started; None = it can."""
    try:
        kind = engine(name, library)
        found = find(kind.card)
    except BadInput as error:
        return "", str(error)
    return f"{kind.card.title} {found.version} is there ({' '.join(found.program)})", None


def engines(host: Host) -> Iterator[Answer]:
    """One that can be started is enough: those that are not there are not searched."""
    found = {name: installed(name, host.library) for name in names()}
    if all(reason is not None for _, reason in found.values()):
        to_do = "install one in a virtual environment of its own, and put that environment's bin folder on the PATH"
        yield missing(f"none of {', '.join(found)} can be started", to_do)
    for name, (description, reason) in found.items():
        yield ok(description, name) if reason is None else warning(reason, "install it if it is to be searched", name)


def packages(host: Host) -> Iterator[Answer]:
    """The packages that autotune says it needs, in the versions that it needs."""
    del host
    try:
        needed = [Requirement(line) for line in requires("autotune") or []]
    except PackageNotFoundError:
        yield warning("autotune runs from a folder, so what it needs is not known", "install it: pip install .")
        return
    lacking = [str(need) for need in needed if _applies(need) and not _satisfied(need)]
    if lacking:
        yield missing(f"not there, or in another version: {', '.join(lacking)}", "pip install --upgrade autotune")
    else:
        yield ok("everything that autotune needs is installed")


def _applies(need: Requirement) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": ""})


def _satisfied(need: Requirement) -> bool:
    try:
        return need.specifier.contains(version(need.name), prereleases=True)
    except PackageNotFoundError:
        return False


CHECKS = (
    Check("Python packages", TARGETS, packages, "pyproject.toml"),
    Check("engine", (PROCESS,), engines, "search_spaces/*/engine.yaml"),
)
