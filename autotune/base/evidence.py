"""How a number was obtained: measured, emulated, simulated or replayed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

EMULATOR_NAME = "autotune-emulate"
"""The ``Server`` header of an emulated engine, which distinguishes its numbers from measured
ones."""


class Evidence(StrEnum):
    """Source of a number; shown next to the number everywhere."""

    MEASURED = "measured"
    EMULATED = "emulated"
    SIMULATED = "simulated"
    REPLAYED = "replayed"

    @property
    def predicted(self) -> bool:
        """Return whether the figures come from the simulated node."""
        return self in (Evidence.SIMULATED, Evidence.EMULATED)


class Evidenced:
    """Mixin of records with an `evidence`, and of replayed ones the `evidence_of` the recording."""

    __slots__ = ()

    if TYPE_CHECKING:
        evidence: Evidence
        evidence_of: Evidence | None

    @property
    def origin(self) -> Evidence:
        """Return the evidence of the launches themselves; `Evidence.REPLAYED` if a recording does
        not name it."""
        return self.evidence_of or self.evidence

    @property
    def label(self) -> str:
        """Return the evidence as shown next to numbers: ``measured``, or e.g. ``REPLAYED, of
        SIMULATED launches``."""
        measured = Evidence.MEASURED
        now, then = (
            of if of in (None, measured) else of.upper() for of in (self.evidence, self.evidence_of)
        )
        return f"{now}, of {then} launches" if then else str(now)
