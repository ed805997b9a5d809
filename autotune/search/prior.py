"""Priors: predictions of the candidates' scores before the first launch."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.arrays import Floats


@dataclass(frozen=True, slots=True)
class Prior:
    """One source's prediction of the objective for every candidate. It may be wrong: trust in it is learned.

    Attributes:
        name: of the source, for people, e.g. ``the simulator`` or ``study v32-night``.
        mean: shape ``(candidates,)``: natural logarithm of the objective, more is better. Only differences matter;
            not finite = not known.
        sd: shape ``(candidates,)``: standard deviation of ``ln(truth / prediction)`` of each candidate by itself,
            without what all candidates of an engine share; None = not known.
        p_starts: shape ``(candidates,)``: the probability that the configuration starts; None = nothing known.
        launch_s: shape ``(candidates,)``: seconds that a launch takes, its loads included; not finite, or None = not
            known.
    """

    name: str
    mean: Floats
    sd: Floats | None = None
    p_starts: Floats | None = None
    launch_s: Floats | None = None

    def __post_init__(self) -> None:
        shape = self.mean.shape
        if len(shape) != 1:
            raise ValueError(f"prior {self.name!r}: the mean has shape {shape}, expected one value per candidate")
        for what, values in (("sd", self.sd), ("p_starts", self.p_starts), ("launch_s", self.launch_s)):
            if values is not None and values.shape != shape:
                raise ValueError(f"prior {self.name!r}: {what} has shape {values.shape}, the mean has {shape}")
