"""Make the priors of a study's candidates.

    simulated   the calibrated simulator, where trials are measured or replayed; physics with nothing fitted, everywhere
    sources     launches of earlier studies and of files, ``--from``

Each is a `Prior`. The search weights them by the marginal likelihood of the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autotune.engines import Candidate, CandidateSet

from ...prepare.candidates import Prepared
from ..gp.kernels import Prior
from .simulated import physical
from .sources import Source, keep, prior_of, sources_of

__all__ = ["Source", "coverage", "keep", "priors_of", "priors_of_more", "sources_of"]


def coverage(priors: Sequence[Prior], candidates: CandidateSet) -> str:
    """Return the number of candidates with a prior, and the published effects in it, as a sentence."""
    known = np.any([np.isfinite(prior.mean) for prior in priors], axis=0).sum() if priors else 0
    names = f" ({', '.join(prior.name for prior in priors)})" if known else ""
    rest = "" if known in (0, len(candidates)) else "; the others start at the mean of the launches"
    effects = dict.fromkeys(one.published for prior in priors for one in prior.figures)
    effects.pop("", None)
    said = f"; published: {', '.join(effects)}" if effects else ""
    return f"{known:,} of {len(candidates):,} candidates have a prior{names}{rest}{said}"


def priors_of(prepared: Prepared, sources: Sequence[Source] = ()) -> list[Prior]:
    """Return the priors of a study: earlier launches (`sources_of`), then predictions; none for a
    single candidate."""
    return [] if len(prepared.candidates) == 1 else _all(prepared, sources)


def priors_of_more(
    prepared: Prepared, sources: Sequence[Source] = ()
) -> Callable[[Sequence[Candidate]], Sequence[Prior]]:
    """Return a function that computes the same sources' priors of added candidates."""
    return lambda more: _all(replace(prepared, candidates=CandidateSet(more, 0)), sources)


def _all(prepared: Prepared, sources: Sequence[Source]) -> list[Prior]:
    earlier = (prior_of(source, prepared.candidates) for source in sources)
    return [*(prior for prior in earlier if prior is not None), *physical(prepared)]
