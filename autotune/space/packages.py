"""The packages that bring an engine: known by their entry points, their cards read without importing them.

A package registers its class under the group ``autotune.engines``; ``<name>.yaml``, named as the entry point is, lies
in the folder of the module that the entry point names. So it is found in a wheel and in an editable install alike.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

GROUP = "autotune.engines"


@lru_cache(maxsize=1)
def engine_points() -> dict[str, EntryPoint]:
    """The registered engines by name, in lower case as engines are asked for."""
    return {point.name.lower(): point for point in entry_points(group=GROUP)}


@lru_cache(maxsize=1)
def engine_cards() -> tuple[Path, ...]:
    """The cards that lie beside registered modules, by the engines' names; autotune's own are in ``search_spaces``."""
    found = (_card(point) for _, point in sorted(engine_points().items()))
    return tuple(card for card in found if card is not None)


def _card(point: EntryPoint) -> Path | None:
    folder = _folder(point.module)
    spellings = dict.fromkeys([point.name, point.name.lower()])
    cards = [folder / f"{spelling}.yaml" for spelling in spellings] if folder is not None else []
    return next((card for card in cards if card.is_file()), None)


def _folder(module: str) -> Path | None:
    """The folder of a module; None when it cannot be found.

    Only its outermost package is asked for, as the import system imports the parents of any other.
    """
    outermost, *inner = module.split(".")
    try:
        spec = find_spec(outermost)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations)), *inner)
        return path if path.is_dir() else path.parent
    return Path(spec.origin).parent if spec.has_location and spec.origin else None
