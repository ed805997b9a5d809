"""Sets of configurations: as published, at published sizes, and at the defaults of transformers'
classes. Each is a folder with a ``config.json`` for every model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PUBLISHED = HERE.parents[2] / "shared" / "data" / "model_configs"
SETS = ("published", "sizes", "defaults")
_SIZE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)


def write_sets(folder: Path, environment: Path) -> dict[str, list[Path]]:
    """Write every set below a folder, or find it there; of each set its models' folders.

    Args:
        environment: whose transformers gives the defaults.
    """
    for name, documents in (("published", _published()), ("sizes", _sizes())):
        for model, files in documents:
            for file, keys in files.items():
                path = folder / name / model / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(keys, indent=1))
    if not (folder / "defaults").is_dir():
        script = [str(environment / "bin" / "python"), str(HERE / "save_defaults.py")]
        subprocess.run([*script, str(folder / "defaults")], check=True)
    return {
        name: sorted(path.parent for path in (folder / name).glob("*/config.json")) for name in SETS
    }


Files = Mapping[str, Mapping[str, Any]]


def _published() -> Iterator[tuple[str, Files]]:
    """Files of the Hub; code that lies beside them there is not here."""
    for folder in sorted(PUBLISHED.glob("*/")):
        files = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
        for keys in files.values():
            keys.pop("auto_map", None)
        yield folder.name, files


def _sizes() -> Iterator[tuple[str, Files]]:
    document = yaml.safe_load((HERE / "published_sizes.yaml").read_text())
    for name, model in document["models"].items():
        figures = dict(zip(_SIZE, model["size"], strict=True))
        keys = {
            "architectures": [model["class"]],
            "model_type": model["type"],
            "dtype": "bfloat16",
            **{key: value for key, value in figures.items() if value is not None},
            **model.get("more", {}),
        }
        yield name, {"config.json": keys}
        for how in model.get("as", []):
            quantised = {**keys, "quantization_config": document["quantisations"][how]}
            yield f"{name}-{how}", {"config.json": quantised}
