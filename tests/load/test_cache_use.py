"""The prefix cache's part in a load: the counters of any engine, the reset, and what prompts
allow."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.library import Library
from autotune.engines.serving import CacheMetrics
from autotune.load.client.target import Target
from autotune.load.prefix_cache import (
    CacheUse,
    CounterReader,
    counters,
    expected_hit_rate,
    known_metrics,
    reset_cache,
    samples,
    stale,
)
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.requests import Requests
from autotune.load.server_client import ResetOutcome, ServerClient
from autotune.load.workloads import load_workload
from tests.load.server import Call, Server

LIBRARY = Library()
EVERY = LIBRARY.engines.values()

# The page


def sums(text):
    return {name: sum(values) for name, values in samples(text).items()}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 5", 5),
        ("a 1.5e+06", 1.5e6),
        ("a{} 2", 2),
        ('a{b="c"}3', 3),
        ('a{b="c",d="e",} 4 1395066363000', 4),
        ('a { b = "c" } 4', 4),
        ("a\t6\r", 6),
        (r'a{b="x\"} 9 {",c="\\"} 7', 7),
        ('a{b="} 8 #"} 1 # {trace="z"} 0.5 12.3', 1),
        ("a 1 # {} 5", 1),
        ("  a 5  ", 5),
    ],
)
def test_a_sample_in_its_forms(line, value):
    assert sums(f"# TYPE a counter\n{line}\nab 100\na_created 1.7e9\nA 3") == {
        "a": value,
        "ab": 100,
        "a_created": 1.7e9,
        "A": 3,
    }


@pytest.mark.parametrize(
    "line",
    ["", "# HELP a 5", "a", "a NaN", "a +Inf", "a five", "5 a", 'a{b="c} 5', "<html> 5", "{}"],
)
def test_what_is_no_finite_sample_is_passed_over(line):
    assert sums(f"x 1\n{line}\nx 2") == {"x": 3}


labels = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=8),
    max_size=3,
)
sample_texts = st.tuples(
    st.sampled_from(["a", "a_total", "ns:b"]),
    labels,
    st.integers(0, 10**12),
    st.none() | st.integers(),
)


@given(st.lists(sample_texts, max_size=8))
def test_label_sets_are_added_up_whatever_they_hold(rows):
    page, expected = [], {}
    for name, values, value, stamp in rows:
        said = [v.replace("\\", r"\\").replace('"', r"\"") for v in values]
        inner = ",".join(f'l{i}="{v}"' for i, v in enumerate(said))
        page.append(f"{name}{{{inner}}} {value}" + ("" if stamp is None else f" {stamp}"))
        expected[name] = expected.get(name, 0) + value
    assert sums("\n".join(page)) == expected


@given(st.text())
def test_no_text_breaks_it(text):
    found = sums(f"{text}\nread_on 1")
    assert "read_on" in found
    assert all(np.isfinite(value) for value in found.values())


# The counters of an engine

PAGES = {
    "vllm": 'vllm:prefix_cache_queries_total{engine="0"} 600.0\nvllm:prefix_cache_queries_total{engine="1"} 400.0\n'
    'vllm:prefix_cache_hits_total{engine="0"} 100.0\nvllm:external_prefix_cache_hits_total{engine="0"} 20.0\n'
    "vllm:gpu_prefix_cache_queries_total 5\nvllm:gpu_prefix_cache_hits_total 5",
    "vllm 0.9.1": "vllm:gpu_prefix_cache_queries_total 1000\nvllm:gpu_prefix_cache_hits_total 120",
    "sglang": 'sglang:prompt_tokens_total{is_streaming="true"} 1e3\n'
    'sglang:cached_tokens_total{cache_source="device"} 70\n'
    'sglang:cached_tokens_total{cache_source="host"} 50.0\nsglang:cache_hit_rate 0.9',
    "tensorrt_llm": "trtllm_prompt_tokens_total 1000\n"
    "trtllm_prompt_cached_tokens_total 120\ntrtllm_kv_cache_hit_rate 1",
}
PATHS = {"tensorrt_llm": "/prometheus/metrics"}


def serves(pages: dict[str, str]) -> Callable[[Call], object]:
    async def handler(call: Call) -> None:
        text = pages.get(call.path)
        if text is None:
            await call.answer(404, {"detail": "Not Found"})
        else:
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n"
            await call.write((head + text).encode())

    return handler


@pytest.mark.parametrize("name", PAGES)
def test_the_engine_is_found_out_by_its_page(name):
    engine = name.split()[0]
    pages = {PATHS.get(engine, "/metrics"): PAGES[name]}
    with Server(serves(pages)) as server, ServerClient(Target.parse(server.url)) as client:
        probe = CounterReader(client, EVERY)
        use = probe()
        assert (use.queries, use.hits, probe.engine) == (1000, 120, engine)


def test_a_server_without_counters_tells_nothing():
    pages = {"/metrics": '{"iter": 5}', "/prometheus/metrics": "trtllm_request_success_total 5"}
    with Server(serves(pages)) as server, ServerClient(Target.parse(server.url)) as client:
        probe = CounterReader(client, EVERY)
        assert probe() is None
        assert probe.engine is None
        assert len(server.calls) == 2, "each page is read once"


def test_missing_hits_are_none_found_only_where_the_engine_counts_them():
    """SGLang has no counter of hits before the first; 0.4.3 never has one."""
    (metrics,) = LIBRARY.engine("sglang").serving.cache_metrics
    old = {"sglang:prompt_tokens_total": 9.0, "sglang:num_running_reqs": 0.0}
    assert counters(metrics, old) is None
    use = counters(metrics, {**old, "sglang:num_paused_reqs": 0.0})
    assert (use.queries, use.hits) == (9.0, 0.0)


@pytest.mark.parametrize(
    ("engine", "version", "queries"),
    [
        ("vllm", "0.32.0", ["vllm:prefix_cache_queries_total"]),
        ("vllm", "0.8.5", ["vllm:gpu_prefix_cache_queries_total"]),
        ("sglang", "0.5.23", ["sglang:prompt_tokens_total"]),
        ("sglang", "0.4.3.post2", []),
        ("tensorrt_llm", "1.2.0", []),
    ],
)
def test_a_known_version_has_its_own_counters(engine, version, queries):
    assert [
        metrics.queries for metrics in known_metrics(LIBRARY.engine(engine), version)
    ] == queries


def reading(queries: float, hits: float, source: str = "hits of queries") -> CacheUse:
    return CacheUse(hits, queries, source)


def test_prompt_tokens_that_are_counted_without_those_found_are_added_up():
    """llama-server's page; its two counters after 100 new tokens and 300 that were found."""
    metrics = CacheMetrics(
        queries="new_total", queries_without_hits=True, hits=["cached_total"], source="seen"
    )
    before = counters(metrics, {"new_total": 5, "cached_total": 0})
    use = CacheUse.between(before, counters(metrics, sums("new_total 105\ncached_total 300")))
    assert use == CacheUse(300, 400, "cached_total of new_total + cached_total")
    assert use.hit_rate == 0.75


def test_a_load_is_what_lies_between_two_readings():
    use = CacheUse.between(reading(100, 10), reading(500, 110))
    assert (use.queries, use.hits, use.hit_rate) == (400, 100, 0.25)
    assert use.source == "hits of queries"
    assert CacheUse.between(reading(5, 5), reading(5, 5)).hit_rate == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, reading(5, 5)),
        (reading(5, 5), None),
        (reading(500, 0), reading(100, 0)),
        (reading(500, 9), reading(600, 5)),
        (reading(5, 5), reading(6, 6, "hits of another engine's")),
    ],
    ids=["no first", "no second", "fewer queries", "fewer hits", "another engine"],
)
def test_a_server_that_was_started_anew_tells_nothing_of_a_load(before, after):
    assert CacheUse.between(before, after) is None


def test_loads_add_up():
    one, two = CacheUse(10, 100, "a"), CacheUse(50, 300, "a")
    assert CacheUse.total([one, two]) == CacheUse(60, 400, "a")
    assert CacheUse.total([one, None]) is None
    assert CacheUse.total([]) is None


# The reset


def answers(*said: tuple[int, object]) -> Callable[[Call], object]:
    """One after the other, the last for ever."""
    left = list(said)

    async def handler(call: Call) -> None:
        await call.answer(*(left.pop(0) if len(left) > 1 else left[0]))

    return handler


@pytest.mark.parametrize(
    ("status", "body", "outcome", "words"),
    [
        (200, {}, ResetOutcome.DONE, ""),
        (200, {"success": True}, ResetOutcome.DONE, ""),
        (200, {"success": False}, ResetOutcome.REFUSED, "while requests run"),
        (400, "Cache flushed.", ResetOutcome.REFUSED, "while requests run"),
        (404, {"detail": "Not Found"}, ResetOutcome.NOT_OFFERED, "HTTP 404: Not Found"),
        (405, {}, ResetOutcome.NOT_OFFERED, "HTTP 405"),
        (401, {"error": "Unauthorized"}, ResetOutcome.NOT_ALLOWED, "Unauthorized"),
        (
            500,
            {"error": {"message": "the engine is dead"}},
            ResetOutcome.FAILED,
            "the engine is dead",
        ),
    ],
)
def test_what_became_of_a_reset(status, body, outcome, words):
    with (
        Server(answers((status, body))) as server,
        ServerClient(Target.parse(server.url)) as client,
    ):
        done = client.reset_cache("/flush_cache", patience_s=0)
        assert (done.outcome, bool(done)) == (outcome, outcome is ResetOutcome.DONE)
        assert words in done.reason
        assert bool(words) == bool(done.reason)


def test_a_refusal_is_not_the_last_word():
    handler = answers(
        (400, "Cache flushed."), (200, {"success": False}), (503, "no"), (200, {"success": True})
    )
    with Server(handler) as server, ServerClient(Target.parse(server.url)) as client:
        assert client.reset_cache("/reset", patience_s=60)
        assert len(server.posts) == 4


def test_an_engine_without_an_endpoint_is_not_asked():
    with Server() as server, ServerClient(Target.parse(server.url)) as client:
        done = reset_cache(client, LIBRARY.engine("tensorrt_llm").serving)
        assert done.outcome is ResetOutcome.NOT_OFFERED
        assert not server.calls


# What the prompts allow


def requests_of(
    lengths: list[int],
    groups: list[int] | None = None,
    prefix: int = 0,
    contents: tuple[str | None, ...] = (),
) -> Requests:
    return Requests(
        input_tokens=np.array(lengths, dtype=np.int64),
        output_tokens=np.ones(len(lengths), dtype=np.int64),
        send_s=np.zeros(len(lengths)),
        group=np.array(groups if groups is not None else [-1] * len(lengths), dtype=np.int64),
        prefix_tokens=prefix,
        concurrency=1,
        contents=contents,
    )


def found_one_after_another(prompts: list[list[int]]) -> float:
    """The hit rate of a cache that holds everything and counts in single tokens."""
    held: set[tuple[int, ...]] = set()
    hits = 0
    for prompt in prompts:
        beginnings = [tuple(prompt[: i + 1]) for i in range(len(prompt))]
        hits += sum(beginning in held for beginning in beginnings)
        held.update(beginnings)
    return hits / sum(map(len, prompts))


rows = st.lists(st.tuples(st.integers(1, 12), st.integers(-1, 2)), min_size=1, max_size=12)


@given(rows, st.integers(0, 8), st.integers(0, 5))
def test_the_expected_hit_rate_is_that_of_an_endless_cache(rows, prefix, seed):
    requests = requests_of([length for length, _ in rows], [group for _, group in rows], prefix)
    drawn = Prompts("m", vocabulary=10**9)
    prompts = [
        json.loads(body)["prompt"] for body in drawn.bodies(requests, PromptKey("w", 0, seed))
    ]
    # Random tokens may agree by chance, one in 99,000.
    assert expected_hit_rate(requests) == pytest.approx(found_one_after_another(prompts), abs=0.1)
    assert 0 <= expected_hit_rate(requests) < 1


BEGINNINGS = st.sampled_from(["", "ab" * 50, "ab" * 50 + "b", "ä" * 33])


@given(
    st.lists(
        st.builds(str.__add__, BEGINNINGS, st.text("ab", min_size=1, max_size=6)),
        min_size=1,
        max_size=10,
    )
)
def test_texts_share_what_they_begin_with(texts):
    """With a token per character it is exact, and the order does not matter."""
    requests = requests_of([len(text) for text in texts], contents=tuple(texts))
    prompts = [[ord(c) for c in text] for text in texts]
    assert expected_hit_rate(requests) == pytest.approx(found_one_after_another(prompts))


def test_texts_and_drawn_prompts_in_one_load():
    requests = requests_of([10, 10, 10, 10], [0, 0, 0, -1], 4, ("alike", "alike", None, None))
    assert expected_hit_rate(requests) == pytest.approx(10 / 40)
    assert expected_hit_rate(requests_of([])) == 0


def test_the_named_workload_of_shared_prefixes():
    requests = load_workload("shared-prefix").draw(0, 42)
    assert expected_hit_rate(requests) == pytest.approx((500 - 10) * 2000 / (500 * 3200))
    assert expected_hit_rate(load_workload("short").draw(0, 42)) == 0


@pytest.mark.parametrize(
    ("hits", "expected", "words"),
    [
        (0, 0.0, None),
        (50, 0.0, None),
        (
            51,
            0.0,
            "5% of the prompt tokens came from the prefix cache though every prompt was new: the cache held",
        ),
        (640, 0.6, None),
        (
            900,
            0.6,
            "90% of the prompt tokens came from the prefix cache though the prompts share at most 60%: ",
        ),
    ],
)
def test_a_hit_rate_that_the_prompts_do_not_allow_is_said(hits, expected, words):
    said = stale(CacheUse(hits, 1000, "x"), expected)
    assert said.startswith(words) if words else said == ""


def test_nobody_knows_nothing_is_said():
    assert stale(None, 0.0) == ""
