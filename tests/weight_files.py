"""A model's weights as they lie in a folder or in the Hugging Face cache, of a few bytes each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

BYTES = bytes(300)


def shards(count: int) -> list[str]:
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def lay(folder: Path, names: Sequence[str], listed: Sequence[str] = ()) -> Path:
    """Write files, and the index of those that belong there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(BYTES)
    if listed:
        weights = {f"layer.{i}": name for i, name in enumerate(listed)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return folder


def cache(
    hub: Path,
    model_id: str,
    names: Sequence[str],
    listed: Sequence[str] = (),
    revision: str = "main",
) -> Path:
    """Lay a snapshot into a cache as huggingface_hub does: links to blobs, of which a broken-off
    one has none."""
    folder = hub / f"models--{model_id.replace('/', '--')}"
    lay(folder / "blobs", names)
    (folder / "blobs" / "abc.incomplete").write_bytes(BYTES)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / revision).write_text(f"commit-{revision}")
    snapshot = lay(folder / "snapshots" / f"commit-{revision}", (), listed)
    for name in names:
        (snapshot / name).symlink_to(folder / "blobs" / name)
    return snapshot
