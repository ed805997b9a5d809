"""Warm start: what earlier launches say of a study's candidates.

An earlier study may be of another model, engine version, node or load. Its launches are fitted by the search's own
Gaussian process, over the knobs that they vary; what the process predicts of the candidates, and how surely, is an
`Prior`, whose trust the search learns. Failures say which candidates may not start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.arrays import Floats
from autotune.search.feasibility import p_starts
from autotune.search.gp.encoding import Encoding
from autotune.search.gp.kernels import Kernels, one_thread
from autotune.search.gp.posterior import Posterior, Trust
from autotune.search.prior import Prior
from autotune.search.priors.sources import Source
from autotune.space.enumeration import Candidate, CandidateSet
from autotune.trial import Configuration, Scalar


def learned(source: Source, candidates: CandidateSet) -> Prior | None:
    """What earlier launches say of the candidates; None where they say nothing of any.

    Knobs that no engine's earlier launches varied have no say. Of an engine without earlier launches nothing is known.
    """
    columns = _varied(source)
    keys = [_key(candidate.configuration, columns) for candidate in candidates.items]
    rows = [_key(lesson.configuration, columns) for lesson in source.lessons]
    distinct = list(dict.fromkeys([*keys, *rows]))
    positions = {key: i for i, key in enumerate(distinct)}
    items = [Candidate(Configuration(key[0], dict(zip(columns, key[1], strict=True))), "") for key in distinct]
    encoding = Encoding(CandidateSet(items, 0))
    launched = [(positions[row], one.score) for row, one in zip(rows, source.lessons, strict=True)]
    ran, broken = [p for p, score in launched if score is not None], [p for p, score in launched if score is None]
    with one_thread():
        mean, sd = _posterior(encoding, ran, [score for _, score in launched if score is not None])
        odds = p_starts(encoding, ran, broken)
    own = np.array([positions[key] for key in keys])
    known = np.isin([key[0] for key in keys], [lesson.configuration.engine for lesson in source.lessons])
    if not known.any():
        return None
    mean, sd, odds = np.where(known, mean[own], np.nan), np.where(known, sd[own], np.nan), np.where(known, odds[own], 1)
    return Prior(source.name, mean, sd, odds if broken else None)


def _varied(source: Source) -> tuple[str, ...]:
    """The knobs of which some engine's launches have several values."""
    values: dict[tuple[str, str], set[tuple[type, Scalar]]] = {}
    for lesson in source.lessons:
        for name, value in lesson.configuration.knobs.items():
            values.setdefault((lesson.configuration.engine, name), set()).add((type(value), value))
    return tuple(sorted({name for (_, name), found in values.items() if len(found) > 1}))


def _key(configuration: Configuration, columns: Sequence[str]) -> tuple[str, tuple[Scalar, ...]]:
    return configuration.engine, tuple(configuration.knobs.get(name) for name in columns)


def _posterior(encoding: Encoding, positions: Sequence[int], scores: Sequence[float]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the true score of everything that is encoded, centred on what was measured."""
    centre = float(np.mean(scores))
    parts = Posterior(Kernels(encoding), positions, [s - centre for s in scores], Trust.NONE).predict()
    mean = np.asarray(sum(weight * mu for weight, mu, _ in parts), dtype=np.float64)
    spread = sum(weight * (sd**2 + (mu - mean) ** 2) for weight, mu, sd in parts)
    return mean, np.sqrt(np.asarray(spread, dtype=np.float64))
