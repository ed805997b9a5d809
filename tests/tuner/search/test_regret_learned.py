"""The regret that studies of a known answer teach: `benchmarks/tuner/regret.py`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks" / "tuner"


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("regret")


def records(seed: int, sources: int) -> list[dict[str, Any]]:
    """Return records of studies whose regrets are exponentially distributed around their sign."""
    rng = np.random.default_rng(seed)
    return [
        {"source": source, "signs": {"own": sign}, "true": float(sign * rng.exponential(0.1))}
        for source in range(sources)
        for sign in rng.uniform(0.05, 0.5, 4)
    ]


def test_a_tenth_of_further_studies_exceed_what_is_stated(learning: ModuleType) -> None:
    exceeded = [learning.judged(records(seed, 10), "own")["exceeded"] for seed in range(40)]
    assert 0.06 < np.mean(exceeded) < 0.11
    found = learning.judged(records(0, 100), "own")
    assert found["factor"] == pytest.approx(0.1 * np.log(10), rel=0.2)
    assert found["stated_percent"] > found["true_percent"] > 0


def test_a_source_is_judged_by_the_factor_of_the_others(learning: ModuleType) -> None:
    rows = records(0, 10)
    for row in rows[:4]:
        row["true"] += 10.0
    found = learning.judged(rows, "own")
    assert found["exceeded"] >= 0.1
    assert found["factor"] > 10, "of all studies together"
