"""Several servers share a load: which one gets a request, and what is told of them together."""

from __future__ import annotations

import pytest

from autotune.engines.serving import DraftMetrics
from autotune.load import LoadOptions, measure
from autotune.load.client.generator import Connections
from autotune.load.client.target import BALANCING, Target
from autotune.load.measuring import to_json
from autotune.load.prefix_cache import drafts_of_page
from autotune.load.server_client import ResetOutcome, ServerClient
from autotune.load.workloads import load_workload
from tests.load.server import Call, Server


async def missing(call: Call) -> None:
    await call.answer(404, {})


THREE = Target.parse("http://127.0.0.1:1,http://127.0.0.1:2, http://127.0.0.1:3/v1", "key")


def test_several_addresses_are_servers_each_with_the_key():
    assert [server.port for server in THREE] == [1, 2, 3]
    assert {(server.api_key, server.others) for server in THREE} == {("key", ())}
    assert [server.port for server in THREE.beginning_with(4)] == [2, 3, 1]
    assert list(Target.parse("http://h:1")) == [Target.parse("http://h:1")]


def test_a_request_goes_to_the_server_with_the_fewest_in_flight():
    connections = Connections(THREE, 1.0)

    def next_ones(count: int) -> list[int]:
        chosen = []
        for _ in range(count):
            with connections.chosen() as server:
                chosen.append(id(server))
        return chosen

    with connections.chosen() as busy:
        # In turn they would meet the busy one.
        assert id(busy) not in next_ones(6)
        with (
            connections.chosen() as second,
            connections.chosen() as third,
            connections.chosen() as again,
        ):
            assert len({id(busy), id(second), id(third)}) == 3
            assert again.in_flight == 2
    # Of idle ones the one that was chosen longest ago.
    six = next_ones(6)
    assert len(set(six[:3])) == 3
    assert six[:3] == six[3:]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_load_is_spread_and_measured_as_one(concurrency):
    with Server() as one, Server() as other:
        load = load_workload("random:6:4:20").with_concurrency(concurrency)
        measured = measure(
            f"{one.url},{other.url}", "m", load, 7, LoadOptions(warm_up=False, workers=1)
        )
        shares = sorted((len(one.posts), len(other.posts)))
    assert (measured.metrics["completed"], sum(shares)) == (20, 20)
    # One at a time they take turns; the first four are spread evenly, and after that a slow server
    # gets fewer.
    assert shares[0] >= (10 if concurrency == 1 else 2)
    told = to_json([measured])
    assert (told["servers"], told["balancing"]) == (2, BALANCING)


def test_counters_are_summed_and_gauges_averaged():
    names = {"drafts": "a", "drafted": "b", "accepted": "c"}
    counted = drafts_of_page(
        DraftMetrics(counters=names, source="a test"),
        {"a": [1.0, 2.0], "b": [4.0, 6.0], "c": [3.0, 2.0]},
    )
    assert counted is not None
    assert (counted.drafts, counted.drafted, counted.accepted) == (3, 10, 5)
    gauges = DraftMetrics(gauges={"length": "l", "rate": "r"}, source="a test")
    one, two = (
        drafts_of_page(gauges, {"l": [2.0], "r": [0.5]}),
        drafts_of_page(gauges, {"l": [2.0, 2.0], "r": [0.5, 0.5]}),
    )
    assert one == two


def test_every_server_s_page_is_read_and_every_cache_emptied():
    async def page(call: Call) -> None:
        await call.answer(200, "hits 3")

    with (
        Server(page) as one,
        Server(page) as other,
        ServerClient(Target.parse(f"{one.url},{other.url}")) as client,
    ):
        assert client.reset_cache("/reset", patience_s=0.0)
        assert (client.metrics_text() or "").count("hits 3") == 2
        assert [[call.method for call in server.calls] for server in (one, other)] == [
            ["POST", "GET"]
        ] * 2
        other.handler = missing
        reset = client.reset_cache("/reset", patience_s=0.0)
        assert (reset.outcome, client.metrics_text()) == (ResetOutcome.NOT_OFFERED, None)
