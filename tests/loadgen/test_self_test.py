"""The paced server knows the truth, the self-test finds how far the client is from it."""

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import BadInput
from autotune.loadgen.client.paced_server import read_truth
from autotune.loadgen.client_bias import Bias, PacedServer, Seen
from autotune.loadgen.self_test import Plan, SelfTest, SelfTestRow, beyond, derive_limits, self_test

DEFAULTS = {"cpu_share": 0.9, "loop_lag_p99_ms": 100.0, "send_delay_p99_ms": 100.0}
TRUE = Bias(10, 100.0, 0.1, 1.0, 50.0, 50.0, 0.0)
UNTRUE = replace(TRUE, ttft_p99_ms=50.0)


def made(true: bool, **health: float) -> SelfTestRow:
    return SelfTestRow("even", 100.0, TRUE if true else UNTRUE, 0, {**dict.fromkeys(DEFAULTS, 0.0), **health})


def ask(server: PacedServer, tokens: int, connection: http.client.HTTPConnection) -> list[str]:
    """The events of one answer."""
    connection.request("POST", "/v1/completions", json.dumps({"prompt": [1, 2], "max_tokens": tokens}))
    return connection.getresponse().read().decode().split("\n\n")


def test_a_short_self_test_sees_the_truth():
    rows: list[SelfTestRow] = []
    plan = Plan(rates=(200.0,), streams=20, seconds=0.5)
    result = self_test(DEFAULTS, plan, on_row=rows.append)
    assert [(row.emission, row.asked) for row in rows] == [("even", 200.0), ("lockstep", 200.0)]
    assert result.rows == tuple(rows)
    for row in rows:
        assert row.failed == 0
        assert row.bias is not None
        assert row.bias.requests == 20
        assert 0.0 <= row.bias.ttft_p50_ms < 50.0
        assert row.bias.rate == pytest.approx(200.0, rel=0.5)
        assert row.bias.true_itl_p99_ms >= 90.0
        assert row.health.keys() == DEFAULTS.keys()
    assert len(result.table()) == 5
    assert SelfTest.from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.parametrize("plan", [{"rates": ()}, {"rates": (0.0,)}, {"streams": 0}, {"seconds": 0.0}])
def test_a_plan_that_says_nothing_is_refused(plan: dict[str, object]):
    with pytest.raises(BadInput):
        Plan(**plan)  # type: ignore[arg-type]


def test_the_server_keeps_its_pace_and_numbers_its_requests_on_one_connection():
    with PacedServer(50.0, 1, "even") as server:
        connection = http.client.HTTPConnection(server.target.host, server.target.port)
        answers = [ask(server, tokens, connection) for tokens in (3, 21)]
        truth = server.truth()
        assert [len(times) for times in truth] == [3, 21]
        assert server.truth() == []
        connection.close()
    for number, events in enumerate(answers):
        told = json.loads(events[-3].removeprefix("data: "))["usage"]
        assert (told["prompt_tokens"], told["completion_tokens"]) == (2, len(events) - 3)
        assert told["prompt_tokens_details"]["cached_tokens"] == number
        assert events[-2] == "data: [DONE]"
    assert np.diff(truth[1]).mean() / 1e6 == pytest.approx(20.0, rel=0.5)


def test_in_lockstep_all_streams_write_together():
    tokens = 4
    with PacedServer(20.0, 5, "lockstep") as server:
        body = json.dumps({"prompt": "a b", "max_tokens": tokens}).encode()
        request = server.target.request("/v1/completions", body)
        streams = [socket.create_connection((server.target.host, server.target.port)) for _ in range(5)]
        for stream in streams:
            stream.sendall(request)
        for stream in streams:
            with stream.makefile("rb") as lines:
                assert any(b"[DONE]" in line for line in lines)
            stream.close()
        truth = np.array(server.truth())
    spread_ms = (truth.max(axis=0) - truth.min(axis=0)) / 1e6
    assert truth.shape == (5, tokens)
    assert np.median(spread_ms) < 100.0 < np.diff(truth).mean() / 1e6


def test_the_server_refuses_what_it_does_not_understand_and_goes_on():
    with PacedServer(100.0, 1, "even") as server:
        connection = http.client.HTTPConnection(server.target.host, server.target.port)
        connection.request("POST", "/v1/completions", "nonsense")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (400, b"")
        assert len(ask(server, 2, connection)) == 5
        connection.close()


def test_the_server_dies_with_its_parent():
    command = [sys.executable, "-m", "autotune.loadgen.client.paced_server", "--rate", "10", "--streams", "1"]
    parent = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); print(child.pid)"
    done = subprocess.run([sys.executable, "-c", parent, *command], capture_output=True, text=True, timeout=60)
    # The parent has gone without a word; its child holds the pipe until it has gone too.
    assert done.returncode == 0
    assert len(done.stdout.split()) >= 1


def test_the_truth_of_nothing_is_nothing():
    assert read_truth(np.array([0], dtype=np.int64).tobytes()) == []
    assert Bias.between(Seen([], []), []) is None


def test_biases_are_what_was_added():
    rng = np.random.default_rng(0)
    truth = [np.cumsum(rng.integers(1_000_000, 9_000_000, 50)) for _ in range(20)]
    seen = Seen(list(range(20))[::-1], [times + 3_000_000 for times in truth[::-1]])
    bias = Bias.between(seen, truth)
    assert bias is not None
    assert (bias.requests, bias.ttft_p50_ms, bias.ttft_p99_ms) == (20, 3.0, 3.0)
    assert (bias.itl_p99_ms, bias.tpot, bias.itl) == (bias.true_itl_p99_ms, 0.0, 0.0)
    longer = Bias.between(Seen(seen.numbers, [times * 1.1 for times in seen.times]), truth)
    assert longer is not None
    assert longer.tpot == pytest.approx(0.1)
    assert longer.itl == pytest.approx(0.1)


def test_untrue_rows_lower_the_limit_of_the_figure_that_points_at_them():
    rows = [made(True, cpu_share=0.5), made(True, cpu_share=0.6, loop_lag_p99_ms=30.0)]
    rows += [made(False, cpu_share=0.8, loop_lag_p99_ms=20.0), made(False, cpu_share=0.85)]
    limits = derive_limits(rows, DEFAULTS)
    assert 0.6 <= limits["cpu_share"] < 0.8
    assert limits == {**DEFAULTS, "cpu_share": limits["cpu_share"]}
    assert [beyond(row, limits) for row in rows] == [False, False, True, True]


def test_a_row_that_went_wrong_by_another_cause_moves_nothing():
    rows = [made(True, cpu_share=share) for share in (0.3, 0.4, 0.5)]
    assert derive_limits([*rows, made(False, cpu_share=0.2)], DEFAULTS) == DEFAULTS


def test_rows_with_failures_say_nothing_of_the_limits():
    failed = replace(made(False, cpu_share=0.5), failed=1)
    unseen = replace(made(False, cpu_share=0.5), bias=None)
    assert not failed.true
    assert not unseen.true
    assert derive_limits([failed, unseen], DEFAULTS) == DEFAULTS


ROWS = st.lists(
    st.builds(
        made,
        st.booleans(),
        cpu_share=st.floats(0, 1),
        loop_lag_p99_ms=st.floats(0, 300),
        send_delay_p99_ms=st.floats(0, 300),
    ),
    max_size=12,
)


@given(ROWS, st.randoms())
def test_limits_fall_only_where_they_tell_untrue_from_true(rows: list[SelfTestRow], random):
    limits = derive_limits(rows, DEFAULTS)
    assert limits.keys() == DEFAULTS.keys()
    assert all(0 <= limits[name] <= default for name, default in DEFAULTS.items())
    newly = [row.true for row in rows if beyond(row, limits) and not beyond(row, DEFAULTS)]
    assert newly.count(False) > newly.count(True) or not newly
    shuffled: Sequence[SelfTestRow] = random.sample(rows, len(rows))
    assert derive_limits(shuffled, DEFAULTS) == limits


@given(ROWS)
def test_without_an_untrue_row_the_defaults_stay(rows: list[SelfTestRow]):
    assert derive_limits([row for row in rows if row.true], DEFAULTS) == DEFAULTS
