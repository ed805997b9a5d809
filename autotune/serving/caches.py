"""Folders for what engines compile, kept from one launch to the next.

A first start compiles kernels for 10 to 20 minutes. Its results are good for the same engine, version and kind of GPU
only, so each of these has folders of its own: what an older version left can neither slow a launch nor break it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import BadInput
from autotune.study.home import expanded


def root() -> Path:
    """``autotune/jit`` in the user's cache folder (XDG Base Directory Specification 0.8: ``$XDG_CACHE_HOME``)."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else expanded("~", "XDG_CACHE_HOME") / ".cache"
    return base / "autotune" / "jit"


def cache_variables(
    caches: Mapping[str, str], engine: str, version: str, gpu: str, given: Mapping[str, str]
) -> dict[str, str]:
    """The variables to set for a launched server, each with a folder that exists.

    Args:
        caches: variable to its folder's name, as in the engine's YAML.
        gpu: the kind of GPU, e.g. ``h200``.
        given: what the command itself sets; that and the user's own environment are left as they are.

    Raises:
        BadInput: a folder cannot be made.
    """
    parts = (_safe(engine), _safe(version), _safe(gpu))
    found = {}
    for variable, name in caches.items():
        if variable in given or os.environ.get(variable):
            continue
        folder = root().joinpath(*parts, name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"the cache folder {folder} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder that can "
                f"be written, or {variable} to one of your own"
            ) from error
        found[variable] = str(folder)
    return found


def _safe(name: str) -> str:
    """A name that is one folder, whatever stands in a file of the user's own."""
    safe = "".join(c if c.isalnum() or c in "._-+" else "-" for c in name)
    return safe if safe.strip(".") else f"-{safe}"
