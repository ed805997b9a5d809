"""Finds the option table of an installed engine, asked of its own parser, or of a version without a table."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from autotune.engines import ask_parser
from autotune.engines.detect import Installation, output_of
from autotune.engines.engine import Engine
from autotune.engines.options import OptionTable
from autotune.errors import BadInput
from autotune.notify import Notify
from autotune.space.schema import Option
from autotune.study.home import expanded, write_atomically

PARSER_S = 300.0
"""An engine imports PyTorch and its kernels before it parses its options: 20 to 60 s, more from a cold disk."""
_PREFIX = re.compile(r"\d+(\.\d+)?")


def options_of(engine: Engine, installed: Installation, notify: Notify) -> tuple[OptionTable, str | None]:
    """Find the table of an installation's options; with a warning where another version's stands in.

    Its parser's answer is kept below `cache_folder`. Where the parser cannot be asked, the shipped table of its
    version, or of the nearest one, stands in.
    """
    if engine.card.installation.help is None:
        return stand_in(engine, installed.release), None
    near = engine.by_distance(installed.release)[0]
    shipped = engine.table(near)
    digest = hashlib.sha256(json.dumps([installed.program, installed.version]).encode()).hexdigest()[:12]
    path = cache_folder() / f"{engine.name}-{installed.release}-{digest}.json"
    # A file that is damaged, or of another version, is as good as none.
    with suppress(OSError, ValueError):
        document = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(document, dict) and document.get("version") == installed.version
        if known and (table := _table(document.get("options"), shipped, installed)) is not None:
            return table, None
    notify(f"asking {engine.card.title} {installed.release} for its options (once; this takes up to a minute)")
    rows = _asked(engine, installed)
    if (table := _table(rows, shipped, installed)) is not None:
        document = {"program": list(installed.program), "version": installed.version, "options": rows}
        # Without a cache the engine is asked again next time; that is no reason to fail.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(document))
        return table, None
    what = "the shipped table" if near == installed.release else f"the shipped table of {near}, the nearest one,"
    return stand_in(engine, installed.release), (
        f"{engine.card.title} {installed.release} did not tell its options ({' '.join(installed.program)}); "
        f"{what} stands in, so that options which differ are noticed only when a server starts"
    )


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/autotune/options``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else expanded("~", "XDG_CACHE_HOME") / ".cache") / "autotune" / "options"


def stand_in(engine: Engine, version: str) -> OptionTable:
    """Read the shipped table of a version, or borrow the nearest one's; then no key of a config file is refused."""
    table = engine.table(engine.by_distance(version)[0])
    return table if table.version == version else table.lent_to(version)


@lru_cache(maxsize=64)
def as_measured(engine: Engine, text: str) -> tuple[Engine, str]:
    """Load an engine as of a measured version, and the version in the form that ranges compare.

    A version that is not known keeps its own number, so that defaults, rules and figures see what was measured; only
    its options are borrowed (`Engine.table`). A prefix (``0.11``) is the known version that it begins. Words behind the
    number are left out (``0.17.post1.dev (pytorch backend)``). Raises `BadInput` where the text begins with no version.
    """
    word = (text.split() or [""])[0].strip().removeprefix("v").rstrip(".")
    known = engine.known_version(word)
    if known is not None and (_PREFIX.fullmatch(word) or Version(known) == Version(word)):
        return engine, known
    try:
        version = str(Version(word))
    except InvalidVersion as error:
        raise BadInput(f"{text!r} is no version of {engine.name}; write it as the engine tells it") from error
    return engine.installed(engine.program, engine.table(version)), version


def _asked(engine: Engine, installed: Installation) -> Any:
    """Run the program under `ask_parser`; None where no Python runs it, or it fails."""
    if installed.python is None:
        return None
    script, *words = installed.program
    program = [shutil.which(script) or script, *words]
    if engine.card.program[1:2] == ["-m"]:
        # A script may choose among several servers by the model; the module is the one.
        program = engine.card.program[1:]
    elif words[:1] == ["-m"]:
        program = words
    # `--help` and the like would print and end.
    program += [word for word in engine.card.installation.help or () if not word.startswith("-")]
    source = Path(ask_parser.__file__).read_text(encoding="utf-8")
    text = output_of([str(installed.python), "-c", source, *program], PARSER_S) or ""
    answer = next((line for line in text.splitlines() if line.startswith(ask_parser.MARK)), None)
    return json.loads(answer.removeprefix(ask_parser.MARK)) if answer else None


def _table(rows: Any, near: OptionTable, installed: Installation) -> OptionTable | None:
    """Make a table of an answer of `ask_parser`; None when it is malformed.

    Args:
        near: the table of a near version, which has the types that are functions of the engine's own.
    """
    if not isinstance(rows, list) or not rows:
        return None
    known = {flag: option for option in near.options for flag in option.flags}
    options: list[Option] = []
    try:
        for row in rows:
            before = next((known[flag] for flag in row["flags"] if flag in known), None)
            valued = row["action"] in {"store", "append"}
            kind = (row["type"] or (before.type if before else "str")) if valued else "str"
            # A default that is no plain value stays as it is in the near version.
            default = row["default"] if row["default"] is not None or before is None else before.default
            default = None if row["action"] == "store_true" else default
            options.append(Option.model_validate({**row, "type": kind, "default": default}))
    except (KeyError, TypeError, ValueError):
        return None
    # Another version may have other keys, and no parser knows them: none is refused.
    keys = near.config_keys if near.version == installed.release else frozenset()
    return OptionTable(near.engine, installed.release, tuple(options), keys)
