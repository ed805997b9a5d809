"""What must hold for any run of the batching loop."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.load.requests import Requests
from autotune.load.workloads import load_workload
from autotune.load.workloads.arrivals import arrival_of
from autotune.node.replica import BackEnd, FrontEnd
from autotune.node.scheduling import Batching
from autotune.node.server import SimulatedServer
from autotune.node.simulate import run_server, simulate
from tests.node.nodes import LIBRARY, R1, run, run_points, setup

ENGINES = ["vllm", "sglang", "tensorrt_llm"]


@st.composite
def loads(draw):
    n = draw(st.integers(1, 40))
    lengths = st.lists(st.integers(1, 400), min_size=n, max_size=n)
    gaps = draw(st.sampled_from([0.0, 0.05, 2.0]))
    groups = draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    prefix = draw(st.integers(1, 50))
    read = np.array(draw(lengths)) + prefix
    send = np.arange(n) * gaps
    return Requests(
        read, np.array(draw(lengths)), send, np.array(groups), prefix, draw(st.integers(1, n))
    )


VERSIONS = [
    *(("vllm", version) for version in ("0.7.3", "0.13.0", "0.32.0")),
    *(("sglang", version) for version in ("0.4.3.post2", "0.5.6", "0.5.23")),
    *(("tensorrt_llm", version) for version in ("0.17", "1.2.0")),
]


@st.composite
def servers(draw):
    knobs = {
        "max_running_requests": draw(st.sampled_from([1, 8, 64, 1024])),
        "max_batched_tokens": draw(st.sampled_from([512, 8192])),
        "speculative_tokens": draw(st.integers(0, 2)),
        "prefix_caching": draw(st.booleans()),
        "cuda_graph_max_batch": draw(st.sampled_from([0, 16, 128])),
        "enable_chunked_prefill": draw(st.booleans()),
    }
    tp, dp = draw(st.sampled_from([(8, 1), (2, 4), (1, 8)]))
    engine, version = draw(st.sampled_from(VERSIONS))
    server = SimulatedServer(setup(engine, tp, dp, 8, version=version, model=R1, **knobs))
    cost = draw(st.sampled_from([0.0, 100.0]))
    return SimulatedServer(
        server.setup,
        server.coefficients.model_copy(update={"output_token_us": cost, "output_piece_us": 0}),
    )


def pool(server, requests, spare):
    """A pool that holds the longest request in whole blocks, speculation's overshoot included, and
    some more."""
    block = server.block_tokens
    longest = float((requests.input_tokens + requests.output_tokens).max()) + server.tokens_per_step
    return math.ceil(longest / block) * block + spare


class WatchedBatching(Batching):
    """Notes the most tokens that were in a pool, at the two moments at which one fills: admission
    and growth."""

    def __init__(self, server, requests, capacity):
        super().__init__(server, requests, capacity)
        watched, self.peak_used = self, 0.0

        class Watched(type(self.scheduler)):
            def take_chunks(self):
                chunks = super().take_chunks()
                watched.note(self.attention_replicas)
                return chunks

            def grow(self, ids, steps):
                super().grow(ids, steps)
                watched.note(self.attention_replicas)

        self.scheduler.__class__ = Watched

    def note(self, replicas):
        self.peak_used = max(self.peak_used, *(replica.used for replica in replicas))


def a_beginning_left_behind():
    """A pool of five blocks; one is the beginning of a group that has ended, and the last request
    needs all five."""
    n = 30
    write, group = np.ones(n, dtype=int), np.zeros(n, dtype=int)
    write[-1], group[-1] = 48, 1
    return Requests(np.full(n, 18), write, np.zeros(n), group, 17, 1)


SMALL_STEPS = {
    **{
        "max_running_requests": 64,
        "max_batched_tokens": 512,
        "speculative_tokens": 1,
        "prefix_caching": False,
    },
    **{"cuda_graph_max_batch": 0, "enable_chunked_prefill": True},
}


def a_prompt_in_two_pieces():
    """The second piece of a prompt is computed when the only other sequence needs a block that is
    not there."""
    read, write = np.full(24, 15), np.ones(24, dtype=int)
    read[6], write[[1, 3, 4, 5, 6]] = 383, (5, 239, 2, 241, 256)
    return Requests(read, write, np.arange(24) * 0.05, np.zeros(24, dtype=int), 14, 5)


@settings(max_examples=80, deadline=None)
@given(servers(), loads(), st.integers(0, 4000))
@example(
    SimulatedServer(setup("vllm", 2, 4, 8, version="0.32.0", model=R1, **SMALL_STEPS)),
    a_prompt_in_two_pieces(),
    128,
)
@example(
    SimulatedServer(setup("vllm", 8, 1, 8, version="0.7.3", model=R1, prefix_caching=True)),
    a_beginning_left_behind(),
    0,
)
def test_invariants(server, requests, spare):
    batching = WatchedBatching(server, requests, pool(server, requests, spare))
    records = batching.run()
    assert records.ok.all()
    assert (records.first_token_s > records.sent_s).all()
    assert (records.finished_s >= records.first_token_s).all()
    assert (records.itl_ms > 0).all()
    assert (np.diff(records.token_s) > -1e-9).all()
    assert (
        batching.peak_used
        <= pool(server, requests, spare) // server.block_tokens * server.block_tokens
    )
    assert records.token_n.sum() == pytest.approx(requests.output_tokens.sum())
    assert 0 <= batching.scheduler.cached_tokens < requests.input_tokens.sum()
    in_flight = np.array(
        [((records.sent_s <= t) & (records.finished_s > t)).sum() for t in records.sent_s]
    )
    assert in_flight.max() <= requests.concurrency


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30), st.floats(0, 3), st.integers(1, 900)
)
def test_steps_sent_together_are_sent_as_one_by_one(durations, busy_s, tokens):
    server = SimulatedServer(setup("vllm"))
    one_by_one, together = BackEnd(server), BackEnd(server)
    ends = np.cumsum(durations)
    for back in (one_by_one, together):
        back.send(0.0, busy_s / server.output_token_s)
    expected = [one_by_one.send(float(end), tokens) for end in ends]
    assert together.send_steps(ends, tokens) == pytest.approx(expected)
    assert together.send(0.0, 1) == pytest.approx(one_by_one.send(0.0, 1))


def test_a_saturated_detokeniser_bounds_the_tokens_per_second():
    server = SimulatedServer(setup("vllm"))
    requests = load_workload("random:300:100:200").draw(0, 0)
    ends = {}
    for cost_us in (0.0, 1000.0):
        slow = SimulatedServer(
            server.setup,
            server.coefficients.model_copy(
                update={"output_token_us": cost_us, "output_piece_us": 0}
            ),
        )
        records = Batching(slow, requests, 400_000).run()
        ends[cost_us] = records.finished_s.max()
    work_s = requests.output_tokens.sum() * 1e-3
    assert max(ends[0.0], work_s) < ends[1000.0] < ends[0.0] + work_s


@pytest.mark.parametrize("engine", ENGINES)
def test_the_pool_is_never_over_full(engine):
    server = SimulatedServer(setup(engine))
    requests = load_workload("random:300:900:200").draw(0, 0)
    batching = WatchedBatching(server, requests, 40_000)
    batching.run()
    assert 30_000 < batching.peak_used <= 40_000
    if engine == "tensorrt_llm":
        assert batching.scheduler.preemptions == 0  # it guarantees that nothing is evicted
    if engine == "vllm":
        assert batching.scheduler.preemptions > 0


@pytest.mark.parametrize("workload", ["sharegpt", "sharegpt-c4", "very-long"])
@pytest.mark.parametrize("figure", ["bandwidth_tb_s", "fp8_tflops", "bf16_tflops", "link_gb_s"])
def test_better_hardware_is_not_slower(workload, figure):
    node = LIBRARY.node("h200")
    better = node.model_copy(update={figure: getattr(node, figure) * 1.5})
    before, after = (
        run("vllm", workload=workload, hardware=hw).metrics["total_token_throughput"]
        for hw in (node, better)
    )
    assert after >= before * 0.995


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_figures(engine):
    one, same, other = (
        run(engine, workload="sharegpt-c4", seed=seed).metrics for seed in (1, 1, 2)
    )
    assert one == same
    assert one["mean_ttft_ms"] != other["mean_ttft_ms"]


def test_two_seeds_differ_less_than_two_configurations_that_matter():
    values = [run("vllm", seed=seed).metrics["total_token_throughput"] for seed in range(5)]
    assert np.std(values) / np.mean(values) < 0.02


def test_more_running_requests_trade_latency_for_throughput():
    few, many = (run("vllm", max_running_requests=n).metrics for n in (64, 512))
    assert many["total_token_throughput"] > 1.5 * few["total_token_throughput"]
    assert many["median_itl_ms"] > few["median_itl_ms"]


def test_separate_prefill_stalls_decoding():
    workload = load_workload("sharegpt").with_concurrency(64)
    stall = {}
    for engine in ("vllm", "sglang"):
        metrics = simulate(setup(engine), workload, 0).metrics
        stall[engine] = metrics["p95_itl_ms"] / metrics["median_itl_ms"]
    assert stall["sglang"] > 1.5 * stall["vllm"]


def first_token_s(load: str, clients: int, server: SimulatedServer) -> tuple[float, float]:
    """Return the mean seconds to the first token and per further one of a closed loop."""
    workload = load_workload(load).with_concurrency(clients)
    metrics = run_server(server, workload, 0).metrics
    return metrics["mean_ttft_ms"] / 1e3, metrics["mean_tpot_ms"] / 1e3


LOOP = "random:100-200:200-400:80"


def test_requests_wait_for_the_steps_after_which_sglang_looks_for_them():
    often, seldom = (
        first_token_s(LOOP, 8, SimulatedServer(setup("sglang", scheduler_recv_interval=n)))
        for n in (1, 30)
    )
    waited = (seldom[0] - often[0]) / seldom[1]
    assert 8 < waited < 30


@pytest.mark.parametrize("engine", ENGINES)
def test_the_way_from_client_to_engine_delays_first_tokens_alone(engine):
    server = SimulatedServer(setup(engine))
    without = server.coefficients.model_copy(update={"latency_ms": 0})
    late, soon = (
        first_token_s("random:100:50:4", 1, SimulatedServer(server.setup, figures))
        for figures in (server.coefficients, without)
    )
    assert late[0] - soon[0] == pytest.approx(0.010)
    assert late[1] == pytest.approx(soon[1])


def test_how_often_the_engine_looks_for_requests_is_read_where_nobody_sets_it():
    outcome = simulate(setup("sglang"), load_workload("random:64:4:4"), 0)
    assert "scheduler_recv_interval" in outcome.knobs_read


@pytest.mark.parametrize(
    ("engine", "knobs", "pieces"),
    [
        ("vllm", {}, 1),
        ("vllm", {"stream_interval": 10}, 10),
        ("vllm", {"api_server_count": 4, "stream_interval": 10}, 40),
        ("sglang", {"stream_interval": 10}, 10),
        ("sglang", {"detokenizer_worker_num": 2}, 2),
        ("sglang", {"tokenizer_worker_num": 8}, 1),
    ],
)
def test_answers_are_sent_in_pieces_by_all_processes(engine, knobs, pieces):
    server = SimulatedServer(setup(engine, **knobs))
    figures = server.coefficients.model_copy(update={"output_token_us": 0, "output_piece_us": 20})
    assert SimulatedServer(server.setup, figures).output_token_s == pytest.approx(20e-6 / pieces)


def test_one_api_server_sends_as_many_tokens_as_were_measured():
    """34,079 tokens a second on a host of B200, between 16,900 and 38,000 on one of H200."""
    rates = {
        hw: 1 / SimulatedServer(setup("vllm", hw=hw, version="0.26.0")).output_token_s
        for hw in ("b200", "h200")
    }
    assert rates["b200"] == pytest.approx(34_079, rel=0.02)
    assert 16_900 < rates["h200"] < 38_000


def test_requests_are_read_by_all_tokenizer_processes():
    waits = [
        run_server(
            SimulatedServer(setup("sglang", tokenizer_worker_num=n)),
            load_workload("random:8000:2:64"),
            0,
        ).metrics["mean_ttft_ms"]
        for n in (1, 8)
    ]
    assert waits[1] < waits[0]


def test_an_idle_engine_looks_for_requests_at_once():
    often, seldom = (
        first_token_s(
            "random:100:50:4", 1, SimulatedServer(setup("sglang", scheduler_recv_interval=n))
        )
        for n in (1, 30)
    )
    assert seldom == often


def test_a_step_that_is_put_together_ahead_lets_requests_wait_for_one_more():
    server = SimulatedServer(setup("vllm"))
    # So little overlap changes no step's duration.
    ahead = server.coefficients.model_copy(update={"host_overlap": 1e-9})
    waits = [
        first_token_s(LOOP, 8, SimulatedServer(server.setup, figures))
        for figures in (server.coefficients, ahead)
    ]
    assert 0.6 < (waits[1][0] - waits[0][0]) / waits[0][1] < 1.4


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("before", range(6))
def test_a_stretch_of_steps_ends_where_a_request_is_received(before: int, interval: int):
    front = FrontEnd(SimulatedServer(setup("sglang", scheduler_recv_interval=interval)))
    front.received(0.0, 0.0, before)
    front.accept(0, 2.5, 0)
    steps = front.steps_until(front.next_s())
    received = [front.received(step, step - 1, 1) for step in range(1, steps + 1)]
    assert received == [*[[]] * (steps - 1), [0]]


def test_a_sweep_has_a_point_per_load_and_rises_with_concurrency():
    rates = [metrics["total_token_throughput"] for metrics in run_points("vllm", workload="sweep")]
    assert len(rates) == 6
    assert rates == sorted(rates)


def test_an_open_loop_below_capacity_keeps_its_rate():
    workload = load_workload("random:200:50:400").with_arrival(arrival_of(request_rate=5))
    metrics = simulate(setup("vllm"), workload, 0).metrics
    assert metrics["request_throughput"] == pytest.approx(5, rel=0.15)


def test_calibration_may_pass_its_own_coefficients():
    server = SimulatedServer(setup("vllm"))
    slow = SimulatedServer(
        setup("vllm"), server.coefficients.model_copy(update={"layer_us": 2000.0})
    )
    workload = load_workload("sharegpt-c4")
    assert (
        run_server(slow, workload, 0).metrics["median_itl_ms"]
        > run_server(server, workload, 0).metrics["median_itl_ms"] + 50
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_beginnings_that_nobody_uses_make_room_in_a_pool_too_small_for_all(engine):
    n, groups = 120, 40
    requests = Requests(
        np.full(n, 1100),
        np.full(n, 100),
        np.zeros(n),
        np.arange(n) % groups,
        prefix_tokens=1024,
        concurrency=60,
    )

    def seconds(cached):
        server = SimulatedServer(setup(engine, model=R1, prefix_caching=cached))
        return Batching(server, requests, 20_000).run().finished_s.max()

    assert seconds(True) <= seconds(False)
