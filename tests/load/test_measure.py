"""Loads over HTTP against a server that behaves: counts, order, concurrency, arrivals, prompts."""

import asyncio
import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.load import LoadOptions, measure
from autotune.load.client.stream import tally
from autotune.load.metrics.formulas import summarize
from autotune.load.prefix_cache import PrefixCache
from autotune.load.server_client import CacheReset, ResetOutcome
from autotune.load.workloads import Prefix, Workload, load_workload
from autotune.load.workloads.arrivals import arrival_of
from tests.load.server import END, STREAM_HEAD, Call, Server, event, good, usage_event

COLD = LoadOptions(warm_up=False)


def emptied_by(told: Callable[[], None]) -> PrefixCache:
    """A prefix cache whose resets are told."""

    def reset() -> CacheReset:
        told()
        return CacheReset(ResetOutcome.DONE)

    return PrefixCache(reset)


def reference(url: str, bodies: list[dict[str, Any]]) -> tuple[int, int]:
    """A plain client: one request after the other, the standard library, every event decoded."""
    read = written = 0
    address = url.removeprefix("http://")
    for body in bodies:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage")
                if usage:
                    read += usage["prompt_tokens"]
                    written += usage["completion_tokens"]
        connection.close()
    return read, written


def test_a_plain_client_counts_the_same_tokens():
    workload = load_workload("sharegpt-c4").model_copy(
        update={
            "points": [load_workload("sharegpt-c4").points[0].model_copy(update={"prompts": 24})]
        }
    )
    with Server() as server:
        measured = measure(server.url, "m", workload, 3, COLD)
        ours = measured.metrics["total_input_tokens"], measured.metrics["total_output_tokens"]
        assert ours == reference(server.url, [call.body for call in server.posts])
    drawn = workload.draw(0, 3)
    assert ours == (drawn.input_tokens.sum(), drawn.output_tokens.sum())
    assert measured.failure == ""
    assert measured.metrics["client_bound"] is False


def test_three_hundred_streams_at_once_all_succeed():
    release: list[asyncio.Event] = []

    async def all_together(call: Call) -> None:
        """Nobody is answered before all are there."""
        release.append(asyncio.Event())
        if len(release) == 300:
            for waiting in release:
                waiting.set()
        await release[server.calls.index(call)].wait()
        await good(call)

    with Server(all_together) as server:
        measured = measure(server.url, "m", load_workload("random:3:4:300"), 0, COLD)
        assert server.most_at_once == 300
    assert tally(measured.outcomes) == {"ok": 300}
    assert measured.metrics["max_concurrent_requests"] >= 300


def test_a_closed_loop_never_exceeds_its_concurrency():
    with Server() as server:
        measured = measure(
            server.url, "m", load_workload("random:3:4:60").with_concurrency(7), 0, COLD
        )
        assert server.most_at_once <= 7
        assert server.connections <= 7
        assert len(server.posts) == 60
    assert tally(measured.outcomes) == {"ok": 60}


def test_poisson_arrivals_are_sent_on_time_and_in_order():
    workload = load_workload("random:3:2:40").with_arrival(arrival_of(request_rate=100))
    with Server() as server:
        measured = measure(server.url, "m", workload, 5, COLD)
    log = measured.points[0].log
    planned = workload.draw(0, 5).send_s
    sent = log.records.sent_s
    assert (log.send_delay_s >= 0).all()  # never before its time
    assert (np.diff(sent) >= 0).all()
    # All are on one schedule, but for those that waited for a connection.
    begun = sent - log.send_delay_s - planned
    assert np.median(np.abs(begun - np.median(begun))) < 0.01


def test_tokens_are_counted_by_usage_not_by_chunks():
    async def several_at_once(call: Call) -> None:
        await call.write(STREAM_HEAD)
        await call.stream(event("abc"), event("def"), usage_event(5, 8), b"data: [DONE]")
        await call.write(END)

    with Server(several_at_once) as server:
        measured = measure(server.url, "m", load_workload("random:5:8:3"), 0, COLD)
    log = measured.points[0].log
    assert measured.metrics["total_output_tokens"] == 24
    assert log.chunks.tolist() == [2, 2, 2]
    assert len(log.records.itl_ms) == 3
    assert log.records.token_n.tolist() == [4.0] * 6


def test_answers_that_are_not_streamed():
    async def whole(call: Call) -> None:
        assert "stream" not in call.body
        usage = {
            "prompt_tokens": len(call.body["prompt"]),
            "completion_tokens": call.body["max_tokens"],
        }
        await call.answer(200, {"choices": [{"text": "abc"}], "usage": usage})

    workload = load_workload("random:5:8:3").model_copy(update={"streaming": False})
    with Server(whole) as server:
        metrics = measure(server.url, "m", workload, 0, COLD).metrics
    assert (metrics["completed"], metrics["total_output_tokens"]) == (3, 24)
    assert metrics["mean_ttft_ms"] == metrics["mean_e2el_ms"] > 0


def test_cached_tokens_make_the_hit_rate():
    async def half(call: Call) -> None:
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 5},
        }
        await call.write(STREAM_HEAD)
        await call.stream(event(usage=usage), b"data: [DONE]")
        await call.write(END)

    with Server(half) as server:
        assert (
            measure(server.url, "m", load_workload("random:10:1:2"), 0, COLD).metrics[
                "cache_hit_rate"
            ]
            == 0.5
        )


def prompts(workload: Workload, seed: int, **options: Any) -> list[Any]:
    with Server() as server:
        measure(server.url, "m", workload, seed, LoadOptions(warm_up=False, **options))
        return [
            call.body.get("prompt") or call.body["messages"][0]["content"] for call in server.posts
        ]


def test_prompts_are_the_same_for_a_seed_and_new_for_another():
    workload = load_workload("random:6:1:5").with_concurrency(1)
    first, again, other = (prompts(workload, seed) for seed in (1, 1, 2))
    assert first == again
    beginnings = [tuple(p[:3]) for p in [*first, *other]]
    assert len(set(beginnings)) == 10


def test_ids_stay_within_the_vocabulary():
    ids = np.array(prompts(load_workload("random:500:1:2"), 0, vocabulary=2000))
    assert (ids.min() > 400, ids.max() < 1900) == (True, True)
    assert np.array(prompts(load_workload("random:500:1:2"), 0)).max() < 32_000


def test_shared_beginnings_are_shared_within_a_group_only():
    workload = (
        load_workload("random:8:1:12")
        .with_concurrency(1)
        .model_copy(update={"prefix": Prefix(tokens=5, groups=3)})
    )
    sent = prompts(workload, 0)
    assert len({tuple(p[:5]) for p in sent}) == 3
    assert len({tuple(p[5:]) for p in sent}) == 12


def test_chat_prompts_are_text_of_about_the_length_asked_for():
    sent = prompts(load_workload("random:9:1:3"), 0, endpoint="/v1/chat/completions")
    assert [len(text.split()) for text in sent] == [9, 9, 9]


def test_a_file_s_own_prompts_are_sent(tmp_path: Path):
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '{"prompt": "Tell me", "output_tokens": 1}\n{"input_tokens": 4, "output_tokens": 1}\n'
    )
    sent = prompts(load_workload(f"jsonl:{file}").with_concurrency(1), 0)
    assert sent[0] == "Tell me"
    assert len(sent[1]) == 4


def test_warm_up_is_bounded_not_counted_and_before_a_reset_of_the_cache():
    asked: list[int] = []
    with Server() as server:
        options = LoadOptions(cache=emptied_by(lambda: asked.append(len(server.posts))))
        measured = measure(
            server.url, "m", load_workload("random:3:100:20").with_concurrency(4), 0, options
        )
        warm, loaded = server.posts[: asked[0]], server.posts[asked[0] :]
    assert len(warm) == 8
    assert {call.body["max_tokens"] for call in warm} == {32}
    assert len(loaded) == 20 == measured.metrics["completed"]
    assert not {str(call.body["prompt"]) for call in warm} & {
        str(call.body["prompt"]) for call in loaded
    }
    assert measured.warm_up_s > 0


def test_each_load_point_is_measured_with_prompts_of_its_own():
    point = load_workload("random:6:2:4").points[0]
    workload = load_workload("random:6:2:4").model_copy(
        update={"points": [point.model_copy(update={"label": label}) for label in ("one", "two")]}
    )
    resets: list[None] = []
    with Server() as server:
        options = LoadOptions(warm_up=False, cache=emptied_by(lambda: resets.append(None)))
        measured = measure(server.url, "m", workload, 0, options)
        assert len({str(call.body["prompt"]) for call in server.posts}) == 8
    assert [load.point.label for load in measured.points] == ["one", "two"]
    assert len(resets) == 2
    assert measured.metrics["completed"] == 8
    seconds = [summarize(load.log.records)["duration"] for load in measured.points]
    assert measured.metrics["duration"] == pytest.approx(sum(seconds))
