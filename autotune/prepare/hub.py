"""Describe any model on the Hugging Face Hub: by the ``config.json`` in the local cache, else by the Hub's own.

What the Hub gave is kept below ``~/.cache/autotune/models/``. A model that is known is never asked for.
"""

from __future__ import annotations

import difflib
import json
import os
import threading
from pathlib import Path

from autotune.engines import recognise
from autotune.engines.detect import cache_folder
from autotune.errors import BadInput, UnknownName
from autotune.serving.weights import MODEL_ID, hub_folder, snapshots
from autotune.space.cards import ModelCard
from autotune.space.huggingface import CONFIG, model_from_file
from autotune.space.library import Library
from autotune.study.home import write_atomically
from autotune.trial import Command

WITHIN_S = 10.0
"""The Hub answers in a fraction of a second, or a person is told what else would do."""
_NEAR = 0.8
"""Share of the letters of an id; less are alike by chance, as `Instruct` stands in many."""
_FILES = ("hf_quant_config.json", CONFIG)


def find_model(name: str, model_id: str | None, library: Library) -> ModelCard:
    """Find a model as `Library.model` does, else by its id in the local cache or on the Hub.

    Raises `BadInput` where neither describes it: what to provide, and the known ids that are written nearly so.
    """
    try:
        return library.model(name, model_id)
    except UnknownName:
        wanted = model_id or name
        if not MODEL_ID.fullmatch(wanted):
            raise
    cached = (folder / CONFIG for folder in snapshots(hub_folder(os.environ), wanted))
    path = next(filter(Path.is_file, cached), None) or cache_folder("models") / wanted.replace("/", "--") / CONFIG
    if not path.is_file() and (why := _fetch(wanted, path.parent)):
        by_lower = {known.lower(): known for known in library.models}
        near = [by_lower[name] for name in difflib.get_close_matches(wanted.lower(), by_lower, n=3, cutoff=_NEAR)]
        raise BadInput(
            f"unknown model {wanted!r} ({why}): give a folder that holds its config.json (--model ./FOLDER)"
            + (f"; known ids like it: {', '.join(near)}" if near else "")
        )
    return model_from_file(path).model_copy(update={"id": wanted, "aliases": []})


def know_model(command: Command, version: str | None, model_id: str | None, library: Library) -> None:
    """Have a library know the model that a command line serves; raises as `find_model`."""
    kind = recognise(command.argv, library)
    card = find_model(kind.parse(command, kind.version(version)).model, model_id, library)
    library.models.setdefault(card.id, card)


def _fetch(model_id: str, folder: Path) -> str:
    """Fetch a model's files from the Hub into a folder; returns why that failed, empty where it did not."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "it is not in the local cache, and HF_HUB_OFFLINE is set"
    files: dict[str, bytes] = {}
    told: list[str] = []
    # Looking up a name may block for longer than any timeout of the client's.
    asking = threading.Thread(target=lambda: told.append(_ask(endpoint, model_id, files)), daemon=True)
    asking.start()
    asking.join(WITHIN_S)
    if not told or told[0]:
        return told[0] if told else f"{endpoint} did not answer within {WITHIN_S:g} s"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
    except OSError as error:
        return f"what the Hub has of it cannot be kept in {folder}, {error.strerror}"
    return ""


def _ask(endpoint: str, model_id: str, files: dict[str, bytes]) -> str:
    """Ask for the files that describe a model; returns why there is no ``config.json``, empty where there is one."""
    import httpx  # slow to load, and few studies need it

    token = os.environ.get("HF_TOKEN")
    try:
        with httpx.Client(timeout=WITHIN_S, follow_redirects=True) as client:
            client.headers.update({"Authorization": f"Bearer {token}"} if token else {})
            for name in _FILES:
                answer = client.get(f"{endpoint}/{model_id}/resolve/main/{name}")
                if answer.is_success:
                    json.loads(answer.content)
                    files[name] = answer.content
    except httpx.HTTPError as error:
        return f"{endpoint} cannot be reached: {error or type(error).__name__}"
    except ValueError:
        return f"{endpoint} answers with something that is no JSON"
    private = "" if token else "; for a model that needs permission set HF_TOKEN"
    return "" if CONFIG in files else f"{endpoint} answers {answer.status_code} for it{private}"
