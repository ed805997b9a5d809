"""The self-test as `autotune bench` runs it: through the worker processes that send every load."""

from __future__ import annotations

from pathlib import Path

from autotune.loadgen.bench.self_test import limits_in_force, sent_by
from autotune.loadgen.self_test import Plan, self_test
from autotune.loadgen.workers import Workers
from tests.product.cli import autotune


def test_a_self_test_goes_through_the_workers():
    with Workers() as pool:
        found = self_test(limits_in_force(), Plan((200.0,), 20, ("even",), 0.5), sent_by(pool, 2))
    (row,) = found.rows
    assert (row.workers, row.failed) == (2, 0)
    assert row.bias is not None
    assert row.bias.requests == 20
    assert row.health.keys() == limits_in_force().keys()


def test_a_bench_of_nothing_says_what_to_give(tmp_path: Path):
    done = autotune("bench", "--model", "m", home=tmp_path / "home")
    assert done.code == 2
    assert "--url" in done.err
    assert "--self-test" in done.err
