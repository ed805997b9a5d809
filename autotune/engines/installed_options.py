"""The options of an installed engine: what its own ``--help`` shows, asked once per program and version."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from packaging.version import Version

from autotune.engines.detect import Installation, output_of
from autotune.engines.engine import Engine
from autotune.engines.help_text import parse_help
from autotune.engines.options import OptionTable
from autotune.notify import Notify
from autotune.space.entry import release_of
from autotune.study.home import expanded, write_atomically

HELP_S = 300.0
"""An engine imports PyTorch and its kernels before it prints its help: 20 to 60 s, more from a cold disk."""
# Wide, so that nothing is broken over lines; plain, so that no colours stand between the words.
_SETTINGS = {"COLUMNS": "10000", "NO_COLOR": "1", "PYTHON_COLORS": "0", "TERM": "dumb"}


def options_of(engine: Engine, installed: Installation, notify: Notify) -> tuple[OptionTable, str | None]:
    """The table of an installation's options, and a warning where it is not its own.

    Its help text is kept below `cache_folder`. Where the engine prints none, the shipped table of its version, or of
    the nearest older one, stands in.
    """
    if engine.card.installation.help is None:
        return stand_in(engine, installed.release), None
    near = nearest(engine, installed.release)
    shipped = engine.table(near)
    path = cache_folder() / _file_name(engine, installed)
    table = _parsed(engine, _cached(path, installed), shipped, installed)
    if table is None:
        notify(f"asking {engine.card.title} {installed.release} for its options (once; this takes up to a minute)")
        text = output_of(_help_command(engine, installed), HELP_S, _SETTINGS)
        table = _parsed(engine, text, shipped, installed)
        if table is not None and text is not None:
            _keep(path, installed, text)
    if table is not None:
        return table, None
    title, command = engine.card.title, " ".join(_help_command(engine, installed))
    what = "the shipped table" if near == installed.release else f"the shipped table of {near}, the nearest older one,"
    return stand_in(engine, installed.release), (
        f"{title} {installed.release} did not print its options ({command}); "
        f"{what} stands in, so that options which differ are noticed only when a server starts"
    )


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/autotune/options``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else expanded("~", "XDG_CACHE_HOME") / ".cache") / "autotune" / "options"


def nearest(engine: Engine, version: str) -> str:
    """The known version whose table serves a version: itself, else the nearest older one, else the oldest.

    A release candidate is served by its release's.
    """
    release = release_of(Version(version))
    older = [known for known in engine.card.versions if Version(known) <= release]
    return older[-1] if older else engine.card.versions[0]


def stand_in(engine: Engine, version: str) -> OptionTable:
    """The shipped table of a version, or of the nearest one under its name; the config file's keys are then open."""
    table = engine.table(nearest(engine, version))
    if table.version == version:
        return table
    return OptionTable(table.engine, version, table.generated_by, table.options, borrowed=True)


def _help_command(engine: Engine, installed: Installation) -> list[str]:
    program = list(installed.program)
    if engine.card.program[1:2] == ["-m"] and installed.python is not None:
        # A script may choose among several servers by the model; the module is the one.
        program = [str(installed.python), *engine.card.program[1:]]
    return [*program, *(engine.card.installation.help or ())]


def _file_name(engine: Engine, installed: Installation) -> str:
    told = json.dumps([installed.program, installed.version])
    return f"{engine.name}-{installed.release}-{hashlib.sha256(told.encode()).hexdigest()[:12]}.json"


def _cached(path: Path, installed: Installation) -> str | None:
    """The kept help text; None when there is none, or the file is damaged."""
    with suppress(OSError, ValueError):
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("version") == installed.version:
            text = document.get("help")
            return text if isinstance(text, str) else None
    return None


def _keep(path: Path, installed: Installation, text: str) -> None:
    document = {"program": list(installed.program), "version": installed.version, "help": text}
    # Without a cache the engine is asked again next time; that is no reason to fail.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(document))


def _parsed(engine: Engine, text: str | None, near: OptionTable, installed: Installation) -> OptionTable | None:
    if text is None:
        return None
    try:
        return parse_help(text, engine.card.installation.parser, near, installed.release)
    except ValueError:
        return None
