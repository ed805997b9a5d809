"""Read the length of a model's context: its positions, and how they are scaled."""

from collections.abc import Mapping

from autotune.base import Json, JsonObject

from ..cards import Positions
from .keys import ConfigJson, facts


def context_figures(config: ConfigJson) -> Json:
    """Return the longest context that an engine makes of a file; the file's facts, where engines or
    their versions make different ones of it."""
    known = facts()
    scaling = _scaling(config)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    lengths = {key: value for key in known.lengths if (value := config.number(key))}
    limit = lengths.get("model_max_length") or min(lengths.values())
    first = next(value for value in (*map(lengths.get, known.first_of_lengths), limit) if value)
    factor = 1.0 if kind in known.unscaled else _positive(scaling, "factor") or 1.0
    original = _positive(scaling, "original_max_position_embeddings")
    if kind == "longrope":
        original = config.number("original_max_position_embeddings")
    elif kind == "yarn":
        original = original or limit
    scaled = int((original if kind == "yarn" else limit) * factor)
    facts_of_file = Positions(
        limit=limit, first=first, scaling=str(kind), factor=factor, original=int(original)
    )
    alike = {limit, first, scaled, original if kind == "longrope" and original else limit}
    return {
        "context_limit": max(limit, first, scaled),
        "positions": facts_of_file if len(alike) > 1 else None,
    }


def _scaling(config: ConfigJson) -> JsonObject:
    """Return the parameters of the rotary embedding; of several kinds of layers, of one that is
    scaled."""
    stated = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(stated, Mapping) or config.is_among("scaled_already"):
        return {}
    parts = [part for part in stated.values() if isinstance(part, Mapping)]
    return next((part for part in parts if part.get("factor")), {}) if parts else stated


def _positive(scaling: JsonObject, key: str) -> float:
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
        return 0
    return value
