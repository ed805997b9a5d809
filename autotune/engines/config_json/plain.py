"""Describe a model whose layers are unknown as a plain decoder, with the weights of its files."""

import math
from contextlib import suppress

from autotune.base import BadInput, Json

from ..cards import Architecture
from ..layers import Projection
from .keys import ConfigJson, NotPredicted, facts, read_json
from .positions import context_figures
from .quantization import precision

FEW_FIGURES = (
    *("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"),
    "max_position_embeddings",
)
"""Keys that the search needs: which layouts divide, and which requests may be sent."""
MOST_LAYERS = 10_000
"""Limit of layers: of more, the kinds would not be listed in reasonable time."""
INDEX = "model.safetensors.index.json"
"""Index of the weights' files, with their total size."""
_LEAST_BYTES = 0.5
"""Bytes per weight of an unknown quantisation: no engine stores less than 4 bits."""
_PER_TOKEN = 8
"""Experts per token of a model that does not say; most have 8."""


def plain_decoder(config: ConfigJson) -> Architecture:
    """Describe a decoder with equal layers of full attention; raises `MalformedFile` without the
    few figures that the search needs."""
    missing = [key for key in FEW_FIGURES if not _common(config, key)]
    if missing:
        config.refuse(
            f"is not a decoder's configuration: {', '.join(missing)} missing. "
            "Add the figures to the file, or describe the model in a YAML file (docs/models.md)"
        )
    if _common(config, "num_hidden_layers") > MOST_LAYERS:
        config.refuse(f"num_hidden_layers is above {MOST_LAYERS:,}; a model's layers are needed")
    names = facts().figures
    few = ("layers", "hidden_size", "heads", "kv_heads", "vocab_size", "experts", "mtp_layers")
    figures: Json = {name: _common(config, *names["decoder"][name]) for name in few}
    layers, hidden, heads = (figures[name] for name in ("layers", "hidden_size", "heads"))
    matrices = 2 if config.is_among("plain_feed_forward") else 3
    # Gated parts of 8/3 of the hidden width have the parameters of plain ones of 4.
    width = _common(config, *names["decoder"]["intermediate_size"]) or 8 * hidden // matrices
    experts = figures["experts"]
    if experts:
        sizes = {name: _common(config, *keys) for name, keys in names["experts"].items()}
        per_token = sizes["experts_per_token"] or _PER_TOKEN
        figures |= {**sizes, "experts_per_token": min(per_token, experts)}
    figures |= {
        "head_dim": _common(config, "head_dim") or max(1, hidden // heads),
        "intermediate_size": width,
        "feed_forward_matrices": matrices,
        **context_figures(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings")),
        "checkpoint_gb": _checkpoint_gb(config),
    }
    one = range(layers), Projection("self_attn.q_proj", 1)
    try:
        figures |= precision(config, [one], [experts > 0] * layers, mtp=False)
    except NotPredicted:
        figures |= {"weight_bytes": _LEAST_BYTES, "matrices_in": "bf16"}
    return Architecture(**figures)


def _common(config: ConfigJson, *keys: str) -> int:
    """Return the first figure of some keys; of a list its layers' greatest common divisor."""
    for key in keys:
        several = [one for one in config.items(key) if isinstance(one, int) and 0 < one < 2**63]
        if value := math.gcd(*several) if config.items(key) else config.number(key):
            return value
    return 0


def _checkpoint_gb(config: ConfigJson) -> float:
    """Return the size of the weights' files, by their index or their own; 0 without any."""
    folder = config.path.parent
    with suppress(BadInput):
        metadata = read_json(folder / INDEX).get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
        if isinstance(size, int | float) and 0 < size < 2**63:
            return size / 1e9
    # Beside these some have the same weights again, in their makers' form.
    files = [*folder.glob("model*.safetensors")] or folder.glob("*.safetensors")
    return sum(one.stat().st_size for one in files) / 1e9
