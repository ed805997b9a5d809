"""Kernels and priors of a study's candidates, to which candidates are added during the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.engines import Candidate, CandidateSet

from .gp.kernels import Encoding, Kernels, Prior, joined


class Beliefs:
    """Compute kernels of a growing set of candidates, and each candidate's prior once.

    Args:
        candidates: those at the study's start; added ones follow them.
        priors: of these candidates.
        priors_of: computes the same sources' priors of added candidates.
    """

    def __init__(
        self,
        candidates: CandidateSet,
        priors: Sequence[Prior],
        priors_of: Callable[[Sequence[Candidate]], Sequence[Prior]],
    ) -> None:
        self._priors = priors
        self._priors_of = priors_of
        self._first = len(candidates)
        self._known = dict[str, dict[str, Prior]]()
        self._latest: tuple[tuple[str, ...], Kernels] = ((), Kernels(Encoding(candidates), priors))

    @property
    def kernels(self) -> Kernels:
        """Return the kernels of the latest call of `of`."""
        return self._latest[1]

    def of(self, candidates: CandidateSet) -> Kernels:
        """Return the kernels of the first candidates and those added behind them."""
        more = candidates.items[self._first :]
        names = tuple([one.fingerprint for one in more])
        if names != self._latest[0]:
            self._learn([one for one in more if one.fingerprint not in self._known])
            priors = [
                joined(prior, [self._known[name].get(prior.name) for name in names])
                for prior in self._priors
            ]
            self._latest = names, Kernels(Encoding(candidates), priors, self._first)
        return self._latest[1]

    def _learn(self, new: Sequence[Candidate]) -> None:
        priors = self._priors_of(new) if new else ()
        for place, one in enumerate(new):
            self._known[one.fingerprint] = {prior.name: prior.at(place) for prior in priors}
