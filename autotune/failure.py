"""Why a configuration did not run: a value of a closed list of kinds, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FailureKind(StrEnum):
    """The closed list of ways in which a configuration, or its launch, fails."""

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


NOT_THE_CONFIGURATION = frozenset({FailureKind.PORT, FailureKind.INFRASTRUCTURE})
"""Kinds that say nothing about the configuration: the same command may run a minute later."""


class Phase(StrEnum):
    """What a server was doing when it failed; out of memory has another way out in each."""

    LOAD = "load"
    KV_CACHE = "kv_cache"
    GRAPH_CAPTURE = "graph_capture"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a configuration did not run.

    Attributes:
        kind: one of the closed list.
        message: what failed, why, and what to do; one or two sentences.
        log_excerpt: the first telling line of the engine's log.
        phase: what the server was doing, where that is known.
        lasting: another try would fail in the same way until somebody puts something right.
    """

    kind: FailureKind
    message: str
    log_excerpt: str = ""
    phase: Phase | None = None
    lasting: bool = False

    @property
    def blames_the_configuration(self) -> bool:
        return self.kind not in NOT_THE_CONFIGURATION

    def to_json(self) -> dict[str, Any]:
        """``phase`` and ``lasting`` only where they say something."""
        row: dict[str, Any] = {"kind": self.kind.value, "message": self.message, "log_excerpt": self.log_excerpt}
        if self.phase is not None:
            row["phase"] = self.phase.value
        return {**row, "lasting": True} if self.lasting else row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Failure:
        phase = Phase(row["phase"]) if row.get("phase") else None
        kind, lasting = FailureKind(row["kind"]), bool(row.get("lasting", False))
        return cls(kind, row["message"], row.get("log_excerpt", ""), phase, lasting)
