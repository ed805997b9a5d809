"""What a table says of a launch that failed, as a value of the closed list of kinds."""

from __future__ import annotations

import re

from autotune.serving.logs import LogPatterns, failure_in
from autotune.trial import Failure, FailureKind

_KINDS = {kind.value: kind for kind in FailureKind}
_COMMON = (
    (re.compile(r"out[ _-]of[ _-]memory|\boom\b", re.IGNORECASE), FailureKind.OUT_OF_MEMORY),
    (re.compile(r"\btimed?[ _-]?out\b", re.IGNORECASE), FailureKind.TIMEOUT),
    (re.compile(r"unsupported|not (?:yet )?supported", re.IGNORECASE), FailureKind.UNSUPPORTED),
)
"""Words that mean one thing whatever the engine."""

RAN = frozenset({"false", "none", "no", "0", "nan", "null", "n/a", "-"})
"""What people write who mean that nothing failed; an empty cell says that."""

_EXCERPT_CHARACTERS = 500


def failure_of(text: str, patterns: LogPatterns) -> Failure:
    """The failure that a cell tells: a kind, with or without a message behind a colon, or words of a log.

    Args:
        patterns: of the row's engine; empty where it is not known.
    """
    head, _, message = text.partition(":")
    kind = _KINDS.get(re.sub(r"[\s-]+", "_", head.strip().lower()))
    if kind is not None:
        return Failure(kind, message.strip() or f"The table says {kind.value}, and nothing else.")
    found = failure_in(text, patterns)
    if found is not None:
        return found
    common = next((kind for pattern, kind in _COMMON if pattern.search(text)), FailureKind.CRASHED)
    return Failure(common, text, text[:_EXCERPT_CHARACTERS])
