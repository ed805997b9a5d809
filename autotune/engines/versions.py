"""An engine as a version that was measured somewhere, whether or not a table of its options is shipped."""

from __future__ import annotations

import re
from functools import lru_cache

from packaging.version import InvalidVersion, Version

from autotune.engines.engine import Engine
from autotune.engines.installed_options import nearest
from autotune.engines.options import OptionTable
from autotune.errors import BadInput

_PREFIX = re.compile(r"\d+(\.\d+)?")


@lru_cache(maxsize=64)
def as_measured(engine: Engine, text: str) -> tuple[Engine, str]:
    """An engine that parses as a measured version does, and that version as everything else compares it.

    A version that is not known keeps its own number, so that defaults, rules and figures see what was measured; only
    its options are borrowed: of the known version of the same release (``1.2.0rc5``: 1.2.0), else of the nearest older
    one, else of the oldest (`nearest`). A prefix (``0.11``) is the known version that it begins. Words behind the
    number are left out (``0.17.post1.dev (pytorch backend)``).

    Raises:
        BadInput: the text begins with no version.
    """
    word = (text.split() or [""])[0].strip().removeprefix("v").rstrip(".")
    try:
        wanted = Version(word)
    except InvalidVersion as error:
        raise BadInput(f"{text!r} is no version of {engine.name}; write it as the engine tells it") from error
    same = [known for known in engine.card.versions if Version(known) == wanted]
    begun = [known for known in engine.card.versions if Version(known).release[: len(wanted.release)] == wanted.release]
    if same or (begun and _PREFIX.fullmatch(word)):
        return engine, (same or begun)[-1]
    release = [known for known in begun if Version(known).release == wanted.release]
    table = engine.table(release[-1] if release else nearest(engine, str(wanted)))
    borrowed = OptionTable(table.engine, str(wanted), table.generated_by, table.options, borrowed=True)
    return engine.installed(engine.program, borrowed), str(wanted)
