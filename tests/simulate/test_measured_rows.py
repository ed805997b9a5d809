"""The simulated node against the measured rows that lie beside the repository, where they do."""

from pathlib import Path

import numpy as np
import pytest

from autotune.calibrate.points import points_of
from autotune.calibrate.readers import read_file
from autotune.evaluate import predict
from autotune.simulate.coefficients import speed_card

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the measured rows (../shared/data) are not here")


@pytest.fixture(scope="module")
def compared():
    """Each point that ran with predicted over measured; next to nothing for what is predicted not to run."""
    files = ("seed_measurements.json", "dstack_r1_concurrency_sweep.csv")
    rows = [row for name in files for row in read_file(DATA / name).rows if row.failure is None]
    name = "total_token_throughput"
    return [
        (point, predict(point.understood, point.workload, 0).metrics.get(name, 1e-3) / point.metrics[name])
        for point in points_of(rows)
    ]


def test_half_of_the_performance_labs_rows_lie_within_30_percent(compared):
    errors = [(p, abs(ratio - 1)) for p, ratio in compared if p.members[0].source == "seed_measurements.json"]
    assert sum(len(point.members) for point, _ in errors) >= 43
    assert np.median([error for _, error in errors]) <= 0.30
    prompts = ("medium", "long", "very-long", "generation")
    assert all(error <= 0.35 for point, error in errors if point.workload.name in prompts)


def test_mi300x_follows_its_sweep(compared):
    errors = [abs(ratio - 1) for point, ratio in compared if point.gpu == "mi300x"]
    assert len(errors) == 12
    assert np.median(errors) <= 0.30


def test_nine_of_ten_measured_rows_lie_in_the_stated_interval(compared):
    inside = [abs(np.log(ratio)) <= 1.645 * speed_card(point.engine).residual_sigma for point, ratio in compared]
    assert 0.85 <= np.mean(inside) <= 0.99
