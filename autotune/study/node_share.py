"""What a study says of one of several nodes: a part of the content of ``recommendation.json``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class NodeShare(BaseModel):
    """One of several nodes that ran a study.

    Attributes:
        launches: that ran there, the failed ones included.
        baseline: the baseline's objective there, the geometric mean; None where it gave no figure.
        difference_percent: of that from the mean of the other nodes, as measured; negative is slower.
        offset_percent: what scores of the search are corrected by; 0 within noise.
        certain: whether it is off beyond noise: then nothing more was launched there.
        changed: only in recommendations of earlier versions: between which launches it changed, and by how much.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    node: str
    launches: int
    baseline: float | None
    difference_percent: float | None
    offset_percent: float
    certain: bool
    changed: dict[str, float] | None = None
