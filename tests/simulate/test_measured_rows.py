"""The simulated node against the measured rows that lie beside the repository, where they do."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.simulate import simulate
from autotune.simulate.coefficients import speed_card

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the measured rows (../shared/data) are not here")


@pytest.fixture(scope="module")
def rows_module():
    spec = importlib.util.spec_from_file_location("measured_rows", ROOT / "scripts" / "measured_rows.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["measured_rows"] = module
    spec.loader.exec_module(module)
    return module


def ratios(rows):
    predicted = [simulate(row.setup, row.workload, 0).metrics["total_token_throughput"] for row in rows]
    return np.array(predicted) / np.array([row.measured["total_token_throughput"] for row in rows])


def test_half_of_the_performance_labs_rows_lie_within_30_percent(rows_module):
    rows = rows_module.seed_rows(DATA)
    assert len(rows) >= 43
    errors = np.abs(ratios(rows) - 1)
    assert np.median(errors) <= 0.30
    prompts = np.array([row.workload.name in ("medium", "long", "very-long", "generation") for row in rows])
    assert (errors[prompts] <= 0.35).all()


def test_mi300x_follows_its_sweep(rows_module):
    rows = [row for row in rows_module.sweep_rows(DATA) if row.setup.hardware.name == "mi300x"]
    assert len(rows) == 12
    assert np.median(np.abs(ratios(rows) - 1)) <= 0.30


def test_nine_of_ten_measured_rows_lie_in_the_stated_interval(rows_module):
    rows = [*rows_module.seed_rows(DATA), *rows_module.sweep_rows(DATA)]
    sigmas = np.array([speed_card(row.setup.engine).residual_sigma for row in rows])
    inside = np.abs(np.log(ratios(rows))) <= 1.645 * sigmas
    assert 0.85 <= inside.mean() <= 0.99
