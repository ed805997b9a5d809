"""The three engines' endpoints, through a client that nobody here wrote."""

import httpx
import pytest

from tests.node.emulator.servers import COMMANDS, V32, serving

ENGINES = tuple(COMMANDS)
OWNERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "tensorrt_llm"}
CONTEXT = {"vllm": 81920, "sglang": 163840, "tensorrt_llm": 32768}
EXACT = {"extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module", params=ENGINES)
def named(request):
    with serving(*COMMANDS[request.param], env={"VLLM_SERVER_DEV_MODE": "1"}) as server:
        yield request.param, server


@pytest.fixture
def engine(named):
    return named[0]


@pytest.fixture
def server(named):
    return named[1]


def test_the_model_list_names_the_model(engine, server):
    (model,) = server.openai().models.list().data
    assert (model.id, model.owned_by) == (V32, OWNERS[engine])
    # TensorRT-LLM's models have no length (serve/openai_protocol.py, ModelCard).
    length = None if engine == "tensorrt_llm" else CONTEXT[engine]
    assert getattr(model, "max_model_len", None) == length


def test_a_context_that_fits_the_cache_is_the_one_that_is_served():
    """As vLLM: 1,000,000 positions are 130,944 with a cache of 131,072 and blocks of 128 (0.32)."""
    command = ("vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "auto")
    with serving(*command, options=("--hw", "l4", "--gpus", "1")) as server:
        (model,) = server.openai().models.list().data
        assert 27_000 < model.max_model_len < 30_000
        assert model.max_model_len % 16 == 0
        longer = server.post(
            "/v1/completions", model=model.id, prompt=[5] * model.max_model_len, max_tokens=1
        )
        assert longer.status_code == 400


@pytest.mark.parametrize(
    ("prompt", "tokens", "choices"),
    [
        ([11, 12, 13, 14, 15], 5, 1),
        ([[1, 2], [3, 4, 5]], 5, 2),
        ("one two six", 3, 1),
        (["one", "two six"], 3, 2),
    ],
)
def test_a_completion_counts_its_tokens(server, prompt, tokens, choices):
    answer = server.openai().completions.create(model=V32, prompt=prompt, max_tokens=7, **EXACT)
    assert [choice.index for choice in answer.choices] == list(range(choices))
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage.prompt_tokens == tokens
    assert answer.usage.completion_tokens == 7 * choices
    assert answer.usage.total_tokens == tokens + 7 * choices


def test_a_completion_is_streamed_token_by_token(server):
    stream = server.openai().completions.create(
        model=V32,
        prompt=[5, 6, 7],
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
        **EXACT,
    )
    *chunks, last = list(stream)
    assert [bool(chunk.choices[0].text) for chunk in chunks] == [True] * 9
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 8 + ["length"]
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (
        3,
        9,
        12,
    )


def test_a_stream_tells_no_usage_unless_asked(server):
    chunks = list(
        server.openai().completions.create(
            model=V32, prompt="a", max_tokens=3, stream=True, **EXACT
        )
    )
    assert len(chunks) == 3
    assert all(getattr(chunk, "usage", None) is None for chunk in chunks)


def test_several_prompts_share_a_stream(server):
    prompts = [[1, 2, 3], [4, 5]]
    stream = server.openai().completions.create(
        model=V32, prompt=prompts, max_tokens=4, stream=True, **EXACT
    )
    seen = [chunk.choices[0].index for chunk in stream]
    assert sorted(seen) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_chat_is_streamed_with_its_usage(server):
    stream = server.openai().chat.completions.create(
        model=V32,
        messages=[{"role": "user", "content": "Say something."}],
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        **EXACT,
    )
    first, *chunks, last = list(stream)
    assert first.choices[0].delta.role == "assistant"
    assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) == 6
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage.completion_tokens == 6


def test_a_chat_answers_whole(server):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello there"},
    ]
    answer = server.openai().chat.completions.create(
        model=V32, messages=messages, max_tokens=5, **EXACT
    )
    assert answer.choices[0].message.role == "assistant"
    assert len(answer.choices[0].message.content.split()) == 5
    assert answer.usage.completion_tokens == 5


def test_an_answer_ends_by_itself_unless_told_not_to(server):
    client = server.openai()
    lengths = set()
    for i in range(8):
        answer = client.completions.create(model=V32, prompt=[i, i + 1], max_tokens=4000)
        assert answer.choices[0].finish_reason == "stop"
        lengths.add(answer.usage.completion_tokens)
    assert len(lengths) > 4
    assert max(lengths) < 1000
    least = client.completions.create(
        model=V32, prompt=[1, 2], max_tokens=4000, extra_body={"min_tokens": 900}
    )
    assert least.usage.completion_tokens == 900


def test_a_request_beyond_the_context_is_refused(engine, server):
    import openai

    with pytest.raises(openai.BadRequestError) as refused:
        server.openai().completions.create(
            model=V32, prompt=[1] * 10, max_tokens=CONTEXT[engine], **EXACT
        )
    assert str(CONTEXT[engine]) in refused.value.message


def test_only_vllm_looks_at_the_models_name(engine, server):
    import openai

    ask = lambda: server.openai().completions.create(model="other", prompt="a", max_tokens=1)  # noqa: E731
    if engine == "vllm":
        with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
            ask()
    else:
        assert ask().model == V32


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"prompt": 5}', b'{"prompt": ["a", 1]}', b'{"prompt": "a", "n": 2}']
)
def test_nonsense_is_a_bad_request(server, body):
    answer = httpx.post(f"{server.url}/v1/completions", content=body, trust_env=False)
    assert answer.status_code == 400


def test_routes_that_are_not_there(server):
    assert server.get("/nothing").status_code == 404
    assert server.get("/v1/completions").status_code == 405
    assert server.get("/health").status_code == 200


def test_the_metrics_are_prometheus_text(engine, server):
    if engine == "tensorrt_llm":
        assert server.get("/prometheus/metrics").status_code == 404
        return
    text = server.get("/metrics").text
    values = [line for line in text.splitlines() if not line.startswith("#") and line]
    assert sum(line.startswith(f"{engine}:") for line in values) >= 8
    assert all(float(line.rpartition(" ")[2]) >= 0 for line in values)


def test_sglang_tells_its_resolved_arguments(engine, server):
    if engine != "sglang":
        assert server.get("/get_server_info").status_code == 404
        return
    for path in ("/get_server_info", "/server_info"):
        info = server.get(path).json()
        assert (info["tp_size"], info["context_length"], info["version"]) == (8, 163840, "0.5.23")
        assert info["effective_knobs"]["tensor_parallel"] == 8


def test_the_cards_name_what_the_server_offers(engine, server):
    from autotune.engines.library import Library

    said = Library().engine(engine).serving
    assert server.get(said.health).status_code == 200
    server.complete([1, 2, 3])
    if engine != "tensorrt_llm":  # Its page of 1.2.1 has none; that of 1.3 is asked below.
        text = server.get(said.metrics_path).text
        assert said.metrics
        assert all(f"\n{name}{{" in text for name in said.metrics.values())
    for path in filter(None, [said.reset_cache]):
        assert server.post(path).status_code == 200
    for path in {source.path for source in Library().engine(engine).resolved if source.path}:
        assert server.get(path).json()


def test_tensorrt_llm_s_own_pages_and_a_stream_in_lumps(tmp_path):
    """serve/openai_server.py: /metrics is JSON of iterations, the Prometheus page lies elsewhere."""
    config = tmp_path / "c.yaml"
    config.write_text(
        "{enable_iter_perf_stats: true, return_perf_metrics: true, stream_interval: 4}"
    )
    with serving(*COMMANDS["tensorrt_llm"], "--config", str(config)) as server:
        assert server.get("/version").json() == {"version": "1.2.1"}
        assert server.get("/metrics").json() == []
        stream = server.openai().completions.create(
            model=V32, prompt=[5, 6, 7], max_tokens=10, stream=True, **EXACT
        )
        texts = [chunk.choices[0].text for chunk in stream if chunk.choices]
        assert [len(text.split()) for text in texts] == [1, 4, 4, 1]
        (iteration,) = server.get("/metrics").json()
        assert (iteration["numActiveRequests"], iteration["numQueuedRequests"]) == (0, 0)
        assert iteration["kvCacheStats"]["tokensPerBlock"] == 64
        assert iteration["kvCacheStats"]["maxNumBlocks"] > 1000
        path = "/prometheus/metrics"
        assert server.metric("trtllm_request_success_total", path) == 1


def test_the_card_names_what_tensorrt_llm_offers_from_1_3_on(tmp_path):
    from autotune.engines.library import Library

    said = Library().engine("tensorrt_llm").serving
    config = tmp_path / "c.yaml"
    config.write_text("{enable_iter_perf_stats: true, return_perf_metrics: true}")
    command = [*COMMANDS["tensorrt_llm"], "--config", str(config)]
    with serving(*command, options=("--engine-version", "1.3.0rc24")) as server:
        server.complete([1, 2, 3])
        text = server.get(said.metrics_path).text
        assert said.metrics
        assert all(f"\n{name}{{" in text for name in said.metrics.values())


BOUNDS = {
    # Published figures: vllm/v1/metrics/buckets.py (0.33) build_1_2_5_buckets up to max_model_len;
    # sglang/srt/observability/metrics_collector.py (0.5.23) default_bucket_prompt_tokens;
    # tensorrt_llm/metrics/collector.py, time to first token.
    "vllm": ("vllm:request_prompt_tokens", 1, 50000, 15),
    "sglang": ("sglang:prompt_tokens_histogram", 100, 1100000, 35),
    "tensorrt_llm": ("trtllm_time_to_first_token_seconds", 0.001, 2560, 22),
}


def test_the_page_has_the_engine_s_histograms_with_its_bounds(engine, tmp_path):
    from prometheus_client.parser import text_string_to_metric_families

    config = tmp_path / "c.yaml"
    config.write_text("{return_perf_metrics: true}")
    told = {"tensorrt_llm": ("--config", str(config))}.get(engine, ())
    path = "/prometheus/metrics" if told else "/metrics"
    with serving(*COMMANDS[engine], *told) as server:
        for length in (3, 30, 3000):
            server.complete([7 + length] * length, max_tokens=5)
        families = {one.name: one for one in text_string_to_metric_families(server.get(path).text)}
    name, first, last, count = BOUNDS[engine]
    rows = [one for one in families[name].samples if one.name.endswith("_bucket")]
    bounds = [float(one.labels["le"]) for one in rows]
    assert (bounds[0], bounds[-2], len(bounds) - 1) == (first, last, count)
    assert rows[-1].value == 3
    if engine != "tensorrt_llm":
        # Buckets by upper bounds that count: 3 and 30 of the 3 prompts are below 100, 3000 is not.
        below = {float(one.labels["le"]): one.value for one in rows}
        assert (below[100], below[2000], below[5000]) == (2, 2, 3)
        sums = {one.name: one.value for one in families[name].samples}
        assert (sums[f"{name}_sum"], sums[f"{name}_count"]) == (3033, 3)
    reasons = families.get("vllm:request_success") or families.get("trtllm_request_success")
    assert reasons is None or {
        one.labels["finished_reason"]: one.value for one in reasons.samples if one.value
    } == {"length": 3}
