"""Validates space files beyond their schema: every name in an expression exists, every value makes sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autotune.errors import BadInput, MalformedFile
from autotune.space.expression import names, template_names
from autotune.space.library import KINDS, SCHEMAS, Library, documents, engine_cards, kind_of, line_of, load, spaces_root
from autotune.space.schema import Case, EngineCard, Narrowing, Values

_FIXED_NAMES = frozenset({"model", "hardware", "gpus", "workload", "True", "False", "None"})
_READ_NAMES = frozenset({"args", "env", "config", "servers"})
_CONDITIONS = frozenset({"when", "forbid", "expect", "active", "keeps"})
_MARK_NAMES = frozenset({"default", "baseline"})
_Location = tuple[str | int, ...]


def check(
    path: Path | None, engines: Sequence[str] = (), schemas: Mapping[str, type[BaseModel]] | None = None
) -> list[Path]:
    """Check one file, a folder laid out like ``search_spaces``, or the packaged ones and the installed engines'.

    Args:
        schemas: of kinds of documents that are defined above this package, e.g. ``workloads``.

    Returns the files that are valid; raises `MalformedFile` naming file and line at the first that is not.
    """
    files = [*_files(path or spaces_root()), *(() if path else engine_cards())]
    if engines:
        library = Library()
        cards = {library.engine(name).engine for name in engines}
        named = [*documents(path or spaces_root(), "engines"), *((card.stem, card) for card in engine_cards())]
        files = [file for name, file in named if name.lower() in cards and file in files]
    known = {**SCHEMAS, **(schemas or {})}
    for file in files:
        kind = kind_of(file)
        if kind not in known:
            raise MalformedFile(file, f"a document of {kind}/ cannot be checked here", 1)
        document = load(file, known[kind])
        if isinstance(document, EngineCard):
            _check_engine(file, document)
        elif isinstance(document, Narrowing):
            _ = Library(files=(file,)).narrowed
    return files


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise BadInput(f"{path}: no such file or folder")
    files = sorted(file for kind in KINDS for _, file in documents(path, kind))
    if not files:
        raise BadInput(f"{path}: none of the folders {', '.join(KINDS)} with *.yaml files is in it, no */engine.yaml")
    yield from files


def _check_engine(path: Path, card: EngineCard) -> None:
    for location, text, before in _case_conditions(card):
        right = "a case may name the knobs that stand before it"
        _check_names(path, location, text, _FIXED_NAMES | before, right)
    known = _FIXED_NAMES | set(card.knobs)
    right = "known: the knobs and model, hardware, gpus, workload"
    for location, part in _parts(card.model_dump()):
        if location[-1] in _CONDITIONS and isinstance(part, str):
            here = _FIXED_NAMES if location[0] == "recipes" else known
            _check_names(path, location, part, here | (_MARK_NAMES if "gives_up" in location else set()), right)
        elif location[-1] == "value" and "read" in location:
            _check_names(path, location, part, known | _READ_NAMES, right)
        elif location[-1] in ("set", "on_node") and isinstance(part, Mapping):
            wrong = sorted(set(part) - set(card.knobs))
            if wrong:
                raise MalformedFile(path, f"unknown knob {wrong[0]!r}", line_of(path, (*location, wrong[0])))


def _check_names(path: Path, location: _Location, text: str, known: frozenset[str], right: str) -> None:
    unknown = sorted(names(text) - known)
    if unknown:
        raise MalformedFile(path, f"unknown name {unknown[0]!r} in {text!r}; {right}", line_of(path, location))


def _case_conditions(card: EngineCard) -> Iterator[tuple[_Location, str, frozenset[str]]]:
    """Conditions of defaults and search values, with the knobs that they may name: those that stand before."""
    before: frozenset[str] = frozenset()
    for name, knob in card.knobs.items():
        for key, entries in (("default", knob.default), ("search", knob.search)):
            for i, entry in enumerate(entries if isinstance(entries, list) else []):
                if isinstance(entry, Case | Values):
                    yield ("knobs", name, key, i, "when"), entry.when, before
                if isinstance(entry, Case) and isinstance(entry.value, str):
                    for used in template_names(entry.value):
                        yield ("knobs", name, key, i, "value"), used, before
        before |= {name}


def _parts(document: Any, location: _Location = ()) -> Iterator[tuple[_Location, Any]]:
    """Every entry of a document, at any depth, with where it stands."""
    entries = document.items() if isinstance(document, Mapping) else ()
    for key, part in enumerate(document) if isinstance(document, list) else entries:
        yield (*location, key), part
        yield from _parts(part, (*location, key))
