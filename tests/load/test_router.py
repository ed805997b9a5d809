"""Several servers behind one address: what one of them reports is no figure of the load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engines.library import Library
from autotune.load import LoadOptions, measure
from autotune.load.client.target import Target
from autotune.load.measuring import Measurement
from autotune.load.prefix_cache import DraftReader, PrefixCache
from autotune.load.server_client import ResetOutcome, ServerClient
from autotune.load.workloads import load_workload
from tests.load.router import router
from tests.node.emulator.servers import COMMANDS, V32, serving
from tests.product.cli import autotune

WORKLOAD = load_workload("random:400:12:24")
DRAFTS = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    command = (*COMMANDS["vllm"], *DRAFTS)
    developing = {"VLLM_SERVER_DEV_MODE": "1"}
    with serving(*command, env=developing) as one, serving(*command, env=developing) as other:
        yield [one.url, other.url]


def loaded(url: str, seed: int) -> Measurement:
    every = Library().engines.values()
    with ServerClient(Target.parse(url)) as client:
        options = LoadOptions(
            vocabulary=100_000,
            cache=PrefixCache.for_engines(client, every),
            drafts=DraftReader(client, every),
        )
        measurement = measure(url, V32, WORKLOAD, seed, options)
    assert measurement.failure == ""
    return measurement


def test_behind_a_router_of_two_no_counter_is_a_figure_of_the_load(servers: list[str]) -> None:
    with router(*servers) as url:
        measurement = loaded(url, 1)
    cache = measurement.points[0].cache
    assert cache.use is None
    assert cache.reset is not None
    assert cache.reset.outcome is ResetOutcome.UNKNOWN
    assert not cache.reset
    assert "several servers, of which one reports" in cache.partial
    assert {"cache_hit_rate", "spec_decode_acceptance_rate"}.isdisjoint(measurement.metrics)
    assert measurement.invalid == ""


def test_behind_a_router_of_one_they_are(servers: list[str]) -> None:
    """As at the server itself, and at both by their own addresses."""
    with router(servers[0]) as url:
        measured = [loaded(one, 2 + number) for number, one in enumerate((url, ",".join(servers)))]
    caches = [measurement.points[0].cache for measurement in measured]
    assert [(cache.partial, bool(cache.reset)) for cache in caches] == [("", True)] * 2
    assert max(measurement.metrics["cache_hit_rate"] for measurement in measured) < 0.01
    assert min(one.metrics["spec_decode_acceptance_rate"] for one in measured) > 1


def test_bench_says_what_it_leaves_out(servers: list[str], tmp_path: Path) -> None:
    load = ["--model", V32, "--workload", "random:400:12:24", "--save-result", "r.json"]
    with router(*servers) as url:
        done = autotune("bench", "--url", url, *load, home=tmp_path / "home")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "r.json").read_text())["cache"]
    assert (told["reset"], told["hit_rate"]) == ("unknown", None)
    assert "of which one reports" in told["left_out"]
    assert "Prefix cache emptied before each load:   unknown\n" in done.out
    assert f"counters left out: {told['left_out']}" in done.out
    assert "hit rate" not in done.out
