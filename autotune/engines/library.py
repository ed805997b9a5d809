"""Find and read the documents of ``search_spaces/``; every error names file and line."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from autotune.base import BadInput, Json, JsonObject, MalformedFile, StringDict, UnknownName

from .cards import Architecture, HardwareCard, ModelCard
from .config_json import CONFIG, model_from_file
from .entry import LOADER, parse_yaml, spaces_file, spaces_root
from .environment import ServerEnvironment
from .expression import names, template_names
from .schema import EngineCard, NarrowedEngine, Narrowing
from .serving import SharedFailures, SharedMemoryNames

_FIXED_NAMES = frozenset(
    {"model", "hardware", "gpus", "workload", "allowed", "True", "False", "None"}
)
_READ_NAMES = frozenset({"args", "env", "config", "servers"})
_CONDITIONS = frozenset({"when", "forbid", "expect", "active", "keeps", "gb"})
_OF_THE_MODEL = frozenset({"recipes", "reads"})
_OF_OPTIONS = frozenset({"loaded", "refusals"})
_MARK_NAMES = frozenset({"default", "baseline"})
_Location = tuple[str | int, ...]


def check(
    path: Path | None,
    engines: Sequence[str] = (),
    schemas: Mapping[str, type[BaseModel]] | None = None,
) -> list[Path]:
    """Check one file, a folder with the layout of ``search_spaces``, or the packaged ones and the
    installed engines'.

    `schemas` are of kinds that are defined above this package. Returns the files; raises
    `MalformedFile` at the first that is not valid.
    """
    root = path or spaces_root()
    if not root.exists():
        raise BadInput(f"{root}: no such file or folder")
    files = [root]
    if not root.is_file():
        files = sorted(file for kind in KINDS for _, file in documents(root, kind))
    if not files:
        raise BadInput(
            f"{root}: no folder {', '.join(KINDS)} with *.yaml files and no */engine.yaml in it"
        )
    if path is None:
        files += engine_cards()
    if engines:
        library = Library()
        cards = {library.engine(name).engine for name in engines}
        named = [*documents(root, "engines"), *((card.stem, card) for card in engine_cards())]
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


def _check_cases(path: Path, card: EngineCard) -> None:
    """Raise `MalformedFile` for a default or a search value that depends on a later knob."""
    right = "a case may only name earlier knobs"
    before = _FIXED_NAMES
    for name, knob in card.knobs.items():
        at = ("knobs", name)
        for i, entry in enumerate(knob.search):
            _check_names(path, (*at, "search", i, "when"), entry.when, before, right)
        for i, case in enumerate(knob.default):
            _check_names(path, (*at, "default", i, "when"), case.when, before, right)
            for used in template_names(case.value) if isinstance(case.value, str) else ():
                _check_names(path, (*at, "default", i, "value"), used, before, right)
        before |= {name}


def _check_engine(path: Path, card: EngineCard) -> None:
    """Raise `MalformedFile` for an unknown name in an engine card's expressions."""
    _check_cases(path, card)
    known = _FIXED_NAMES | set(card.knobs)
    right = "known: the knobs and model, hardware, gpus, workload, allowed"
    for location, part in _parts(card.model_dump()):
        section = location[0]
        key = location[-1]
        if key in _CONDITIONS and isinstance(part, str):
            here = _FIXED_NAMES if section in _OF_THE_MODEL else known
            if "gives_up" in location:
                here |= _MARK_NAMES
            elif section in _OF_OPTIONS:
                here |= _READ_NAMES
            _check_names(path, location, part, here, right)
        elif key == "value" and "read" in location:
            _check_names(path, location, part, known | _READ_NAMES, right)
        elif key in ("set", "on_node", "figures") and isinstance(part, Mapping):
            figures = key == "figures"
            allowed: Collection[str] = Architecture.model_fields if figures else card.knobs
            for name in sorted(part):
                if name not in allowed:
                    problem = f"unknown {'figure' if figures else 'knob'} {name!r}"
                    raise MalformedFile(path, problem, line_of(path, (*location, name)))


def _check_names(
    path: Path, location: _Location, text: str, known: frozenset[str], right: str
) -> None:
    unknown = sorted(names(text) - known)
    if unknown:
        raise MalformedFile(
            path, f"unknown name {unknown[0]!r} in {text!r}; {right}", line_of(path, location)
        )


def _parts(document: Any, location: _Location = ()) -> Iterator[tuple[_Location, Any]]:
    """Yield every entry of a document, at any depth, with its location."""
    entries = document.items() if isinstance(document, Mapping) else ()
    for key, part in enumerate(document) if isinstance(document, list) else entries:
        yield (*location, key), part
        yield from _parts(part, (*location, key))


Document = TypeVar("Document", bound=BaseModel)

LOCAL = "local"
"""Hardware name of the machine itself; `autotune.engines.machine` makes a card of it."""


def canonical(engine: str) -> str:
    """Return an engine's name in its card, for a name or an alias in any case."""
    return _KNOWN["aliases"].get(engine.lower(), engine.lower())


def documents(root: Path, kind: str) -> list[tuple[str, Path]]:
    """List the files of a kind in a folder with the layout of ``search_spaces``, each with its
    name.

    An engine's lie in a folder of its own (``vllm/engine.yaml``) or, as a user may have them,
    beside other engines' (``engines/vllm.yaml``).
    """
    beside = [(path.stem, path) for path in sorted((root / kind).glob("*.yaml"))]
    own = sorted(root.glob(f"*/{_ENGINE_FILES[kind]}")) if kind in _ENGINE_FILES else []
    return [*((path.parent.name, path) for path in own if path.parent.name not in KINDS), *beside]


def packaged(kind: str, name: str) -> Path:
    """Return the path of a packaged document; next to the card of an engine from another package.

    There it is called, e.g., ``llama_server.simulator.yaml``. No file need be there.
    """
    if kind not in _ENGINE_FILES:
        return spaces_root() / kind / f"{name}.yaml"
    own = spaces_root() / name / _ENGINE_FILES[kind]
    point = None if own.is_file() else engine_points().get(name)
    folder = _folder(point.module) if point else None
    return folder / f"{name}.{_ENGINE_FILES[kind]}" if folder else own


def read_document(path: Path) -> Json:
    """Read a YAML file whose top level is a mapping; raises `MalformedFile` with the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MalformedFile(path, "is not UTF-8 text") from error
    try:
        document = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = f"not YAML: {getattr(error, 'problem', error)}"
        raise MalformedFile(path, problem, mark.line + 1 if mark else None) from error
    if not isinstance(document, dict):
        raise MalformedFile(path, "the file is empty or not a mapping of keys to values", 1)
    return document


def load(path: Path, schema: type[Document]) -> Document:
    """Read and validate a document; raises `MalformedFile` naming the line of the first problem."""
    document = read_document(path)
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        # A misspelt key is also a missing one: name what stands there.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        where = ".".join(str(part) for part in first["loc"])
        missing = [".".join(map(str, e["loc"])) for e in error.errors() if e["type"] == "missing"]
        others = error.error_count() - len({where, *missing})
        more = f"; missing keys: {', '.join(missing)}" if missing else ""
        more += f" (and {others} more)" if others > 0 else ""
        problem = f"{where}: {first['msg'].removeprefix('Value error, ')}"
        if first["type"] == "missing":
            problem = ""
        elif first["type"] == "extra_forbidden":
            top_level = len(first["loc"]) == 1
            problem = (
                f"{where}: unknown key; known keys: "
                f"{', '.join(sorted(schema.model_fields)) if top_level else 'see the schema'}"
            )
        message = f"{problem}{more}".removeprefix(": ").removeprefix("; ")
        raise MalformedFile(path, message, line_of(path, first["loc"])) from error


def line_of(path: Path, location: Sequence[str | int]) -> int | None:
    """Return the 1-based line of a value in a YAML file, or of its nearest parent."""
    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=LOADER)
    if node is None:
        return None
    line: int = node.start_mark.line
    for part in location:
        if isinstance(node, yaml.MappingNode):
            # Pydantic's locations also hold names of union members, which are no keys: skip them.
            entry = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if entry:
                line = entry[0].start_mark.line
                node = entry[1]
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            node = node.value[part]
            line = node.start_mark.line
    return line + 1


def kind_of(path: Path) -> str:
    """Return the kind of a document, one of `KINDS`, by its keys; raises `MalformedFile`
    otherwise."""
    document = read_document(path)
    for key, kind in _KIND_BY_KEY.items():
        if key in document:
            return kind
    keys = ", ".join(f"{key!r} ({kind})" for key, kind in _KIND_BY_KEY.items())
    raise MalformedFile(path, f"unknown document: it has none of the keys {keys}", 1)


SCHEMAS: dict[str, type[BaseModel]] = {
    "engines": EngineCard,
    "models": ModelCard,
    "hardware": HardwareCard,
    "narrowings": Narrowing,
}
_KNOWN: dict[str, StringDict] = spaces_file("documents.yaml")
_KIND_BY_KEY = _KNOWN["kinds"]
_ENGINE_FILES = _KNOWN["engine_files"]
KINDS = tuple(_KIND_BY_KEY.values())
"""Kinds of documents. A kind is also the name of the folder that may hold its files."""
_COUNTED = re.compile(r"(?P<gpus>[1-9]\d{,3})\s*x\s*(?P<name>.+)", re.IGNORECASE)
"""A node by its number of GPUs, e.g. ``4xl40s``."""
_MAKERS = re.compile(r"nvidia|geforce|amd|instinct|[\s_-]+")


def _spelled(hardware: str) -> str:
    """Spell a GPU's name without its maker and without separators of words, e.g. ``rtx4090``."""
    return _MAKERS.sub("", hardware.lower())


class Library:
    """The documents of the user's own folders and files (see `kind_of`) and of the packaged folder;
    earlier ones win.

    `calibration` is the content of a ``coefficients.yaml`` that stands before all others; `traffic`
    holds workloads that were read from servers' metrics, by name.
    """

    def __init__(
        self,
        overlays: Sequence[Path] = (),
        files: Sequence[Path] = (),
        calibration: JsonObject | None = None,
        traffic: Mapping[str, JsonObject] | None = None,
    ) -> None:
        self.calibration = calibration
        self.traffic = traffic or {}
        self.roots = (*overlays, spaces_root())
        self._files = {path: kind_of(path) for path in files}

    def paths(self, kind: str) -> Iterator[Path]:
        """Yield the files of a kind: an overlay's hide packaged ones of that name; single files
        come last."""
        seen = set()
        named = [document for root in self.roots for document in documents(root, kind)]
        installed = engine_cards() if kind == "engines" else ()
        for name, path in [*named, *((path.stem, path) for path in installed)]:
            if name not in seen:
                seen.add(name)
                yield path
        yield from self.own_files(kind)

    def own_files(self, kind: str) -> list[Path]:
        return [path for path, its_kind in self._files.items() if its_kind == kind]

    @cached_property
    def models(self) -> dict[str, ModelCard]:
        return {
            card.id: card for card in (_cached(path, ModelCard) for path in self.paths("models"))
        }

    @cached_property
    def hardware(self) -> dict[str, HardwareCard]:
        return {
            card.name: card
            for card in (_cached(path, HardwareCard) for path in self.paths("hardware"))
        }

    @cached_property
    def engines(self) -> dict[str, EngineCard]:
        return {
            card.engine: card
            for card in (_cached(path, EngineCard) for path in self.paths("engines"))
        }

    @cached_property
    def monotone_memory(self) -> frozenset[str]:
        """Return the knobs, of any engine, whose larger values never need less GPU memory."""
        return frozenset(
            name
            for card in self.engines.values()
            for name, knob in card.knobs.items()
            if knob.monotone_memory
        )

    @cached_property
    def narrowed(self) -> dict[str, NarrowedEngine]:
        """Return the narrowings of space files, by engine."""
        narrowed = {}
        for path in self.paths("narrowings"):
            for name, part in load(path, Narrowing).narrow.items():
                card = self.engine(name)
                for knob in part.search:
                    if knob not in card.knobs:
                        line = line_of(path, ("narrow", name, "search", knob))
                        raise MalformedFile(
                            path, str(UnknownName(f"{name} knob", knob, card.knobs)), line
                        )
                narrowed[card.engine] = part
        return narrowed

    def model(self, name: str, model_id: str | None = None) -> ModelCard:
        """Find a model by id, alias, or path (its ``config.json``, else its last component); raises
        `UnknownName`."""
        if name.endswith((".yaml", ".yml")) and model_id is None:
            return load(Path(name), ModelCard)
        card = self._model_by_name(model_id or name)
        if card:
            return card
        path = Path(name)
        config = path if path.name == CONFIG else path / CONFIG
        if config.is_file():
            return model_from_file(config)
        card = self._model_by_name(name.rstrip("/").rsplit("/", 1)[-1])
        if card and model_id is None:
            return card
        raise UnknownName(
            "model",
            model_id or name,
            self.models,
            "Describe another one in search_spaces/models/<name>.yaml (or a --space folder's models/), "
            "pass such a file as the model, or give the folder of its config.json.",
        )

    def _model_by_name(self, name: str) -> ModelCard | None:
        cards = self.models.values()
        return next((c for c in cards if name.lower() in map(str.lower, c.names)), None)

    def node(self, name: str) -> HardwareCard:
        """Find a node's card by name or alias, with or without a count of GPUs (``4xl40s``), or
        read a YAML file."""
        if name.endswith((".yaml", ".yml")):
            return load(Path(name), HardwareCard)
        cards = {
            _spelled(known): card
            for card in self.hardware.values()
            for known in (card.name, *card.aliases)
        }
        if card := cards.get(_spelled(name)):
            return card
        if (counted := _COUNTED.fullmatch(name)) and (card := cards.get(_spelled(counted["name"]))):
            gpus = int(counted["gpus"])
            most = max(card.gpus, card.most_gpus)
            if gpus > most:
                raise BadInput(
                    f"{name}: a node of {card.name} has at most {most} GPU{'s' * (most > 1)}, so these are "
                    f"{-(-gpus // most)} nodes, and a server over several nodes is not searched; "
                    f"name one node ({card.name}), of which run --executor ray measures many at a time"
                )
            return card.model_copy(update={"gpus": gpus})
        # A GPU of nearly the same name is another product: a V100 is no H100. But its card is the
        # one to begin with.
        near = difflib.get_close_matches(name.lower(), self.hardware, n=1, cutoff=0)[0]
        hint = (
            f"{LOCAL!r} is this machine. Another node is a file of 12 lines: copy the nearest, "
            f"{packaged('hardware', near)}, change its figures, and pass it: --hw ./my-node.yaml"
        )
        raise UnknownName("hardware", name, [*self.hardware, LOCAL], hint, meant=None)

    def engine(self, name: str) -> EngineCard:
        """Find an engine's card by its name or alias."""
        name = canonical(name)
        if name not in self.engines:
            raise UnknownName("engine", name, self.engines)
        return self.engines[name]


@cache
def shared_failures() -> SharedFailures:
    """Return what any engine's log may say; an engine's own failures take precedence."""
    return load(spaces_root() / "failures.yaml", SharedFailures)


@cache
def shared_files() -> SharedMemoryNames:
    """Return the files in ``/dev/shm``, and the lock files, of the libraries of all engines."""
    return load(spaces_root() / "shared_memory.yaml", SharedMemoryNames)


@cache
def server_environment() -> ServerEnvironment:
    """Return which variables of a shell servers get."""
    return load(spaces_root() / "environment.yaml", ServerEnvironment)


@cache
def _cached(path: Path, schema: type[Document]) -> Document:
    return load(path, schema)


@cache
def engine_points() -> dict[str, EntryPoint]:
    """Return the registered engines by name, in lower case, without importing them."""
    return {point.name.lower(): point for point in entry_points(group="autotune.engines")}


@cache
def engine_cards() -> tuple[Path, ...]:
    """Find the cards next to registered modules, named as the entry point; ours are in
    ``search_spaces``."""
    found = []
    for _, point in sorted(engine_points().items()):
        if folder := _folder(point.module):
            cards = (folder / f"{name}.yaml" for name in (point.name, point.name.lower()))
            found += [card for card in cards if card.is_file()][:1]
    return tuple(found)


def _folder(module: str) -> Path | None:
    """Find the folder of a module; None if it cannot be found.

    Only its outermost package is asked for, as the import system imports the parents of any other.
    """
    outermost, *inner = module.split(".")
    spec = None
    with suppress(ImportError, ValueError):
        spec = find_spec(outermost)
    if not spec:
        return None
    if spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations)), *inner)
        return path if path.is_dir() else path.parent
    return Path(spec.origin).parent if spec.has_location and spec.origin else None
