"""`CandidateSampler` passes the tests that Optuna publishes for samplers.

Their parameters are no knobs of the candidates, so it draws them at random. It has one objective, so the tests of
several do not apply.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase
from search_landscapes import small

from autotune.search.gp.kernels import Encoding, Kernels
from autotune.search.sampler import CandidateSampler

KERNELS = Kernels(Encoding(small()))

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


class TestCandidateSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: CandidateSampler(KERNELS, seed=1)
