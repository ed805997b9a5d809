"""Validates space files beyond their schema: every name in an expression exists, every value makes sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from autotune.errors import BadInput, MalformedFile
from autotune.space.expression import names
from autotune.space.library import KINDS, SCHEMAS, Library, documents, engine_cards, kind_of, line_of, load, spaces_root
from autotune.space.schema import Case, EngineCard, Narrowing, Values

_FIXED_NAMES = frozenset({"model", "hardware", "gpus", "workload", "True", "False", "None"})
_READ_NAMES = frozenset({"args", "env", "config"})


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
    found = sorted(file for kind in KINDS for _, file in documents(path, kind))
    if not found:
        raise BadInput(f"{path}: none of the folders {', '.join(KINDS)} with *.yaml files is in it, no */engine.yaml")
    yield from found


def _check_engine(path: Path, card: EngineCard) -> None:
    known = _FIXED_NAMES | set(card.knobs)
    for location, text in _expressions(card):
        unknown = names(text) - known - (_READ_NAMES if "read" in location else set())
        if unknown:
            right = "known: the knobs and model, hardware, gpus, workload"
            problem = f"unknown name {sorted(unknown)[0]!r} in {text!r}; {right}"
            raise MalformedFile(path, problem, line_of(path, location))
    for location, text, before in _case_conditions(card):
        unknown = names(text) - _FIXED_NAMES - before
        if unknown:
            problem = f"unknown name {sorted(unknown)[0]!r} in {text!r}; a case may name the knobs that stand before it"
            raise MalformedFile(path, problem, line_of(path, location))
    for location, mapping in _settings(card):
        wrong = sorted(set(mapping) - set(card.knobs))
        if wrong:
            raise MalformedFile(path, f"unknown knob {wrong[0]!r}", line_of(path, (*location, wrong[0])))


def _case_conditions(card: EngineCard) -> Iterator[tuple[tuple[str | int, ...], str, frozenset[str]]]:
    """Conditions of defaults and search values, with the knobs that they may name: those that stand before."""
    before: frozenset[str] = frozenset()
    for name, knob in card.knobs.items():
        for key, entries in (("default", knob.default), ("search", knob.search)):
            for i, entry in enumerate(entries if isinstance(entries, list) else []):
                if isinstance(entry, Case | Values):
                    yield ("knobs", name, key, i, "when"), entry.when, before
        before |= {name}


def _expressions(card: EngineCard) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for name, knob in card.knobs.items():
        yield ("knobs", name, "active"), knob.active
        for i, reading in enumerate(knob.read):
            yield ("knobs", name, "read", i), reading.value
        for i, emit in enumerate(knob.emit):
            yield ("knobs", name, "emit", i, "when"), emit.when
    conditions = {"rules": "forbid", "effects": "when", "always": "when", "requires": "expect", "starts": "when"}
    for section, key in conditions.items():
        for i, entry in enumerate(getattr(card, section)):
            yield (section, i, key), getattr(entry, key)


def _settings(card: EngineCard) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, object]]]:
    yield ("on_node",), card.on_node
    for i, effect in enumerate(card.effects):
        yield ("effects", i, "set"), effect.set
    for i, start in enumerate(card.starts):
        yield ("starts", i, "set"), start.set
