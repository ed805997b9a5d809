"""How a configuration fails: a value, never an exception."""

import re
from dataclasses import asdict
from enum import StrEnum

from autotune.base import Json, frozen


class FailureKind(StrEnum):
    """The closed list of failure kinds of a configuration or its launch."""

    RULE = "rule"
    BAD_ARGUMENT = "bad_argument"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    PORT = "port"
    LOAD_ERRORS = "load_errors"
    ACCURACY = "accuracy"
    INFRASTRUCTURE = "infrastructure"


class Phase(StrEnum):
    """Phase of a server at a failure; the remedy of out of memory depends on it."""

    LOAD = "load"
    KV_CACHE = "kv_cache"
    GRAPH_CAPTURE = "graph_capture"
    SERVING = "serving"


_DOING = {
    Phase.LOAD: "while loading the weights",
    Phase.KV_CACHE: "while making room for the KV cache",
    Phase.GRAPH_CAPTURE: "while capturing graphs",
    Phase.SERVING: "under load",
}


@frozen
class Failure:
    """Reason why a configuration did not run.

    Attributes:
        message: what failed, why, and what to do; one or two sentences.
        log_excerpt: the first telling line of the engine's log.
        phase: what the server was doing, where that is known.
        lasting: another try would fail in the same way until somebody puts something right.
        unexplained: no pattern knows the log's words, so they may be the machine's fault as well.
    """

    kind: FailureKind
    message: str
    log_excerpt: str = ""
    phase: Phase | None = None
    lasting: bool = False
    unexplained: bool = False

    @property
    def blames_the_configuration(self) -> bool:
        """False for kinds independent of the configuration: the same command may run a minute
        later."""
        return self.kind not in (FailureKind.PORT, FailureKind.INFRASTRUCTURE)

    @property
    def may_be_external(self) -> bool:
        """Return whether somebody else may have ended the server: it had been ready, and its log does
        not explain its end."""
        return self.unexplained and self.phase is Phase.SERVING

    @property
    def summary(self) -> str:
        """Return the kind, and the server's phase if known."""
        return f"{self.kind.value} {_DOING[self.phase]}" if self.phase else self.kind.value

    def to_json(self) -> Json:
        """Return the JSON object, with ``phase``, ``lasting`` and ``unexplained`` only if set."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value or key in ("kind", "message", "log_excerpt")
        }


def without_numbers(text: str) -> str:
    """Return a failure's words without process numbers, addresses, times and sizes, which differ
    between launches."""
    return re.sub(r"0x[0-9a-f]+|[0-9]+", "", text)
