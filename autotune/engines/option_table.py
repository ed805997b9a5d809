"""Option tables: ``search_spaces/<engine>/options/<version>.json``.

The newest version's is whole, each other one says what differs from the next newer.
``scripts/snapshot_options.py`` writes them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from packaging.version import Version
from pydantic import ValidationError
from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator

from autotune.base import BadInput, Json, JsonObject, MalformedFile, by_key

from .entry import Entry
from .schema import Option


class FileKey(Entry):
    """Key of an engine's own config file; nested ones are dotted."""

    key: str
    check: Json = {"type": "any"}
    """Condition on its values, as a schema of pydantic's core; a mapping with listed keys may allow
    others (``extra_behavior``)."""
    null: bool = False
    default: Any = None


@dataclass(frozen=True)
class OptionTable:
    """Command-line options of one engine version, as its parser declares them.

    Attributes:
        file_keys: those of the engine's own config file; empty = none, or not known which.
        borrowed: from another version: an option or a value that it lacks is passed on and not
            refused.
    """

    engine: str
    version: str
    options: tuple[Option, ...]
    file_keys: tuple[FileKey, ...] = ()
    borrowed: bool = False

    def __hash__(self) -> int:
        # An option's default may be a list.
        return hash((self.engine, self.version))

    @property
    def defaults(self) -> Json:
        """Map every name of every option to its default."""
        return {
            name: False
            if option.default is None and option.action == "store_true"
            else option.default
            for option in self.options
            for name in option.names
        }

    @cached_property
    def config_keys(self) -> frozenset[str]:
        """Return the keys of the config file, nested ones dotted."""
        return frozenset(one.key for one in self.file_keys)

    @cached_property
    def _file_validator(self) -> SchemaValidator:
        below = by_key((one.key.rpartition(".")[0], one) for one in self.file_keys)

        def schema(one: FileKey) -> Json:
            found = one.check
            if one.key in below:
                fields = {
                    part.key.rpartition(".")[2]: {
                        "type": "typed-dict-field",
                        "schema": schema(part),
                        "required": False,
                    }
                    for part in below[one.key]
                }
                found = {"extra_behavior": "forbid", **found, "type": "typed-dict"}
                found["fields"] = fields
            return {"type": "nullable", "schema": found} if one.null else found

        return SchemaValidator(cast(CoreSchema, schema(FileKey(key=""))))

    def file_refusals(self, document: JsonObject) -> list[ErrorDetails]:
        """List what this version refuses in a config file, in pydantic's words as the engine does;
        nothing if its keys are not known."""
        try:
            if self.file_keys:
                self._file_validator.validate_python(document)
        except ValidationError as error:
            return error.errors(include_url=False)
        return []

    @cached_property
    def flags(self) -> frozenset[str]:
        """Return every spelling, with those that switch off."""
        return frozenset(flag for option in self.options for flag in option.spellings)

    def borrowed_by(self, version: str, others: Sequence[OptionTable] = ()) -> OptionTable:
        """Build the table of a version without one, with others' options if this one has none of
        their spellings.

        No option, no choice of an option and no key of a config file is refused.
        """
        options = list(self.options)
        for table in others:
            known = {flag for option in options for flag in option.spellings}
            # Others stand in front, so that this table's default of a name counts.
            options = [
                *(option for option in table.options if known.isdisjoint(option.spellings)),
                *options,
            ]
        free = tuple(option.model_copy(update={"choices": ()}) for option in options)
        return OptionTable(self.engine, version, free, borrowed=True)


def suggestion(unknown: Sequence[str], known: Collection[str]) -> str:
    """Return a question with names similar to unknown ones, none that switches the other way; empty
    if none is similar."""
    near = [
        name
        for word in unknown
        for name in difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.8)
        if not {"enable", "disable", "no"} & ({*name.split("-")} ^ {*word.split("-")})
    ]
    return f"; did you mean {', '.join(near)}?" if near else ""


def read_rows(find: Callable[[str], Path], version: str) -> tuple[Json, list[Json]]:
    """Read a version's document and all its options, and keys of its config file.

    A document that ``differs_from`` a newer version has that version's rows but those that it is
    ``without``. A row of a known name changes the fields that it names, to none by null.

    Args:
        find: the file of a version.
    """
    path, rows = find(version), dict[str, Json]()
    document = json.loads(path.read_text(encoding="utf-8"))
    if newer := document.get("differs_from"):
        if Version(newer) <= Version(version):
            raise MalformedFile(path, f"differs_from: {newer} is not newer than {version}")
        rows = {row_name(row): row for row in read_rows(find, newer)[1]}
    for name in document.get("without", ()):
        del rows[name]
    for row in document["options"]:
        changed = {**rows.get(row_name(row), {}), **row}
        rows[row_name(row)] = {key: value for key, value in changed.items() if value is not None}
    return document, sorted(rows.values(), key=lambda row: str(row.get("dest", row_name(row))))


def row_name(row: JsonObject) -> str:
    """Return the key of the config file, or the first spelling of the option, that a row is of."""
    return str(row.get("key") or row["flags"][0])


@cache
def read_table(engine: str, version: str, roots: tuple[Path, ...]) -> OptionTable:
    """Read a version's table; raises `BadInput` for none, ``KeyError`` or ``ValueError`` for a
    malformed one."""

    def find(version: str) -> Path:
        inside = (
            Path(engine, "options", f"{version}.json"),
            Path("engines/options", f"{engine}-{version}.json"),
        )
        for root in roots:
            for file in inside:
                if (path := root / file).is_file():
                    return path
        raise BadInput(
            f"no table of options for {engine} {version}: {roots[-1] / inside[0]} does not exist"
        )

    document, rows = read_rows(find, version)
    for row in rows if document.get("pairs") else ():
        if row.get("action") == "boolean_optional":
            row["action"] = "enable_disable"
    options = tuple(Option.model_validate(row) for row in rows if "key" not in row)
    keys = tuple(FileKey.model_validate(row) for row in rows if "key" in row)
    return OptionTable(engine, version, options, keys)
