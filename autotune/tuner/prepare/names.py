"""Resolve typed names of models, knobs and engine versions.

Any model on the Hugging Face Hub will do: it is described by the ``config.json`` in the local
cache, else by the Hub's own, which is kept below ``~/.cache/autotune/models/``. A model that is
known is never asked for.

A knob answers to its own name and to the engines' options that set it, in any spelling of the
engine's parser (``max-num-seqs``, ``tp``). Which options those are is read from the engine's card,
from ``emit`` and ``read``.
"""

import difflib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from autotune.base import BadInput, UnknownName, frozen, write_atomically
from autotune.engines import Command, Engine, Library, ModelCard, name_of, recognise
from autotune.engines import engine as load
from autotune.engines.config_json import CONFIG, INDEX, model_from_file
from autotune.engines.installed import cache_folder
from autotune.engines.schema import Knob
from autotune.servers.weights import MODEL_ID, hub_folder, snapshots


@frozen
class _Alias:
    """An option's name, and the knob that it sets.

    Attributes:
        rank: 0: the option takes the knob's value; 1: it is always written with the knob; 2: under
            a condition, or it is a key of a longer name; 3: the knob's value depends on it.
    """

    name: str
    knob: str
    rank: int


def knob_named(text: str, engines: Sequence[Engine], library: Library) -> str:
    """Return the knob of a name: its own, or an option that takes the knob's value.

    Names of engines that are not searched count where the others know nothing of the kind. Raises
    `UnknownName` where nothing is called so, or several knobs are, `BadInput` where the option
    takes another value than the knob.
    """
    knobs = {name for kind in engines for name in kind.card.knobs}
    aliases = [_Alias(knob, knob, 0) for knob in knobs]
    aliases += [alias for kind in engines for alias in _aliases(kind)]
    meant = _meant(_plain(text), aliases)
    if not meant:
        others = library.engines.keys() - {kind.name for kind in engines}
        for name in sorted(others):
            # Skip an engine that cannot be loaded: it is not searched.
            with suppress(BadInput):
                aliases += [alias for alias in _aliases(load(name, library)) if alias.knob in knobs]
        meant = _meant(_plain(text), aliases)
    if not meant:
        near = difflib.get_close_matches(
            _plain(text), {a.name for a in aliases if len(a.name) > 5}, n=1
        )
        raise UnknownName("knob", text, knobs, meant=near)
    rank = min(alias.rank for alias in meant)
    knob, *others_meant = sorted({alias.knob for alias in meant if alias.rank == rank})
    if others_meant:
        raise UnknownName("knob", text, knobs, meant=[knob, *others_meant])
    if rank > 0:
        help_ = next(kind.card.knobs[knob].help for kind in engines if knob in kind.card.knobs)
        raise BadInput(f"--set {text}: did you mean {knob!r} ({help_})?")
    return knob


def _meant(name: str, aliases: Sequence[_Alias]) -> list[_Alias]:
    """Return the aliases of this name, or, if none takes the knob's value, those that begin with
    its words."""
    meant = [alias for alias in aliases if alias.name == name]
    if not any(alias.rank == 0 for alias in meant):
        # Take the beginning of a name, as the engines' own parsers do.
        meant += [alias for alias in aliases if alias.name.startswith(f"{name}_")]
    return meant


def _aliases(engine: Engine) -> Iterator[_Alias]:
    """Return the names of an engine's options that set a knob, in all spellings of its newest
    version's parser."""
    spelled = {}
    for option in engine.table(engine.version()).options:
        spellings = {*option.names, *map(_plain, option.flags)}
        spelled.update(dict.fromkeys(spellings, spellings))
    for knob_name, knob in engine.card.knobs.items():
        for text, rank in _options_of(knob_name, knob):
            name = _plain(text)
            for spelling in (name, *spelled.get(name, ())):
                yield _Alias(spelling, knob_name, rank)
            if "." in name:
                yield _Alias(name.rpartition(".")[2], knob_name, 2)


def _options_of(name: str, knob: Knob) -> Iterator[tuple[str, int]]:
    """Return the options that set one knob, each with its rank as in `_Alias`."""
    value = f"{{{name}}}"
    for addition in knob.emit:
        flags = [
            pair
            for pair in zip_longest(addition.args, addition.args[1:])
            if pair[0].startswith("--")
        ]
        for option, setting in [*flags, *addition.config.items()]:
            yield option, 2 if addition.when != "True" else 0 if setting == value else 1
        for variable in addition.env:
            yield variable, 2
    for reading in knob.read:
        for option in re.findall(r"\bargs\.(\w+)", reading.value):
            yield option, 0 if reading.value == f"args.{option}" else 3


def _plain(option: str) -> str:
    """Return an option's name without dashes, with underscores for hyphens, in lower case."""
    return name_of(option.strip()).lower()


def engine_and_version(text: str, library: Library) -> tuple[str, str | None]:
    """Split ``--engine NAME`` or ``NAME==VERSION`` into the engine's name and the typed version."""
    name, equals, version = (part.strip() for part in text.partition("=="))
    if (equals and not version) or re.search(r"[<>=~!]", name):
        raise BadInput(f"--engine {text!r}: write engine==version, e.g. vllm==0.32.0")
    return library.engine(name).engine, version or None


WITHIN_S = 10.0
"""Time limit of the Hub, which normally answers in a fraction of a second."""
_NEAR = 0.8
"""Share of equal letters in similar ids; lower shares occur by chance: many ids have `Instruct`."""
_FILES = ("hf_quant_config.json", CONFIG)


def find_model(name: str, model_id: str | None, library: Library) -> ModelCard:
    """Find a model as `Library.model` does, else by its id in the local cache or on the Hub.

    Raises `BadInput` where neither describes it: what to provide, and the known ids that are
    written nearly so.
    """
    try:
        return library.model(name, model_id)
    except UnknownName:
        wanted = model_id or name
        if not MODEL_ID.fullmatch(wanted):
            raise
    cached = (folder / CONFIG for folder in snapshots(hub_folder(os.environ), wanted))
    own_copy = cache_folder("models") / wanted.replace("/", "--") / CONFIG
    path = next(filter(Path.is_file, cached), own_copy)
    if not path.is_file() and (why := _fetch(wanted, path.parent)):
        by_lower = {known.lower(): known for known in library.models}
        similar = difflib.get_close_matches(wanted.lower(), by_lower, n=3, cutoff=_NEAR)
        names = ", ".join(by_lower[lower] for lower in similar)
        hint = f"; known ids like it: {names}" if names else ""
        raise BadInput(
            f"unknown model {wanted!r} ({why}): give a folder that holds its config.json "
            f"(--model ./FOLDER){hint}"
        )
    card = model_from_file(path)
    if card.unpredicted and path == own_copy and not path.with_name(INDEX).is_file():
        # Only the index tells its weights; without it they are unknown.
        _fetch(wanted, path.parent, (INDEX,))
        card = model_from_file(path)
    return card.with_fields(id=wanted, aliases=[])


_DRAFTS = ("eagle3", "eagle", "dspark", "dflash", "assistant", "mtp")
"""Words in the classes of drafts, by which their `draft_method` is known."""


def drafts_told(names: Iterable[object], library: Library) -> list[str]:
    """Return ``NAME=WORD`` for each draft whose config.json tells how it drafts."""
    found = []
    for name in map(str, filter(None, names)):
        with suppress(BadInput):
            told = " ".join(find_model(name, None, library).architectures).lower()
            found += [f"{name}={word}" for word in _DRAFTS if word in told][:1]
    return found


def know_model(
    command: Command, version: str | None, model_id: str | None, library: Library
) -> None:
    """Add the model of a command line to a library; raises as `find_model`."""
    kind = recognise(command.argv, library)
    card = find_model(kind.parse(command, kind.version(version)).model, model_id, library)
    library.models.setdefault(card.id, card)


def _fetch(model_id: str, folder: Path, names: Sequence[str] = _FILES) -> str:
    """Fetch a model's files from the Hub into a folder; returns the reason of a failure, else
    empty."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "it is not in the local cache, and HF_HUB_OFFLINE is set"
    files: dict[str, bytes] = {}
    problems = []
    # Ask in a thread: the lookup of a name may block for longer than any timeout of the client.
    asking = threading.Thread(
        target=lambda: problems.append(_ask(endpoint, model_id, names, files)), daemon=True
    )
    asking.start()
    asking.join(WITHIN_S)
    problem = problems[0] if problems else f"{endpoint} did not answer within {WITHIN_S:g} s"
    if problem:
        return problem
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
    except OSError as error:
        return f"the Hub's file cannot be stored in {folder}, {error.strerror}"
    return ""


def _ask(endpoint: str, model_id: str, names: Sequence[str], files: dict[str, bytes]) -> str:
    """Request files that describe a model; returns why the last is not there, else empty."""
    import httpx  # slow to load, and few studies need it

    token = os.environ.get("HF_TOKEN")
    try:
        with httpx.Client(timeout=WITHIN_S, follow_redirects=True) as client:
            client.headers.update({"Authorization": f"Bearer {token}"} if token else {})
            for name in names:
                answer = client.get(f"{endpoint}/{model_id}/resolve/main/{name}")
                if answer.is_success:
                    json.loads(answer.content)
                    files[name] = answer.content
    except httpx.HTTPError as error:
        return f"{endpoint} cannot be reached: {error or type(error).__name__}"
    except ValueError:
        return f"{endpoint} does not answer with JSON"
    private = "" if token else "; set HF_TOKEN for a gated model"
    return "" if name in files else f"{endpoint} answers {answer.status_code} for it{private}"
